"""The byte corpus: what becomes a document, how it is split, cached and cut into windows, and what is refused."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin.errors import ConfigError, DataError
from maclaurin.tasks import Corpus, documents, token_file
from maclaurin.tasks.documents import Document

TEXTS = {f"chapter-{i:02}.txt": f"This is chapter {i}, größer als vorher.\n" * (i + 3) for i in range(30)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "book"
    for name, text in TEXTS.items():
        write(root / ("part-two" if name > "chapter-14" else "") / name, text)
    return root


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "corpora"


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def names(corpus: Corpus) -> list[str]:
    return sorted(span.name for spans in corpus.documents.values() for span in spans)


def test_every_document_is_in_one_split_byte_for_byte(folder, cache):
    corpus = Corpus.open(folder, cache)
    in_split = {split: [span.name for span in spans] for split, spans in corpus.documents.items()}
    assert not set(in_split["train"]) & set(in_split["heldout"])
    assert names(corpus) == sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.txt"))
    for split, spans in corpus.documents.items():
        assert in_split[split] == sorted(in_split[split])
        stream = corpus.streams[split]
        for span in spans:
            assert stream[span.start : span.stop].tobytes() == (folder / span.name).read_bytes()
        assert np.flatnonzero(stream == 0).tolist() == [span.start - 1 for span in spans]
        assert stream.size == spans[-1].stop


def test_streams_are_mapped_from_the_file_and_cannot_be_written(folder, cache):
    corpus = Corpus.open(folder, cache)
    for stream in corpus.streams.values():
        assert isinstance(stream, np.memmap)
        assert Path(stream.filename) == corpus.cache_path
        with pytest.raises(ValueError, match="read-only"):
            stream[0] = 1
    batch = corpus.sample(np.random.default_rng(0), 2, 8)
    assert not isinstance(batch.tokens, np.memmap)


def test_the_split_does_not_depend_on_other_documents(folder, cache):
    before = {span.name for span in Corpus.open(folder, cache, held_out=0.3).documents["heldout"]}
    write(folder / "aaa.txt", "one more, first of all by name")
    after = {span.name for span in Corpus.open(folder, cache, held_out=0.3).documents["heldout"]}
    assert 0 < len(before) < len(TEXTS)
    assert after - {"aaa.txt"} == before


def test_the_held_out_share_is_about_what_was_asked():
    """Of 4,000 hashes a tenth is 400, give or take 19; five of those deviations are allowed."""
    many = tuple(Document(f"{i}.txt", Path("nowhere"), 1, bytes(32)) for i in range(4000))
    pieces = token_file.split_documents(many, 0.1)
    assert abs(len(pieces["heldout"]) - 400) < 5 * 19
    assert len(pieces["heldout"]) + len(pieces["train"]) == 4000
    edited = tuple(Document(each.name, each.path, 1, bytes(31) + b"!") for each in many)
    again = token_file.split_documents(edited, 0.1)  # the content has its say too: other documents are held out
    assert {piece.document.name for piece in again["heldout"]} != {piece.document.name for piece in pieces["heldout"]}


@pytest.mark.parametrize("held_out", [1e-9, 1 - 1e-9])
def test_neither_split_is_ever_without_a_document(folder, cache, held_out):
    corpus = Corpus.open(folder, cache, held_out=held_out)
    assert sorted(len(spans) for spans in corpus.documents.values()) == [1, len(TEXTS) - 1]


@settings(deadline=None, max_examples=40)
@given(text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=20, max_size=80))
def test_a_single_document_is_cut_at_a_character(tmp_path_factory, text):
    root = tmp_path_factory.mktemp("single")
    corpus = Corpus.open(write(root / "any.name", text), root / "cache", held_out=0.25)
    parts = [corpus.streams[split][1:].tobytes().decode() for split in ("train", "heldout")]
    assert "".join(parts) == text
    # The cut moves to the next character, at most three bytes, from a quarter of the bytes.
    assert -3.5 <= len(parts[1].encode()) - len(text.encode()) / 4 <= 0.5


def test_which_files_of_a_folder_are_documents(tmp_path, cache):
    root = tmp_path / "root"
    for name in ("a.py", "b.txt", "sub/c.md", "sub/deep/d.rst", "e.json"):
        write(root / name, f"in {name}")
    for name in (".git/x.txt", "__pycache__/x.py", "site-packages/x.py", "sub/dist-packages/x.py", ".hidden.txt"):
        write(root / name, f"never {name}")
    write(root / "empty.txt", "")
    write(tmp_path / "outside.txt", "outside")
    (root / "link.txt").symlink_to(tmp_path / "outside.txt")
    (root / "broken.txt").symlink_to(root / "nothing.txt")
    (root / "folder-link").symlink_to(tmp_path, target_is_directory=True)
    assert names(Corpus.open(root, cache)) == ["a.py", "b.txt", "sub/c.md", "sub/deep/d.rst"]
    assert names(Corpus.open(root, cache, patterns=["*.json", "deep/*"])) == ["e.json", "sub/deep/d.rst"]


def test_a_cache_inside_its_own_corpus_is_no_document(folder):
    first = Corpus.open(folder, folder, patterns=["*"])
    assert Corpus.open(folder, folder, patterns=["*"]).digest == first.digest


def test_copies_are_left_out_so_that_no_text_is_in_both_splits(folder, cache):
    before = Corpus.open(folder, cache)
    for i in range(20):
        write(folder / f"z-copy-{i}.txt", TEXTS["chapter-03.txt"])
    corpus = Corpus.open(folder, cache)
    assert (corpus.num_copies, before.num_copies) == (20, 0)
    assert corpus.digest == before.digest


def test_the_digest_follows_names_and_contents(folder, cache):
    seen = {Corpus.open(folder, cache).digest}
    write(folder / "chapter-00.txt", TEXTS["chapter-00.txt"] + "!")
    seen.add(Corpus.open(folder, cache).digest)
    (folder / "chapter-00.txt").rename(folder / "chapter-00b.txt")
    changed = Corpus.open(folder, cache)
    seen.add(changed.digest)
    assert len(seen) == 3
    assert len(list(cache.glob("*.bin"))) == 3
    (span,) = [each for spans in changed.documents.values() for each in spans if each.name == "chapter-00b.txt"]
    assert any(b"!" in stream.tobytes() for stream in changed.streams.values())
    assert span.stop - span.start == len(TEXTS["chapter-00.txt"].encode()) + 1


def test_the_cache_is_written_once_and_describes_itself(folder, cache):
    corpus = Corpus.open(folder, cache)
    stamp = corpus.cache_path.stat().st_ino
    again = Corpus.open(folder, cache)
    assert again.cache_path.stat().st_ino == stamp
    assert sorted(path.suffix for path in cache.iterdir()) == [".bin", ".json"]  # no temporary file is left
    about = json.loads(corpus.cache_path.with_suffix(".json").read_text())
    assert about["digest"] == corpus.digest
    for split, stream in corpus.streams.items():
        assert about["splits"][split]["num_bytes"] == stream.size
        assert about["splits"][split]["num_documents"] == len(corpus.documents[split])
        assert [tuple(span) for span in about["splits"][split]["documents"]] == list(corpus.documents[split])
    other = Corpus.open(folder, cache, held_out=0.5)
    assert other.cache_path != corpus.cache_path


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "json cut", "json gone", "json lies"])
def test_a_damaged_cache_is_written_anew(folder, cache, damage):
    corpus = Corpus.open(folder, cache)
    good = corpus.cache_path.read_bytes()
    about = corpus.cache_path.with_suffix(".json")
    described = about.read_bytes()
    match damage:
        case "cut":
            corpus.cache_path.write_bytes(good[:-1])
        case "flipped":
            corpus.cache_path.write_bytes(good[:40] + b"?" + good[41:])
        case "gone":
            corpus.cache_path.unlink()
        case "json cut":
            about.write_bytes(described[:-9])
        case "json gone":
            about.unlink()
        case "json lies":
            about.write_bytes(described.replace(b'"format": 1', b'"format": 0'))
    again = Corpus.open(folder, cache)
    assert again.cache_path.read_bytes() == good
    assert about.read_bytes() == described
    assert np.array_equal(again.streams["train"], np.frombuffer(good, np.uint8)[: again.streams["train"].size])


def test_a_cache_file_appears_whole_and_leaves_its_readers_alone(folder, cache):
    path = Corpus.open(folder, cache).cache_path
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    reader = np.memmap(path, dtype=np.uint8, mode="r")
    Corpus.open(folder, cache)
    assert path.read_bytes()[-1:] != b"?"
    assert bytes(reader[-1:]) == b"?"  # replaced, not written over


def test_a_full_disk_is_one_sentence_and_leaves_nothing(folder, cache, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        DataError, match=r"cache folder '.*corpora' cannot be used .No space left.*cache_dir"
    ) as refusal:
        Corpus.open(folder, cache)
    assert "\n" not in str(refusal.value)
    assert list(cache.iterdir()) == []


def test_a_cache_folder_that_is_a_file_is_refused(folder, tmp_path):
    with pytest.raises(DataError, match=r"cache folder '.*occupied' cannot be used"):
        Corpus.open(folder, write(tmp_path / "occupied", "text"))


def test_a_document_that_changes_while_it_is_read_is_refused(folder, cache, monkeypatch):
    def changed(path: Path, start: int = 0, stop: int | None = None):
        yield (path.read_bytes()[start:stop]).replace(b"chapter", b"CHAPTER")

    monkeypatch.setattr(token_file, "read_chunks", changed)
    with pytest.raises(DataError, match=r"chapter-\d\d.txt' changed while it was read"):
        Corpus.open(folder, cache)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "offset", "what"),
    [
        (b"text\0text", 4, "is NUL"),
        (b"gr\xfc\xdfe", 2, "is not UTF-8 .invalid start byte"),
        ("größer".encode()[:-5], 2, "is not UTF-8 .unexpected end of data"),
        (b"ab" * 9 + "€".encode()[:2] + b"cd", 18, "is not UTF-8 .invalid continuation byte"),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [1 << 20, 3])
def test_what_is_not_text_is_refused_with_its_offset(tmp_path, cache, monkeypatch, content, offset, what, chunk_bytes):
    monkeypatch.setattr(documents, "CHUNK_BYTES", chunk_bytes)
    write(tmp_path / "good.txt", "größer € 😀 " * 9)
    path = write(tmp_path / "image.txt", content)
    for named in (path, tmp_path):
        with pytest.raises(DataError, match=rf"byte {offset} of '.*image.txt' {what}"):
            Corpus.open(named, cache)
    assert not cache.exists()


def test_nothing_to_read_is_refused(tmp_path, cache):
    with pytest.raises(DataError, match=r"'.*missing': there is no such file or folder"):
        Corpus.open(tmp_path / "missing", cache)
    with pytest.raises(DataError, match=r"empty.txt': it is empty"):
        Corpus.open(write(tmp_path / "empty.txt", ""), cache)
    with pytest.raises(DataError, match=r"no text in files like \*.md, \*.rst"):
        Corpus.open(tmp_path, cache, patterns=("*.md", "*.rst"))


def test_unreadable_files_and_folders_are_refused(folder, cache, monkeypatch):
    def forbid(real):
        def open_or_list(path, *args, **options):
            if str(path).endswith(("part-two", "chapter-03.txt")):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return real(path, *args, **options)

        return open_or_list

    monkeypatch.setattr(Path, "open", forbid(Path.open))
    with pytest.raises(DataError, match=r"chapter-03.txt' cannot be read .Permission denied"):
        Corpus.open(folder, cache)
    monkeypatch.setattr(os, "scandir", forbid(os.scandir))
    with pytest.raises(DataError, match=r"part-two' cannot be read .Permission denied"):
        Corpus.open(folder, cache)


@pytest.mark.parametrize("held_out", [0.0, 1.0, -0.1, float("nan"), 1, "0.1"])
def test_the_held_out_share_is_between_zero_and_one(folder, cache, held_out):
    with pytest.raises(ConfigError, match=r"held_out=.*between 0 and 1"):
        Corpus.open(folder, cache, held_out=held_out)


@pytest.mark.parametrize("patterns", ["*.py", "py", (), ("",), (".",)])
def test_patterns_are_a_list(folder, cache, patterns):
    with pytest.raises(ConfigError, match=r"patterns=.*list of file patterns"):
        Corpus.open(folder, cache, patterns=patterns)


def test_too_small_a_corpus_is_refused_whichever_split_is_asked(tmp_path, cache):
    corpus = Corpus.open(write(tmp_path / "short.txt", "x" * 100), cache)  # streams of 91 and 11 bytes
    rng = np.random.default_rng(0)
    for split in ("train", "heldout"):
        assert corpus.sample(rng, 1, 10, split=split).tokens.shape == (1, 10)
        with pytest.raises(DataError, match=r"length=11.: a window needs 12 bytes, the heldout split has 11"):
            corpus.sample(rng, 1, 11, split=split)
    assert len(list(corpus.heldout(10))) == 1
    with pytest.raises(DataError, match="a window needs 12 bytes, the heldout split has 11"):
        corpus.heldout(11)
    one = Corpus.open(write(tmp_path / "one.txt", "x"), cache)
    with pytest.raises(DataError, match="the train split has 1"):
        one.heldout(1)


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_windows_are_cut_from_their_split_and_repeat_with_their_seed(folder, cache, split):
    corpus = Corpus.open(folder, cache)
    batch = corpus.sample(np.random.default_rng(3), 16, 24, split=split)
    text = corpus.streams[split].tobytes()
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        assert bytes(tokens.tolist()) + bytes(targets[-1:].tolist()) in text
        assert (tokens[1:] == targets[:-1]).all()
    assert batch.mask.all()
    again = Corpus.open(folder, cache).sample(np.random.default_rng(3), 16, 24, split=split)
    assert np.array_equal(again.tokens, batch.tokens)
    assert np.array_equal(again.targets, batch.targets)
    assert not np.shares_memory(batch.tokens, batch.targets)


def test_every_start_is_drawn_the_first_and_the_last_among_them(tmp_path, cache):
    corpus = Corpus.open(write(tmp_path / "abc.txt", bytes(range(32, 126))), cache, held_out=0.5)
    stream = corpus.streams["train"]
    firsts = corpus.sample(np.random.default_rng(0), 5000, 30).tokens[:, 0]
    assert set(firsts.tolist()) == set(stream[: stream.size - 30].tolist())


@settings(deadline=None, max_examples=40)
@given(size=st.integers(30, 200), length=st.integers(1, 12), batch_size=st.integers(1, 5))
def test_heldout_windows_score_every_byte_exactly_once(tmp_path_factory, size, length, batch_size):
    root = tmp_path_factory.mktemp("heldout")
    content = bytes(np.random.default_rng(size).integers(1, 128, size, dtype=np.uint8))
    corpus = Corpus.open(write(root / "any.txt", content), root / "cache", held_out=0.5)
    batches = list(corpus.heldout(length, batch_size=batch_size))
    tokens, targets, mask = (
        np.concatenate([getattr(b, name) for b in batches]) for name in ("tokens", "targets", "mask")
    )
    stream = corpus.streams["heldout"]
    assert targets[mask].tolist() == stream[1:].tolist()
    assert tokens[mask].tolist() == stream[:-1].tolist()
    assert not targets[~mask].any()
    assert mask[:-1].all()
    assert all(len(batch.tokens) == batch_size for batch in batches[:-1])


def test_a_limited_number_of_windows_is_spread_over_the_split(folder, cache):
    write(folder / "numbers.txt", " ".join(map(str, range(1000))))
    corpus = Corpus.open(folder / "numbers.txt", cache, held_out=0.5)
    every = [batch.tokens.tobytes() for batch in corpus.heldout(16)]
    few = [every.index(batch.tokens.tobytes()) for batch in corpus.heldout(16, max_windows=4)]
    assert few == [i * len(every) // 4 for i in range(4)]
    assert len(list(corpus.heldout(16, max_windows=10**6))) == len(every)


def test_wrong_arguments_are_refused_at_the_call(folder, cache):
    corpus = Corpus.open(folder, cache)
    rng = np.random.default_rng(0)
    with pytest.raises(ConfigError, match=r"Corpus.sample.split='held_out'.*'heldout'"):
        corpus.sample(rng, 1, 8, split="held_out")
    with pytest.raises(ConfigError, match=r"Corpus.sample.batch_size=0"):
        corpus.sample(rng, 0, 8)
    with pytest.raises(ConfigError, match=r"numpy.random.default_rng"):
        corpus.sample(0, 1, 8)
    with pytest.raises(ConfigError, match=r"Corpus.heldout.length=0"):
        corpus.heldout(0)
    with pytest.raises(ConfigError, match=r"Corpus.heldout.max_windows=0"):
        corpus.heldout(8, max_windows=0)


def test_the_standard_library_is_a_corpus_on_every_machine(cache):
    corpus = Corpus.standard_library(cache)
    found = names(corpus)
    assert "dataclasses.py" in found
    assert "json/decoder.py" in found
    assert all(name.endswith(".py") for name in found)
    banned = {"test", "tests", "idlelib", "turtledemo", "lib2to3", "site-packages", "__pycache__"}
    assert not any(banned & set(name.split("/")[:-1]) for name in found)
    assert sum(stream.size for stream in corpus.streams.values()) > 3_000_000
    assert Corpus.standard_library(cache).digest == corpus.digest
    assert corpus.sample(np.random.default_rng(0), 4, 256).tokens.max() < corpus.vocab_size == 256


def test_the_standard_library_counts_what_it_skips(tmp_path, cache, monkeypatch):
    root = tmp_path / "lib"
    write(root / "good.py", "pass\n" * 9)
    write(root / "fine.py", "import this\n" * 9)
    write(root / "latin.py", b"# gr\xfc\xdfe\n")
    write(root / "test" / "test_this.py", "assert True\n")
    write(root / "notes.txt", "no source")
    monkeypatch.setattr("sysconfig.get_path", {"stdlib": str(root)}.get)
    corpus = Corpus.standard_library(cache)
    assert names(corpus) == ["fine.py", "good.py"]
    assert corpus.num_skipped == 1
    assert "1 files skipped" in repr(corpus)
    with pytest.raises(DataError, match=r"latin.py' is not UTF-8"):
        Corpus.open(root, cache)

"""What ``maclaurin study`` cannot do: one message, exit code 2, no traceback, and nothing stored is touched.

Run: pytest tests/cli/test_study_refusals.py
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from maclaurin.cli import main
from maclaurin.store import Store
from tiny.launch import NUM_ARMS, Finished, check_store, execute, finish, prepare, run, undisturbed

pytestmark = pytest.mark.xdist_group("tiny")


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run the command in a folder with the tiny study; it must refuse, and the message is returned."""
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)

    def attempt(*words: str) -> str:
        code = main(["study", *words])
        said = capsys.readouterr()
        assert code == 2
        assert said.out == ""
        assert said.err.startswith("error: ")
        assert "Traceback" not in said.err
        assert "fault of maclaurin" not in said.err
        return said.err

    return attempt


def change(**language: object) -> None:
    """Change the tiny study's language section in the current folder."""
    values = yaml.safe_load(Path("tiny.yaml").read_text("utf-8"))
    values["language"] |= language
    Path("tiny.yaml").write_text(yaml.safe_dump(values), "utf-8")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize(
    ("corpus", "content", "words"),
    [
        ("none.txt", None, "Corpus 'none.txt': there is no such file or folder"),
        ("empty.txt", b"", "Corpus 'empty.txt': it is empty"),
        ("binary.bin", b"\x7fELF\x00\x01", "byte 4 of 'binary.bin' is NUL, so this is not a text file"),
        ("latin.txt", "café".encode("latin-1") * 100, "byte 3 of 'latin.txt' is not UTF-8"),
        ("short.txt", b"a few words", "a window needs 33 bytes"),
        ("folder", None, "Corpus 'folder': no text in files like"),
    ],
)
def test_a_corpus_that_is_none_is_refused_and_the_folder_stays_free(
    refused, corpus: str, content: bytes | None, words: str
) -> None:
    """Mending the path makes another study: it must find the folder free."""
    if content is not None:
        Path(corpus).write_bytes(content)
    if corpus == "folder":
        Path(corpus).mkdir()
    change(corpus=corpus)
    message = refused("tiny.yaml", "--out", "out")
    assert words in message
    assert len(message.splitlines()) <= 3
    assert not Path("out/results.sqlite").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["quickstrat"], "did you mean 'quickstart'?"),
        (["none.yaml"], "study 'none.yaml' cannot be read: No such file or directory."),
        ([""], "study '' does not exist"),
        (["tiny.yaml", "--seed", "-1"], "seed"),
        (["tiny.yaml", "--seed", "1" + "0" * 30], "seed: Input should be less than"),
        (["tiny.yaml", "--seed", "one"], "Invalid value for '--seed'"),
        (["tiny.yaml", "--workers", "0"], "workers"),
        (["tiny.yaml", "--sed", "1"], "--seed"),
        (["tiny.yaml", "more.yaml"], "more.yaml"),
    ],
)
def test_words_that_mean_nothing(refused, words: list[str], said: str) -> None:
    assert said in refused(*words)
    assert not Path("maclaurin-runs").exists()


def test_a_mechanism_that_cannot_be_is_refused_before_anything_is_written(refused) -> None:
    change(mechanisms=["softmax", "taylor:3/sum"])
    message = refused("tiny.yaml", "--out", "out")
    assert "language.mechanisms.1: taylor:3/sum asks to divide by the sum of weights that may be negative" in message
    assert "Use sum:signed to accept that, an even order" in message
    assert not Path("out").exists()


@pytest.mark.parametrize("out", ["text.txt", "text.txt/deeper"])
def test_a_file_in_the_place_of_the_folder(refused, out: str) -> None:
    before = Path("text.txt").read_bytes()
    assert "an output folder is needed and a file is in its place. Choose another --out." in (
        refused("tiny.yaml", "--out", out)
    )
    assert Path("text.txt").read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="not run: root may write anywhere")
def test_a_folder_without_write_permission(refused) -> None:
    Path("out").mkdir(mode=0o555)
    assert "out" in refused("tiny.yaml", "--out", "out")
    assert "out" in refused("tiny.yaml", "--out", "out/deeper")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="not run: no /proc here")
def test_a_place_where_nobody_may_write(refused) -> None:
    assert "/proc/maclaurin" in refused("tiny.yaml", "--out", "/proc/maclaurin")


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"SQLite format 3\x00" + bytes(200)])
def test_a_file_that_is_no_store_is_left_alone(refused, content: bytes) -> None:
    Path("out").mkdir()
    Path("out/results.sqlite").write_bytes(content)
    assert "is not a store of maclaurin" in refused("tiny.yaml", "--out", "out")
    assert contents(Path("out")) == {"results.sqlite": content}


# -- another study in the folder ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("difference", ["seed", "setting", "name", "corpus that is none"])
def test_another_study_in_the_folder_is_refused_and_nothing_there_changes(
    refused, tmp_path_factory: pytest.TempPathFactory, difference: str
) -> None:
    root, _ = undisturbed(tmp_path_factory)
    shutil.copytree(root / "maclaurin-runs" / "tiny", "out")
    before = contents(Path("out"))
    words = ["tiny.yaml", "--out", "out"]
    if difference == "seed":
        words += ["--seed", "3"]
    elif difference == "setting":
        change(num_windows=3)
    elif difference == "name":
        Path("tiny.yaml").write_text(Path("tiny.yaml").read_text("utf-8").replace("name: tiny", "name: small"), "utf-8")
    else:
        change(corpus="none.txt")
    message = refused(*words)
    assert "holds another study" in message
    assert "Nothing was changed. Choose another --out." in message
    assert contents(Path("out")) == before
    check_store(Path("out"), num_arms=NUM_ARMS)


# -- in a process of its own -------------------------------------------------------------------------------------------


def test_a_refusal_of_a_whole_process(tmp_path: Path) -> None:
    prepare(tmp_path)
    (tmp_path / "text.txt").unlink()
    finished = run(tmp_path, "tiny.yaml", "--json")
    assert finished == Finished(
        2,
        "",
        "error: Corpus 'text.txt': there is no such file or folder. Give the path of a text file or folder.\n",
    )


def full_disk(folder: Path) -> tuple[Finished, str]:
    """Run the tiny study where there is too little room, and keep its folder as ``kept``; what the message must say.

    A file system of 184 KiB that exists in a mount namespace of the command only; where the system has no such thing,
    a limit of the size of files.
    """
    study = f"{sys.executable} -m maclaurin study tiny.yaml --out out --json; code=$?; cp -r out kept; exit $code"
    if shutil.which("unshare"):
        mount = "mkdir out && mount -t tmpfs -o size=184k tmpfs out || exit 99"
        finished = finish(execute(folder, "unshare", "-rm", "sh", "-c", f"{mount}; {study}"))
        if not finished.err.startswith("unshare:") and finished.code != 99:
            return finished, "the disk is full. What was stored before is safe; free some space and run this again."
    shutil.rmtree(folder / "out", ignore_errors=True)
    blocks = 120 * 1024 // 512
    return finish(execute(folder, "sh", "-c", f"ulimit -f {blocks}; {study}")), "What was stored before is safe."


def test_a_full_disk_is_said_in_one_line_and_loses_nothing(tmp_path: Path) -> None:
    prepare(tmp_path)
    values = yaml.safe_load((tmp_path / "tiny.yaml").read_text("utf-8"))
    kept = {key: value for key, value in values.items() if key not in ("recall", "language")}  # training fills no disk
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(kept), "utf-8")
    finished, words = full_disk(tmp_path)
    assert finished.code == 2, finished.err
    assert finished.out == ""
    assert "Traceback" not in finished.err
    last = finished.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert last.endswith(words)
    check_store(tmp_path / "kept")
    with Store.open_existing(tmp_path / "kept") as store:
        results = store.results()
    assert 0 < len(results) < NUM_ARMS - 6
    assert all(each.measurements for each in results)

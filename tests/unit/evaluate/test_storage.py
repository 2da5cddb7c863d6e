"""States in files: what comes back is what was saved, and every other file is refused with the reason.

Run: pytest tests/unit/evaluate/test_storage.py -q
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, safe_open, save_file
from torch import Tensor

from laws.cases import draw, members, named
from maclaurin import Mechanism, State, attend
from maclaurin.algebra import L2, CallableMap, Power, Similarity, parse
from maclaurin.errors import StateError
from maclaurin.evaluate import storage

TEXTS = (
    "exp/l2+valuegate+decay+outgate:after",
    "taylor:2@mean/sum+window:4:2",
    "elu1/sum+decay+window:5",
    "power:2/sum+decay",
    "exp/sum+window:8:2",
    "exp/cumgate+decay",
    "taylor:0/sum",
    "taylor:0/none+decay+window:2:1",
    "poly:0.25,0,0,-2/rms",
    "taylor:2:clamp=0.5@mean/sum",
    "features>taylor:2/length:learned",
)  # fmt: skip
CASES = named((text, parse(text)) for text in TEXTS)


def warm(mechanism: Mechanism, dtype: torch.dtype = torch.float64) -> State:
    """A state after a few keys, some of them hidden."""
    inputs = draw(2, batch=2, heads=4, kv_heads=2, queries=7, key_dim=3, value_dim=5, dtype=dtype).of(mechanism)
    mask = torch.arange(7) >= torch.tensor([0, 4])[:, None]
    found = attend(mechanism, *inputs.qkv, **inputs.operands, mask=mask, return_state=True)
    assert found.state is not None
    return found.state


def assert_equal(one: State, other: State) -> None:
    assert one.mechanism == other.mechanism
    mine, theirs = one.named_tensors(), other.named_tensors()
    assert list(mine) == list(theirs)
    for path, each in mine.items():
        assert each.dtype == theirs[path].dtype, path
        assert torch.equal(each, theirs[path]), path


@pytest.mark.parametrize("mechanism", [*CASES, *members()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_state_comes_back_as_it_was(mechanism: Mechanism, dtype: torch.dtype, tmp_path: Path) -> None:
    empty = State.empty(mechanism, batch_size=2, num_kv_heads=3, key_dim=4, value_dim=5, dtype=dtype)
    for state in (warm(mechanism, dtype), empty):
        state.save(tmp_path / "state.safetensors")
        assert_equal(State.load(tmp_path / "state.safetensors"), state)
    assert os.listdir(tmp_path) == ["state.safetensors"]


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    mechanism = parse("taylor:2@mean/sum+decay+window:4:2")
    inputs, state = draw(3, batch=2, heads=4, kv_heads=2, queries=5, key_dim=3, value_dim=5), warm(mechanism)
    inputs = inputs.of(mechanism)
    state.save(str(tmp_path / "state"))
    arguments = [attend(mechanism, *inputs.qkv, **inputs.operands, state=each).output for each in
                 (state, State.load(str(tmp_path / "state")))]  # fmt: skip
    assert torch.equal(*arguments)


def test_what_shares_memory_or_carries_gradients_is_saved_as_numbers(tmp_path: Path) -> None:
    state = warm(parse("exp/sum+window:3:1"))
    shared = state.map_tensors(lambda each: each[:1].expand_as(each) if each.is_floating_point() else each)
    leaves = shared.map_tensors(lambda each: each.requires_grad_() if each.is_floating_point() else each)
    leaves.save(tmp_path / "state")
    found = State.load(tmp_path / "state")
    assert_equal(found, shared.detach())
    assert not any(each.requires_grad for each in found.tensors())


def test_the_file_is_plain_safetensors(tmp_path: Path) -> None:
    state = warm(parse("taylor:2/sum"))
    state.save(tmp_path / "state")
    assert set(load_file(tmp_path / "state")) == set(state.named_tensors())
    with safe_open(tmp_path / "state", "pt") as file:
        assert file.metadata() == {
            "format": "maclaurin.state",
            "version": "1",
            "mechanism": "taylor:2/sum",
            "sizes": "[2, 2, 3, 5, 0]",
            "dtype": "torch.float64",
        }


def test_what_was_loaded_does_not_hang_on_the_file(tmp_path: Path) -> None:
    state = warm(parse("exp/sum"))
    state.save(tmp_path / "state")
    found = State.load(tmp_path / "state")
    size = (tmp_path / "state").stat().st_size
    with (tmp_path / "state").open("r+b") as file:  # the same file overwritten, not replaced by another
        file.write(b"\xff" * size)
    assert_equal(found, state)


def test_the_device_is_an_argument(tmp_path: Path) -> None:
    state = warm(parse("exp/sum+window:3:1"))
    state.save(tmp_path / "state")
    assert State.load(tmp_path / "state", device="cpu").device == torch.device("cpu")
    assert State.load(tmp_path / "state", device=torch.device("meta")).device == torch.device("meta")


# ------------------------------------------------------------------------------------------------- saving


def test_a_callable_map_cannot_be_saved(tmp_path: Path) -> None:
    mechanism = Mechanism(Similarity(Power(1), CallableMap(torch.relu, True)), L2())
    state = State.empty(mechanism, batch_size=1, num_kv_heads=1, key_dim=2, value_dim=2)
    with pytest.raises(StateError, match="cannot be saved: its feature map is a function, which has no text"):
        state.save(tmp_path / "state")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_does_not_exist_and_one_in_the_file_s_place(tmp_path: Path) -> None:
    state = warm(parse("taylor:2/sum"))
    with pytest.raises(StateError, match=r"State\.save: .*cannot be written \(No such file or directory\)"):
        state.save(tmp_path / "nowhere" / "state")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StateError, match="cannot be written"):
        state.save(tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = warm(parse("taylor:2/sum"))
    state.save(tmp_path / "state")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(*((os, "fsync") if broken == "fsync" else (Path, "replace")), full)
        with pytest.raises(StateError, match=r"cannot be written \(No space left on device\); what was there is unch"):
            warm(parse("exp/sum")).save(tmp_path / "state")
    assert os.listdir(tmp_path) == ["state"]
    assert_equal(State.load(tmp_path / "state"), state)


# ------------------------------------------------------------------------------------------------- refusals


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        StateError, match=r"State\.load: .*state cannot be read \(No such file or directory.*\)\.\n  Give"
    ):
        State.load(tmp_path / "state")
    with pytest.raises(StateError, match=re.escape(str(tmp_path))):
        State.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x02}q\x00.", b"\xff" * 100])
def test_a_file_of_something_else(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(StateError, match=r"is no safetensors file, or it is damaged .*\n  Give a file that State"):
        State.load(tmp_path / "state")


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    warm(parse("taylor:2/sum")).save(tmp_path / "state")
    data = (tmp_path / "state").read_bytes()
    for kept in (len(data) - 1, len(data) // 2, 20):
        (tmp_path / "state").write_bytes(data[:kept])
        with pytest.raises(StateError, match="no safetensors file, or it is damaged"):
            State.load(tmp_path / "state")


def test_safetensors_of_something_else(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(3)}, tmp_path / "state")
    with pytest.raises(StateError, match=r"is a safetensors file, but holds no state of maclaurin\.\n  Give a file"):
        State.load(tmp_path / "state")


def changed(path: Path, tensors: Callable[[dict[str, Tensor]], None], **metadata: str | None) -> Path:
    """A saved state with some of its tensors and metadata changed; None takes an entry out."""
    warm(parse("taylor:1/sum:signed+window:3:1")).save(path)
    with safe_open(path, "pt") as file:
        header = {**file.metadata(), **metadata}
    content = load_file(path)
    tensors(content)
    save_file(content, path, {key: each for key, each in header.items() if each is not None})
    return path


def nothing(tensors: dict[str, Tensor]) -> None:
    """No change."""


def test_another_version(tmp_path: Path) -> None:
    path = changed(tmp_path / "state", nothing, version="2")
    with pytest.raises(StateError, match=r"has layout version 2, and this maclaurin reads 1\.\n  Upgrade maclaurin"):
        State.load(path)
    with pytest.raises(StateError, match="has layout version None"):
        State.load(changed(tmp_path / "state", nothing, version=None))


@pytest.mark.parametrize(
    "metadata",
    [
        {"mechanism": "taylr:2/sum"},
        {"mechanism": "taylor:1/sum"},  # legal words, illegal together
        {"mechanism": "taylor:6/sum"},  # has no finite state
        {"mechanism": None},
        {"dtype": "torch.int64"},
        {"dtype": "float64"},
        {"dtype": None},
        {"sizes": "[2, 2, 3, 5]"},
        {"sizes": "2, 2"},
        {"sizes": '[2, 2, "3", 5, 4]'},
        {"sizes": "[2, 2, 3.5, 5, 4]"},
        {"sizes": "[-2, 2, 3, 5, 4]"},
        {"sizes": json.dumps([10**30, 2, 3, 5, 4])},
        {"sizes": json.dumps([2**60, 2**60, 3, 5, 4])},
        {"sizes": "{}"},
        {"sizes": None},
    ],
    ids=str,
)
def test_a_header_that_cannot_be_read(metadata: dict[str, str | None], tmp_path: Path) -> None:
    path = changed(tmp_path / "state", nothing, **metadata)
    with pytest.raises(
        StateError, match=r"State\.load: the header of .*state cannot be read \(.*\)\.\n  It was written"
    ):
        State.load(path)


def test_tensors_that_are_not_those_of_the_header(tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        del tensors["cache.key"]
        tensors["more"] = torch.ones(1)
        tensors["cache.value"] = tensors["cache.value"].float()
        tensors["moments.numerators.0"] = tensors["moments.numerators.0"][..., :2].contiguous()

    with pytest.raises(StateError) as caught:
        State.load(changed(tmp_path / "state", change))
    assert str(caught.value) == (
        f"State.load: {tmp_path / 'state'} does not hold what its own header says: cache.key is missing; "
        "cache.value is torch.float32 [2, 2, 4, 5], not torch.float64 [2, 2, 4, 5]; "
        "moments.numerators.0 is torch.float64 [2, 2, 1, 2], not torch.float64 [2, 2, 1, 5]; "
        "more is not one of its tensors.\n"
        "  It was changed after State.save wrote it; save the state again."
    )


@pytest.mark.parametrize("sizes", ["[1, 2, 3, 5, 4]", "[2, 2, 4, 5, 4]", "[0, 0, 0, 0, 0]"])
def test_sizes_that_are_not_those_of_the_tensors(sizes: str, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="does not hold what its own header says"):
        State.load(changed(tmp_path / "state", nothing, sizes=sizes))


def test_the_comparison_here_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = warm(parse("taylor:2/sum"))
    original = storage.write
    monkeypatch.setattr(
        storage, "write", lambda path, tensors, header: original(path, {n: t + 1 for n, t in tensors.items()}, header)
    )
    state.save(tmp_path / "state")
    with pytest.raises(AssertionError):
        assert_equal(State.load(tmp_path / "state"), state)

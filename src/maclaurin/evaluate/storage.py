"""States in files: safetensors, which holds numbers and text and runs nothing when it is read.

Tensors stand under their paths in the state; the header's metadata says what they are and by which layout.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from maclaurin.atomic import replace_file
from maclaurin.errors import StateError
from maclaurin.evaluate.tensor_tree import TensorTree

#: What tells our files from others, and which layout they have.
FORMAT, VERSION = "maclaurin.state", "1"

_Tree = TypeVar("_Tree", bound=TensorTree)


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors so that ``path`` holds either what it held before or all of them.

    Raises:
        StateError: the file cannot be written; ``path`` is then as it was.
    """
    from safetensors.torch import save

    where = Path(path)
    own = {name: each.detach().to("cpu", copy=True).contiguous() for name, each in tensors.items()}
    data = save(own, {**metadata, "format": FORMAT, "version": VERSION})
    try:
        replace_file(where, data)
    except OSError as error:
        raise StateError(
            f"State.save: {where} cannot be written ({error.strerror or error}); what was there is unchanged.\n"
            "  Give a path in a folder that exists, with space and write permission."
        ) from error


def read(path: str | os.PathLike[str], device: torch.device | str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors on ``device``, metadata) of a file that :func:`write` wrote.

    Raises:
        StateError: no such file, not one of ours, damaged, or of another version.
    """
    from safetensors import SafetensorError, safe_open

    where = Path(path)
    try:
        with safe_open(where, framework="pt", device="cpu") as file:
            metadata: dict[str, str] = dict(file.metadata() or {})
            _check_header(where, metadata)
            # the file is mapped into memory: a copy does not change when it does
            return {name: file.get_tensor(name).to(device, copy=True) for name in file.keys()}, metadata
    except OSError as error:
        raise StateError(
            f"State.load: {where} cannot be read ({error.strerror or error}).\n"
            "  Give the path of a file that State.save wrote."
        ) from error
    except SafetensorError as error:
        raise StateError(
            f"State.load: {where} is no safetensors file, or it is damaged ({error}).\n"
            "  Give a file that State.save wrote; if it is one, it was cut off when it was copied: copy it again."
        ) from error


def filled(tree: _Tree, tensors: Mapping[str, Tensor], path: str | os.PathLike[str]) -> _Tree:
    """``tree`` with the tensors of a file in place of its own.

    Args:
        tree: what is expected; its tensors give names, shapes and dtypes, and may be on the meta device.
        tensors: by path.
        path: of the file, for messages.

    Raises:
        StateError: tensors are missing, are too many, or are not as expected; all of them are named.
    """
    expected = tree.named_tensors()
    wrong = [f"{name} is missing" for name in expected if name not in tensors]
    wrong += [f"{name} is not one of its tensors" for name in tensors if name not in expected]
    for name in expected.keys() & tensors.keys():
        found, wanted = (f"{each.dtype} {list(each.shape)}" for each in (tensors[name], expected[name]))
        if found != wanted:
            wrong.append(f"{name} is {found}, not {wanted}")
    if wrong:
        raise StateError(
            f"State.load: {Path(path)} does not hold what its own header says: {'; '.join(sorted(wrong))}.\n"
            "  It was changed after State.save wrote it; save the state again."
        )
    own = iter([tensors[name] for name in expected])
    return tree.map_tensors(lambda _: next(own))


def _check_header(where: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise StateError(
            f"State.load: {where} is a safetensors file, but holds no state of maclaurin.\n"
            "  Give a file that State.save wrote."
        )
    if metadata.get("version") != VERSION:
        raise StateError(
            f"State.load: {where} has layout version {metadata.get('version')}, and this maclaurin reads {VERSION}.\n"
            "  Upgrade maclaurin, or save the state again with this one."
        )

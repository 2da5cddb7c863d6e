"""The window: which keys are near, counted by a loop, and numbers out of range.

Run: pytest tests/unit/algebra/test_window.py -q
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from maclaurin.algebra import Window
from maclaurin.errors import MechanismError

T = S = 11


def looped(window: Window, visible: Tensor) -> Tensor:
    """Query by query: the first S and the last W of the keys it sees."""
    out = torch.zeros_like(visible)
    for row in range(visible.shape[0]):
        seen = [s for s in range(visible.shape[1]) if visible[row, s]]
        for s in {*seen[: window.sinks], *seen[-window.width :]}:
            out[row, s] = True
    return out


@pytest.mark.parametrize("width", [1, 2, 5, 30])
@pytest.mark.parametrize("sinks", [0, 1, 3, 30])
def test_near_keys_are_the_last_and_the_first_of_the_visible(width: int, sinks: int) -> None:
    window = Window(width, sinks)
    causal = torch.ones(T, S, dtype=torch.bool).tril()
    holes = causal & (torch.arange(S) % 3 != 1)  # hidden keys are skipped when counting
    none = torch.zeros(T, S, dtype=torch.bool)
    for visible in (causal, holes, none):
        assert torch.equal(window.near(visible), looped(window, visible))
    both = window.near(torch.stack([causal, holes])[:, None])
    assert torch.equal(both[1, 0], looped(window, holes))


def test_a_key_that_is_sink_and_in_the_window_counts_once() -> None:
    assert Window(3, 2).near(torch.ones(1, 4, dtype=torch.bool)).sum() == 4
    assert Window(3, 2).num_slots == 5


@pytest.mark.parametrize(
    ("width", "sinks", "message"),
    [
        (0, 0, r"window:0:0 asks for the width 0\.\n  It must be a whole number >= 1, for instance window:64:4"),
        (-3, 0, r"the width -3"),
        (2.5, 0, r"the width 2\.5"),
        (True, 0, r"the width True"),
        (4, -1, r"window:4:-1 asks for the number of sinks -1\.\n  It must be a whole number >= 0"),
        (4, 1.0, r"the number of sinks 1\.0"),
    ],
)
def test_numbers_out_of_range_are_refused(width: object, sinks: object, message: str) -> None:
    with pytest.raises(MechanismError, match=message):
        Window(width, sinks)


def test_formula() -> None:
    assert Window(4, 2).formula == "the last 4 and the first 2 keys"
    assert Window(4).formula == "the last 4 keys"

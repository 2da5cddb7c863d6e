"""Interleaving, spreads and ratios, with a clock that the test turns.   Run: pytest tests/unit/bench"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from maclaurin.bench.clock import interleave, processor_time, ratio, spread, timer_of, torch_threads, wall_time
from maclaurin.bench.crossover import crossover


class Fake:
    """A clock on which each function takes a known time; remembers the order of what it timed."""

    def __init__(self, seconds: dict[Callable[[], object], float]) -> None:
        self.seconds = seconds
        self.order: list[tuple[Callable[[], object], int]] = []

    def __call__(self, call: Callable[[], object], repeats: int) -> float:
        self.order.append((call, repeats))
        return self.seconds[call] * repeats


def one() -> None: ...
def two() -> None: ...


def test_seconds_are_of_one_call_and_a_measurement_is_long_enough() -> None:
    timer = Fake({one: 1e-3, two: 0.5})
    seconds = interleave({"one": one, "two": two}, 3, timer, least_seconds=0.02)
    assert seconds["one"] == pytest.approx([1e-3] * 3)
    assert seconds["two"] == pytest.approx([0.5] * 3)
    measured = timer.order[-6:]
    assert all(repeats * 1e-3 >= 0.02 for call, repeats in measured if call is one)
    assert all(repeats == 1 for call, repeats in measured if call is two)


def test_every_round_times_each_once_and_begins_with_another() -> None:
    timer = Fake({one: 1.0, two: 1.0})
    interleave({"one": one, "two": two}, 4, timer)
    rounds = [timer.order[-8:][index : index + 2] for index in range(0, 8, 2)]
    assert [first[0] for first, _ in rounds] == [one, two, one, two]
    assert all({first[0], second[0]} == {one, two} for first, second in rounds)


def test_a_clock_that_stands_still_ends() -> None:
    assert interleave({"one": one}, 1, Fake({one: 0.0})) == {"one": [0.0]}


def test_ratio_cancels_a_machine_that_slows_down() -> None:
    assert ratio([2.0, 4.0, 8.0], [1.0, 2.0, 4.0]) == 2.0
    assert ratio([2.0, 4.0, 90.0], [1.0, 2.0, 4.0]) == 2.0  # and one round that something disturbed


def test_spread() -> None:
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]) == (3.0, 2.0, 4.0)
    assert spread([7.0]) == (7.0, 7.0, 7.0)


def test_threads_are_put_back_even_after_an_error() -> None:
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError), torch_threads(before + 1):
        1 / 0  # noqa: B018
    assert torch.get_num_threads() == before


def test_the_clock_says_what_it_measures() -> None:
    assert timer_of("cpu", 1) == (processor_time, "CPU time of one thread")
    assert timer_of("cpu", 2) == (wall_time, "wall time of 2 threads")


@pytest.mark.parametrize(
    ("ratios", "length"),
    [
        ({256: 2.0, 1024: 0.5}, 512.0),
        ({256: 4.0, 512: 1.0, 1024: 0.5}, 512.0),
        ({256: 0.5, 512: 2.0, 2048: 0.5}, 1024.0),  # it lost again in between: from there on
        ({256: 0.9, 512: 0.5}, 256.0),
        ({256: 0.5, 512: 1.5}, None),
        ({}, None),
    ],
)
def test_crossover(ratios: dict[int, float], length: float | None) -> None:
    assert crossover(ratios) == (None if length is None else pytest.approx(length))

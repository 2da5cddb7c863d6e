"""What to compare, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from maclaurin.errors import ConfigError, nearest

WORKS = ("forward", "training", "decode", "memory")
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Plan:
    """Sizes and kinds of a comparison.

    Args:
        mechanisms: names or texts.
        lengths: tokens.
        head_sizes: numbers per head of query, key and value.
        heads: per example.
        batch: examples.
        dtypes: names.
        works: ``forward``, ``training`` (forward and backward), ``decode`` (one step), ``memory``.
        methods: of :func:`maclaurin.attend`.
        without: subjects to leave out, by name.
        rounds: measurements of each.
        threads: of torch; with 1 CPU time is measured, with more wall time.
        device: ``cpu`` or ``cuda``.
        budget_seconds: start no cell that would end later; None: run all.
    """

    mechanisms: tuple[str, ...] = ("exp/l2", "taylor:2/sum", "elu1/sum")
    lengths: tuple[int, ...] = (256, 1024, 2048)
    head_sizes: tuple[int, ...] = (64,)
    heads: int = 4
    batch: int = 1
    dtypes: tuple[str, ...] = ("float32",)
    works: tuple[str, ...] = WORKS
    methods: tuple[str, ...] = ("auto",)
    without: tuple[str, ...] = ()
    rounds: int = 9
    threads: int = 1
    device: str = "cpu"
    budget_seconds: float | None = None

    def __post_init__(self) -> None:
        for name, numbers in (("length", self.lengths), ("head-size", self.head_sizes)):
            for each in numbers:
                _positive(name, each)
        for name in ("heads", "batch", "rounds", "threads"):
            _positive(name, getattr(self, name))
        _known("work", self.works, WORKS)
        _known("dtype", self.dtypes, DTYPES)
        for name in ("mechanisms", "lengths", "head_sizes", "dtypes", "works", "methods"):
            _several(name, getattr(self, name))
        _check_device(self.device)


def quick(plan: Plan) -> Plan:
    """The plan with fewer rounds that stops starting cells in time to end within a minute."""
    return replace(plan, rounds=min(plan.rounds, 3), budget_seconds=40.0)


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"bench: --{name} {value} leaves nothing to measure.\n  Give a whole number >= 1.")


def _known(name: str, given: tuple[str, ...], legal: tuple[str, ...]) -> None:
    for each in given:
        if each not in legal:
            raise ConfigError(f"bench: --{name} {each!r} does not exist: {nearest(each, legal, limit=len(legal))}")


def _several(name: str, values: tuple[object, ...]) -> None:
    if not values:
        raise ConfigError(f"bench: no {name} were given, so there is nothing to measure.\n  Give at least one.")
    twice = [each for index, each in enumerate(values) if each in values[:index]]
    if twice:
        raise ConfigError(f"bench: {twice[0]!r} was given twice among the {name}.\n  Give each once.")


def _check_device(name: str) -> None:
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"bench: --device {name!r} cannot be timed.\n  Give cpu or cuda.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"bench: --device {name} was asked for, and torch {torch.__version__} finds no CUDA device here.\n"
            "  Use --device cpu, or a machine and a build of torch with CUDA."
        )

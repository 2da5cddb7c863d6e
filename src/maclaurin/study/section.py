"""What every section of a study is: settings that plan arms, run one, and say what the rows show."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

from maclaurin.errors import ConfigError, MaclaurinError
from maclaurin.store import Arm, ArmResult, ResultRow, Verdict

if TYPE_CHECKING:
    from maclaurin.algebra import Recipe


class Section(BaseModel, ABC):
    """Base of the sections. A section holds settings only; its arms carry them all, so that any process can run one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    #: The section's name in tables and in ``--json``.
    name: ClassVar[str]

    def check(self) -> None:
        """Refuse, before anything runs, what the types of the settings let through.

        Raises:
            MaclaurinError: naming the setting first.
        """

    @abstractmethod
    def arms(self, *, seed: int, folder: Path) -> list[Arm]:
        """Every arm, in the order of the tables. ``folder`` is where prepared data may be kept."""

    @abstractmethod
    def run(self, arm: Arm, *, folder: Path, on_step: Callable[[int], None]) -> ArmResult:
        """Run one arm; ``on_step`` is called with the number of finished steps, of ``num_steps``."""

    @abstractmethod
    def num_steps(self, arm: Arm) -> int:
        """Units of progress in one arm, in ``on_step``'s count; also what orders the queue, longest first."""

    @abstractmethod
    def verdict(self, rows: Sequence[ResultRow]) -> Verdict:
        """What the rows show, and how far their seeds, trials and budget carry it."""

    def arm(self, *, mechanism: str, task: str, seed: int, **settings: Any) -> Arm:
        """An arm of this section; its key is the digest of everything that decides its result."""
        config = {"section": self.name, "mechanism": mechanism, "task": task, "seed": seed, **settings}
        return Arm(digest_of(config), self.name, mechanism, task, seed, config)


def digest_of(config: dict[str, Any]) -> str:
    """Digest of JSON values, the same in every process."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, allow_nan=False).encode()).hexdigest()[:20]


def check_mechanisms(mechanisms: Sequence[str], build: Callable[[str], Recipe], **shape: int) -> None:
    """Make one layer for each mechanism, so that a name or a shape that cannot be is refused before anything runs.

    Args:
        mechanisms: names or texts.
        build: the recipe that is trained of one.
        **shape: of the layer.

    Raises:
        ConfigError: with the place of the mechanism.
    """
    from maclaurin.nn import AttentionLayer

    for index, each in enumerate(mechanisms):
        try:
            AttentionLayer(build(each), **shape)
        except ConfigError as error:
            asked = ", ".join(f"{name}={value}" for name, value in shape.items())
            raise ConfigError(f"mechanisms.{index} with {asked}: {error}") from None
        except MaclaurinError as error:
            raise ConfigError(f"mechanisms.{index}: {error}") from None


def find(
    rows: Sequence[ResultRow], *, metric: str, mechanism: str | None = None, task: str | None = None
) -> list[ResultRow]:
    """The rows of a metric, of one mechanism or task if given."""
    return [
        row for row in rows if row.metric == metric and mechanism in (None, row.mechanism) and task in (None, row.task)
    ]

"""A declared study: a YAML file, resolved to the last setting, and the arms it asks for."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pydantic
import yaml
from pydantic import BaseModel, ConfigDict, Field

from maclaurin.errors import ConfigError, MaclaurinError, nearest
from maclaurin.store import Arm, StudyRecord
from maclaurin.study.language import LanguageSection
from maclaurin.study.orders import OrdersSection
from maclaurin.study.recall import RecallSection
from maclaurin.study.section import Section, digest_of
from maclaurin.study.separation import SeparationSection


class Study(BaseModel):
    """A study and its sections; one that is left out is not run.

    Args:
        name: of the study.
        version: counts up when its meaning changes.
        question: what it asks, in a sentence.
        seed: added to every seed of every section.
        orders: order against error.
        separation: constructed data.
        recall: MQAR.
        language: byte-level modeling.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    version: int = Field(ge=1)
    question: str
    seed: int = Field(default=0, ge=0)
    orders: OrdersSection | None = None
    separation: SeparationSection | None = None
    recall: RecallSection | None = None
    language: LanguageSection | None = None

    @property
    def sections(self) -> tuple[Section, ...]:
        """The sections that are there, in the order of the report."""
        found = (self.orders, self.separation, self.recall, self.language)
        return tuple(each for each in found if each is not None)

    def section(self, name: str) -> Section:
        """The section an arm belongs to."""
        return next(each for each in self.sections if each.name == name)

    def arms(self, folder: Path) -> list[Arm]:
        """Every arm of every section; prepared data is kept below ``folder``."""
        return [arm for section in self.sections for arm in section.arms(seed=self.seed, folder=folder)]

    def record(self) -> StudyRecord:
        """What the store remembers of the study."""
        config = self.model_dump(mode="json")
        return StudyRecord(self.name, self.version, digest_of(config), config)


def built_in() -> list[str]:
    """Names of the studies that come with maclaurin."""
    folder = resources.files("maclaurin.study") / "studies"
    return sorted(each.name.removesuffix(".yaml") for each in folder.iterdir() if each.name.endswith(".yaml"))


def load(name_or_file: str, *, seed: int | None = None) -> Study:
    """A built-in study by name, or one from a YAML file.

    Args:
        name_or_file: ``quickstart``, or a path that ends in ``.yaml``.
        seed: replaces the study's own.

    Raises:
        ConfigError: no such study, YAML that cannot be read, an unknown key (with the nearest) or an illegal value.
    """
    text = _read(name_or_file)
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"study {name_or_file!r}: this is not YAML.\n  {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"study {name_or_file!r}: a study is a mapping of keys, this is a {type(values).__name__}.")
    if seed is not None:
        values["seed"] = seed
    try:
        study = Study.model_validate(values)
    except pydantic.ValidationError as error:
        raise ConfigError(_explain(name_or_file, error, values)) from None
    _check_mechanisms(study)
    return study


def _read(name_or_file: str) -> str:
    if not name_or_file.endswith((".yaml", ".yml")):
        if name_or_file not in built_in():
            raise ConfigError(
                f"study {name_or_file!r} does not exist: {nearest(name_or_file, built_in())}\n"
                "  Give a built-in name, or a file that ends in .yaml."
            )
        return (resources.files("maclaurin.study") / "studies" / f"{name_or_file}.yaml").read_text("utf-8")
    try:
        return Path(name_or_file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"study {name_or_file!r} cannot be read: {reason}.") from None


def _explain(name: str, error: pydantic.ValidationError, values: dict[str, Any]) -> str:
    """The first complaints of a validation, each with its place and the nearest legal key."""
    lines = []
    for each in error.errors()[:3]:
        place = ".".join(str(part) for part in each["loc"])
        message = each["msg"]
        if each["type"] == "extra_forbidden":
            legal = _legal_keys(Study, each["loc"][:-1])
            message = f"this key does not exist: {nearest(str(each['loc'][-1]), legal)}"
        lines.append(f"  {place}: {message}")
    return f"study {name!r} asks for something it cannot have:\n" + "\n".join(lines)


def _legal_keys(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The keys of the model at ``path`` below ``model``."""
    for part in path:
        if isinstance(part, int):
            return []
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        model = next(each for each in candidates if isinstance(each, type) and issubclass(each, BaseModel))
    return list(model.model_fields)


def _check_mechanisms(study: Study) -> None:
    """Refuse a mechanism that does not exist before anything runs."""
    named = {
        section.name: getattr(section, "mechanisms", ()) for section in study.sections if hasattr(section, "mechanisms")
    }
    if not any(named.values()):
        return
    from maclaurin.algebra import recipe

    for section, mechanisms in named.items():
        for index, each in enumerate(mechanisms):
            try:
                recipe(each)
            except MaclaurinError as error:
                raise ConfigError(f"study {study.name!r}: {section}.mechanisms.{index}: {error}") from None

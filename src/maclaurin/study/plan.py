"""A declared study: a YAML file, resolved to the last setting, and the arms it asks for."""

from __future__ import annotations

from collections import Counter
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

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    version: int = Field(ge=1)
    question: str
    seed: int = Field(default=0, ge=0, lt=2**53)
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
        """Every arm of every section; prepared data is kept below ``folder``.

        Raises:
            ConfigError: two arms of one label, whose results could not be told apart.
            DataError: a corpus that cannot be read as asked.
        """
        arms = [arm for section in self.sections for arm in section.arms(seed=self.seed, folder=folder)]
        labels = Counter((arm.section, arm.mechanism, arm.task, arm.seed) for arm in arms)
        (label, count) = max(labels.items(), key=lambda item: item[1], default=((), 0))
        if count > 1:
            section, mechanism, task, seed = label
            raise ConfigError(
                f"study {self.name!r}: {section} has {count} arms called {mechanism}, {task}, seed {seed}.\n"
                "  Their results could not be told apart. Give every mechanism, size and length once."
            )
        return arms

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
        ConfigError: no such study, YAML that cannot be read, an unknown key (with the nearest), an illegal value, or a
            mechanism or shape that cannot be.
    """
    text = _read(name_or_file)
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"study {name_or_file!r}: this is not YAML.\n  {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"study {name_or_file!r}: a study is a mapping of keys, this is a {type(values).__name__}.")
    _check_keys(name_or_file, values)
    if seed is not None:
        values["seed"] = seed
    try:
        study = Study.model_validate(values)
    except pydantic.ValidationError as error:
        raise ConfigError(_explain(name_or_file, error)) from None
    for section in study.sections:
        try:
            section.check()
        except MaclaurinError as error:
            raise ConfigError(f"study {name_or_file!r}: {section.name}.{error}") from None
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


def _check_keys(name: str, value: Any, path: str = "") -> None:
    """Refuse keys that YAML reads as something else than a word: ``1:``, ``null:``, ``on:``."""
    if isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, str):
                raise ConfigError(
                    f"study {name!r}: {path}{key!r} is no key; YAML reads it as {type(key).__name__}, not as a word.\n"
                    "  Write a key that is there, or put it in quotes if it is meant."
                )
            _check_keys(name, each, f"{path}{key}.")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            _check_keys(name, each, f"{path}{index}.")


def _explain(name: str, error: pydantic.ValidationError) -> str:
    """The first complaints of a validation, each with its place and the nearest legal key."""
    lines = []
    for each in error.errors()[:3]:
        place = ".".join(str(part) for part in each["loc"])
        message = str(each.get("ctx", {}).get("error", each["msg"]))  # a refusal of our own, without pydantic's prefix
        if isinstance(each["input"], str | int | float) and each["type"] != "value_error":
            message += f", not {each['input']!r}"
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

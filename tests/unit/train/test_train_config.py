"""What a training configuration accepts and refuses.   Run: pytest tests/unit/train/test_train_config.py"""

from __future__ import annotations

import pydantic
import pytest

from maclaurin.train import TrainConfig

LEAST = {"steps": 10, "batch_size": 2, "learning_rate": 0.01}


def test_the_least_that_must_be_given() -> None:
    config = TrainConfig(**LEAST)
    assert (config.weight_decay, config.warmup_steps, config.clip_norm, config.betas) == (0.1, 0, 1.0, (0.9, 0.95))
    for name in LEAST:
        with pytest.raises(pydantic.ValidationError, match="Field required"):
            TrainConfig(**{key: value for key, value in LEAST.items() if key != name})


@pytest.mark.parametrize("name", ["learning_rte", "lr", "seed", "model_config"])
def test_an_unknown_key_is_refused(name: str) -> None:
    with pytest.raises(pydantic.ValidationError, match="Extra inputs are not permitted"):
        TrainConfig(**LEAST, **{name: 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("steps", 1.5),
        ("batch_size", 0),
        ("learning_rate", 0.0),
        ("learning_rate", -1.0),
        ("learning_rate", float("inf")),
        ("learning_rate", float("nan")),
        ("weight_decay", -0.1),
        ("weight_decay", float("inf")),
        ("warmup_steps", -1),
        ("clip_norm", 0.0),
        ("clip_norm", float("nan")),
        ("betas", (0.9, 1.0)),
        ("betas", (-0.1, 0.9)),
        ("betas", (0.9,)),
        ("log_every", 0),
    ],
)
def test_a_value_out_of_its_range_is_refused(name: str, value: object) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        TrainConfig(**{**LEAST, name: value})
    assert caught.value.errors()[0]["loc"][0] == name


def test_it_cannot_be_changed_and_comes_back_from_its_own_values() -> None:
    config = TrainConfig(**LEAST, betas=(0.8, 0.9))
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        config.steps = 3
    assert TrainConfig(**config.model_dump(mode="json")) == config

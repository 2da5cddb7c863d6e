"""The optimizer's groups, and the learning rate of every step.   Run: pytest tests/unit/train -k optimizer"""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from maclaurin.nn import DecoderConfig, DecoderLM
from maclaurin.train import TrainConfig, learning_rate, make_optimizer


def config(**changes: object) -> TrainConfig:
    return TrainConfig(**{"steps": 100, "batch_size": 1, "learning_rate": 0.5, "warmup_steps": 10, **changes})


def rates(**changes: object) -> list[float]:
    chosen = config(**changes)
    return [learning_rate(step, chosen) for step in range(chosen.steps)]


def test_warm_up_rises_in_equal_steps_to_the_rate_and_never_starts_at_zero() -> None:
    assert rates()[:10] == pytest.approx([0.05 * step for step in range(1, 11)], rel=1e-15)


def test_the_cosine_starts_at_the_rate_passes_its_half_and_ends_at_zero() -> None:
    found = rates(steps=111)
    assert found[10] == 0.5
    assert found[60] == pytest.approx(0.25, rel=1e-15)  # halfway between steps 10 and 110
    assert found[35] == pytest.approx(0.25 * (1 + math.sqrt(0.5)), rel=1e-15)  # a quarter of the way
    assert found[110] == 0.0
    assert all(later < earlier for earlier, later in pairwise(found[10:]))


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (2, 0), (2, 1), (5, 5), (5, 50), (51, 50)])
def test_short_trainings_have_a_rate_at_every_step(steps: int, warmup: int) -> None:
    found = rates(steps=steps, warmup_steps=warmup)
    assert all(0 <= rate <= 0.5 for rate in found)
    assert found[0] > 0


def test_a_step_past_the_last_has_rate_zero() -> None:
    assert learning_rate(1000, config()) == 0.0


def test_decay_is_for_matrices_only_and_every_parameter_is_in_one_group() -> None:
    recipe = "exp/rms:weight"
    model = DecoderLM(DecoderConfig(recipe, vocab_size=8, model_dim=8, num_layers=2, num_heads=2))
    model.blocks[0].mlp.up.weight.requires_grad_(False)
    decayed, plain = make_optimizer(model, config(weight_decay=0.3, betas=(0.7, 0.8))).param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    in_decayed = {names[id(each)] for each in decayed["params"]}
    in_plain = {names[id(each)] for each in plain["params"]}
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)
    assert (decayed["betas"], plain["betas"]) == ((0.7, 0.8), (0.7, 0.8))
    assert in_decayed | in_plain == set(names.values()) - {"blocks.0.mlp.up.weight"}
    assert {"embedding.weight", "head.weight", "blocks.1.attention.projection.weight"} <= in_decayed
    assert in_plain == {name for name in names.values() if name.endswith(("norm.weight", "norm_weight"))}


def test_decay_shrinks_a_matrix_by_the_rate_and_leaves_a_vector() -> None:
    model = torch.nn.Linear(3, 2)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = make_optimizer(model, config(learning_rate=0.01, weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(model.bias, before["bias"])
    torch.testing.assert_close(model.weight, before["weight"] * (1 - 0.01 * 0.5), rtol=1e-6, atol=0)

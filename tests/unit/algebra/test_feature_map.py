"""Feature maps: their values, their sign, their default scale, their width.

Run: pytest tests/unit/algebra/test_feature_map.py -q
"""

from __future__ import annotations

import math

import pytest
import torch

from laws.compare import assert_close, assert_same
from maclaurin.algebra import CallableMap, Cosine, Elu1, ExpMap, Features, Identity, Relu
from maclaurin.algebra.feature_map import MAPS, FeatureMap

X = torch.tensor([[-2.0, 0.0, 1.0], [3.0, -0.5, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("feature_map", "expected"),
    [
        (Identity(), X),
        (Features(), X),
        (Elu1(), torch.where(X > 0, X + 1, X.exp())),
        (Relu(), X.clamp(min=0)),
        (ExpMap(), X.exp()),
        (Cosine(), X / X.norm(dim=-1, keepdim=True)),
        (CallableMap(torch.tanh), X.tanh()),
    ],
    ids=lambda each: type(each).__name__,
)
def test_values(feature_map: FeatureMap, expected: torch.Tensor) -> None:
    assert_close(feature_map(X), expected, rtol=1e-15)


@pytest.mark.parametrize("feature_map", [each() for each in MAPS.values()], ids=MAPS.keys())
def test_the_promise_of_sign_is_kept(feature_map: FeatureMap) -> None:
    lowest = float(feature_map(X).min())
    if feature_map.is_nonnegative and not isinstance(feature_map, Features):  # features are the caller's promise
        assert lowest >= 0
    assert feature_map.is_nonnegative == (feature_map.name in ("elu1", "relu", "expmap", "features"))


def test_default_scales() -> None:
    assert Identity().default_scale(64) == 0.125
    assert Identity().default_scale(0) == 1.0
    assert {each().default_scale(64) for name, each in MAPS.items() if name != "identity"} == {1.0}


def test_widths() -> None:
    assert {each().num_features(5) for each in MAPS.values()} == {5}
    matrix = torch.ones(5, 9, dtype=torch.float64)
    assert CallableMap(lambda x: torch.cat([x, -x], -1)).num_features(5) == 10
    assert CallableMap(lambda x: x @ matrix).num_features(5, dtype=torch.float64) == 9


def test_a_callable_promises_its_sign_itself() -> None:
    assert not CallableMap(torch.exp).is_nonnegative
    assert CallableMap(torch.exp, is_nonnegative=True).is_nonnegative
    assert CallableMap(torch.exp) == CallableMap(torch.exp) != CallableMap(torch.sin)


def test_cosine_of_a_zero_vector_is_zero() -> None:
    assert_same(Cosine()(torch.zeros(2, 3)), torch.zeros(2, 3))


def test_cosine_forgets_length() -> None:
    assert_close(Cosine()(1e200 * X), Cosine()(X), rtol=1e-15)


def test_every_map_states_its_formula() -> None:
    assert all(each.formula for each in [*MAPS.values(), CallableMap])
    assert math.isclose(float(Elu1()(torch.zeros(1))[0]), 1.0)

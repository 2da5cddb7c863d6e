"""``Shape``: a call without its tensors, and the dtype of its products.

Run: pytest tests/unit/evaluate/test_shape.py -q
"""

from __future__ import annotations

import pytest
import torch

from laws.cases import draw
from maclaurin import Shape, attend, mechanism
from maclaurin.errors import ConfigError
from maclaurin.evaluate.call import Call, Options


def test_what_is_left_out_is_told_by_the_rest() -> None:
    shape = Shape(queries=5, key_dim=3, heads=4)
    assert (shape.kv_heads, shape.num_keys, shape.num_values) == (4, 5, 3)
    assert shape == Shape(queries=5, key_dim=3, heads=4, kv_heads=4, keys=5, value_dim=3)
    assert Shape(queries=5, key_dim=3, keys=0).is_empty


@pytest.mark.parametrize("wrong", [{"queries": -1}, {"heads": 4, "kv_heads": 3}, {"cached": -2}])
def test_no_call_has_such_sizes(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"is no call\.\n  Sizes are >= 0"):
        Shape(**{"queries": 5, "key_dim": 3, **wrong})


def test_the_shape_of_a_call() -> None:
    inputs = draw(0, queries=6)
    member = mechanism("exp/sum")
    state = attend(member, *inputs.qkv, return_state=True).state
    query = inputs.query.clone().requires_grad_()
    call = Call.of(member, query, inputs.key, inputs.value, Options(state=state, is_causal=False))
    shape, sizes = call.shape(return_state=True), call.sizes
    assert shape == Shape(
        queries=6,
        key_dim=inputs.key.shape[-1],
        batch=sizes.batch,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        value_dim=sizes.value_dim,
        dtype=torch.float64,
        is_causal=False,
        has_state=True,
        cached=6,
        returns_state=True,
        wants_gradient=True,
    )
    with torch.no_grad():
        assert not call.shape().wants_gradient


@pytest.mark.parametrize(
    ("text", "more", "expected"),
    [
        ("exp/l2", {}, torch.bfloat16),
        ("taylor:2/sum", {}, torch.bfloat16),
        ("taylor:2/sum", {"has_state": True}, torch.float32),  # sums that go on
        ("taylor:2/sum", {"returns_state": True}, torch.float32),
        ("taylor:3/l2", {}, torch.float32),  # three factors, each rounded
        ("cosine/sum:signed", {}, torch.float32),  # a denominator that may vanish
        ("cosine/l2", {}, torch.bfloat16),
        ("exp/sum", {"dtype": torch.float16}, torch.float32),  # sums of products would overflow
        ("exp/sum", {"dtype": torch.float64}, torch.float64),
    ],
)
def test_the_dtype_of_products(text: str, more: dict[str, object], expected: torch.dtype) -> None:
    shape = Shape(**{"queries": 8, "key_dim": 4, "dtype": torch.bfloat16, **more})
    assert shape.product_dtype(mechanism(text)) == expected

"""What a layer learns for its gates: each module's formula, where it starts, and which tensor it becomes.

Run: pytest tests/unit/nn/test_gates.py -q
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from laws.compare import assert_close, assert_same
from maclaurin import AttentionLayer, DecoderConfig, DecoderLM, attend, recipe
from maclaurin.algebra import LayerOptions
from maclaurin.errors import ConfigError
from maclaurin.nn import initialize
from maclaurin.nn.gates import DECAYS, GATES, MEMORY_TOKENS, HeadShape, make_decay, slow_logit

SHAPE = HeadShape(model_dim=6, num_heads=4, num_kv_heads=2, value_dim=5)
X = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(
    ("keyword", "options", "shape", "function"),
    [
        ("value_gate", {}, (2, 2, 7), torch.sigmoid),
        ("output_gate", {}, (2, 4, 7), torch.sigmoid),
        ("output_gate", {"vector_gate": True}, (2, 4, 7, 5), torch.sigmoid),
        ("denominator_logit", {}, (2, 2, 7), lambda x: x),
        ("log_decay", {"decay": "log_sigmoid"}, (2, 2, 7), F.logsigmoid),
        ("log_decay", {"decay": "minus_softplus"}, (2, 2, 7), lambda x: -F.softplus(x)),
    ],
)
def test_formulas(keyword: str, options: dict, shape: tuple[int, ...], function: object) -> None:
    gate = GATES[keyword](SHAPE, LayerOptions(**options)).double()
    weight, bias = gate.linear.weight, gate.linear.bias if gate.linear.bias is not None else gate.bias
    out = gate(X)
    assert out.shape == shape
    for t in range(7):  # token by token, head by head: nothing is transposed into another's place
        expected = function(weight @ X[1, t] + bias).reshape(shape[1], -1)
        assert_close(out[1, :, t].reshape(shape[1], -1), expected, rtol=1e-13)


def test_both_parametrizations_are_one_function() -> None:
    one, other = (make_decay(SHAPE, LayerOptions(decay=name)).double() for name in ("log_sigmoid", "minus_softplus"))
    other.linear.weight.data, other.bias.data = -one.linear.weight.data, -one.bias.data
    assert_same(one(100 * X), other(100 * X))
    assert float(one(100 * X).detach().max()) <= 0


def test_fixed_decay_is_that_of_retention() -> None:
    gate = make_decay(HeadShape(6, 8, 8, 5), LayerOptions(decay="fixed"))
    assert list(gate.parameters()) == []
    expected = torch.tensor([1 - 2.0 ** (-5 - head) for head in range(8)])
    assert_close(gate(X).exp(), expected[None, :, None].expand(2, 8, 7), rtol=1e-7)  # float32
    assert gate.double()(X).dtype == torch.float64
    assert "log_decay" in gate.state_dict()


@pytest.mark.parametrize("name", ["log_sigmoid", "minus_softplus"])
def test_learned_decay_starts_slow_and_spread(name: str) -> None:
    """Of an input of zeros: memories of 1 / (1 - exp(a)) tokens, in equal ratios, between the two bounds."""
    gate = make_decay(HeadShape(6, 8, 8, 5), LayerOptions(decay=name)).double()
    memory = 1 / (1 - gate(0 * X)[0, :, 0].detach().exp())
    least, most = MEMORY_TOKENS
    assert least < float(memory.min()) < float(memory.max()) < most
    assert_close(memory[1:] / memory[:-1], torch.full((7,), (most / least) ** (1 / 8)).double(), rtol=1e-5)
    assert float(torch.sigmoid(slow_logit(1))) == pytest.approx(0.99)  # one head: the middle, 100 tokens


@pytest.mark.parametrize("init_std", [None, 0.02])
def test_initialize_leaves_a_decay_where_it_starts(init_std: float | None) -> None:
    layer = AttentionLayer("exp-layer-decay", model_dim=16, num_heads=4)
    initialize(layer, generator=torch.Generator().manual_seed(3), init_std=init_std)
    assert_same(layer.gates["log_decay"].bias, slow_logit(4))
    weight = layer.gates["log_decay"].linear.weight.detach()
    again = AttentionLayer("exp-layer-decay", model_dim=16, num_heads=4)
    initialize(again, generator=torch.Generator().manual_seed(3), init_std=init_std)
    assert_same(again.gates["log_decay"].linear.weight, weight)
    assert float(weight.abs().max()) > 0
    for name in ("value_gate", "output_gate"):
        bias = layer.gates[name].linear.bias.detach()
        assert float(bias.abs().max()) <= 0.25  # 1 / sqrt(16), or zero: the gates start half open
        assert bool(bias.any()) is (init_std is None)


def by_hand(layer: AttentionLayer, x: Tensor) -> dict[str, Tensor]:
    """The gates' tensors from their weights."""
    gates = layer.gates

    def linear(name: str) -> Tensor:
        return F.linear(x, gates[name].linear.weight, gates[name].linear.bias).transpose(1, 2)

    return {
        "value_gate": torch.sigmoid(linear("value_gate")),
        "output_gate": torch.sigmoid(linear("output_gate")),
        "log_decay": F.logsigmoid(linear("log_decay") + gates["log_decay"].bias[:, None]),
        "denominator_logit": linear("denominator_logit"),
    }


def test_each_becomes_its_own_keyword() -> None:
    """The layer against ``attend`` on what the weights give by hand."""
    text = "elu1/cumgate+valuegate+decay+outgate+window:3:1"
    plain, sizes = recipe(text).with_layer(rotary=False), {"num_heads": 4, "num_kv_heads": 2}
    layer = AttentionLayer(plain, model_dim=6, key_dim=3, value_dim=2, **sizes).double()
    layer.far_log_weight.data = torch.tensor([0.0, 1.0, -1.0, 0.5]).double()
    query, key, value = (
        each.unflatten(-1, (heads, -1)).transpose(1, 2)
        for each, heads in zip(layer.projection(X).split(layer.widths, -1), (4, 2, 2), strict=True)
    )
    out = attend(text, query, key, value, far_log_weight=layer.far_log_weight, **by_hand(layer, X)).output
    assert set(layer.gates) == {"value_gate", "log_decay", "output_gate", "denominator_logit"}
    assert_close(layer(X)[0], layer.output(out.transpose(1, 2).flatten(2)), rtol=1e-13)


def test_an_unknown_decay_is_named() -> None:
    strange = recipe("forgetting").with_layer(decay="log_sigmoit")
    with pytest.raises(ConfigError, match=r"decay='log_sigmoit' is no way to make log decays: did you mean 'log_sigmo"):
        AttentionLayer(strange, model_dim=8, num_heads=2)
    assert set(DECAYS) == {"log_sigmoid", "minus_softplus", "fixed"}


def test_a_decay_that_decays() -> None:
    """An old key of a forgetful head weighs less: exp/sum with equal logits is then no plain mean."""
    layer = AttentionLayer("forgetting", model_dim=4, num_heads=1).double()
    layer.projection.weight.data.zero_()
    layer.projection.weight.data[8:] = torch.eye(4)  # values are the input, every logit is zero
    layer.output.weight.data = torch.eye(4).double()
    layer.gates["log_decay"].linear.weight.data.zero_()
    layer.gates["log_decay"].bias.data.fill_(math.log(3.0))  # exp(a) = 3/4
    x = torch.eye(4, dtype=torch.float64)[None]
    weights = torch.tensor([0.75**3, 0.75**2, 0.75, 1.0], dtype=torch.float64)
    assert_close(layer(x)[0][0, 3], weights / weights.sum(), rtol=1e-14)


def test_a_model_with_gates_has_them_once() -> None:
    model = DecoderLM(DecoderConfig("exp-layer-decay", vocab_size=5, model_dim=8, num_layers=1, num_heads=2))
    names = {name for name, _ in model.named_parameters() if ".gates." in name}
    assert names == {
        f"blocks.0.attention.gates.{each}"
        for each in ("value_gate.linear.weight", "value_gate.linear.bias", "log_decay.linear.weight", "log_decay.bias",
                     "output_gate.linear.weight", "output_gate.linear.bias")
    }  # fmt: skip

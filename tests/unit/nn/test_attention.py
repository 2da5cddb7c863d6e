"""The attention layer: every recipe runs in it, padding changes nothing, and a state continues it exactly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from laws.compare import assert_close, assert_same, error_ratio
from maclaurin import CATALOGUE, AttentionLayer, Recipe, recipe
from maclaurin.errors import ConfigError, DtypeError, GrammarError, MaskError, MethodError, ShapeError, StateError
from maclaurin.nn import LayerState, initialize

#: Compositions that no name stands for: short windows, a far weight, decay beside a learned denominator.
TEXTS = (
    "exp/sum+window:3:1",
    "power:2/sum+window:3:1",
    "taylor:2@mean/sum+valuegate+decay+outgate+window:3:1",
    "elu1/cumgate+decay",
    "taylor:1/layer:bias+valuegate+outgate:after",
)
NAMES = [*CATALOGUE, *TEXTS]
#: float64 rounding through projections, at most 45 monomials over 13 keys, and a division.
RTOL = 1e-12
LENGTH = 13  # prime


def make(name: str | Recipe, *, seed: int = 1, **shape: object) -> AttentionLayer:
    sizes = {"model_dim": 16, "num_heads": 4, "num_kv_heads": 2, "key_dim": 6, "value_dim": 5, **shape}
    layer = AttentionLayer(name, **sizes).double()
    initialize(layer, generator=torch.Generator().manual_seed(seed))
    return layer


def draw(length: int = LENGTH, *, seed: int = 2) -> Tensor:
    return torch.randn(2, length, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_and_without_convolution(name: str, width: int) -> Recipe:
    return recipe(name).with_layer(convolution=width)


def gradients(layer: AttentionLayer, output: Tensor) -> dict[str, Tensor]:
    """Gradients of a fixed linear function of the output."""
    layer.zero_grad()
    weights = torch.linspace(-1.0, 1.0, output.numel(), dtype=output.dtype).reshape(output.shape)
    (output * weights).sum().backward()
    return {key: each.grad.clone() for key, each in layer.named_parameters()}


def is_dead(layer: AttentionLayer, key: str) -> bool:
    """Whether the norm after it undoes a parameter: that of an output gate of one number per head before the norm."""
    gate, is_undone = layer.mechanism.gates.output, layer.mechanism.normalizer.is_scale_invariant
    return key.startswith("gates.output_gate.") and is_undone and not gate.after and not layer.recipe.layer.vector_gate


def assert_gradients(layer: AttentionLayer, actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Each within RTOL of its own largest number; rounding errors, which is all a dead gate has, of the layer's."""
    largest = max(float(each.abs().max()) for each in expected.values())
    for key, gradient in actual.items():
        assert_close(gradient, expected[key], rtol=RTOL, scale=largest if is_dead(layer, key) else None, what=key)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_runs_and_learns(name: str) -> None:
    layer = AttentionLayer(name, model_dim=16, num_heads=2)
    x = draw().float().requires_grad_()
    output, state = layer(x)
    assert output.shape == x.shape
    assert output.dtype == torch.float32
    assert state is None
    (output * torch.linspace(-1.0, 1.0, output.numel()).reshape(output.shape)).sum().backward()
    largest = float(layer.projection.weight.grad.abs().max())
    for key, parameter in [*layer.named_parameters(), ("input", x)]:
        assert parameter.grad is not None, key
        assert bool(parameter.grad.isfinite().all()), key
        # float32 rounds at 6e-8: what is below 1e-5 of the layer's gradients is a rounding error, far above it is not
        assert (float(parameter.grad.abs().max()) < 1e-5 * largest) is is_dead(layer, key), key


def test_which_gates_are_dead() -> None:
    """Those that the first paper's options have before a norm; one number per channel would not be."""
    layers = {name: AttentionLayer(name, model_dim=16, num_heads=2) for name in CATALOGUE}
    dead = {name for name, each in layers.items() if any(is_dead(each, key) for key, _ in each.named_parameters())}
    assert dead == {"exp-l2-dead", "exp-layer-dead", "exp-layer-gates", "exp-layer-decay"}
    layer = make(recipe("exp-l2-dead").with_layer(vector_gate=True))
    found = gradients(layer, layer(draw())[0])
    assert float(found["gates.output_gate.linear.weight"].abs().max()) > 1e-3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("width", [0, 3])
def test_padding_changes_nothing(name: str, side: str, width: int) -> None:
    layer, x, pads = make(with_and_without_convolution(name, width)), draw(), 4
    expected = layer(x)[0]
    wanted = gradients(layer, expected)
    rubbish = torch.full((2, pads, 16), torch.nan, dtype=x.dtype)
    shown, hidden = torch.ones(2, LENGTH, dtype=torch.bool), torch.zeros(2, pads, dtype=torch.bool)
    if side == "left":
        padded, mask, real = torch.cat([rubbish, x], 1), torch.cat([hidden, shown], 1), slice(pads, None)
    else:
        padded, mask, real = torch.cat([x, rubbish], 1), torch.cat([shown, hidden], 1), slice(0, LENGTH)
    actual = layer(padded, mask=mask)[0][:, real]
    assert_close(actual, expected, rtol=RTOL)
    assert_gradients(layer, gradients(layer, actual), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_padding_between_tokens_neither_counts_nor_decays(name: str) -> None:
    layer, x, pads = make(recipe(name).with_layer(convolution=0)), draw(), 4
    expected = layer(x)[0]
    wanted = gradients(layer, expected)
    rubbish = torch.full((2, pads, 16), torch.nan, dtype=x.dtype)
    is_real = torch.arange(LENGTH + pads).expand(2, -1)
    is_real = (is_real < 6) | (is_real >= 6 + pads)
    out = layer(torch.cat([x[:, :6], rubbish, x[:, 6:]], 1), mask=is_real)[0]
    actual = torch.cat([out[:, :6], out[:, 6 + pads :]], 1)
    assert_close(actual, expected, rtol=RTOL)
    assert_gradients(layer, gradients(layer, actual), wanted)


@pytest.mark.parametrize(("side", "width"), [("left", 0), ("left", 3), ("right", 0)])
@pytest.mark.parametrize("name", ["softmax", "linear-elu", "taylor-2-centered", "retention", "exp-cumgate", *TEXTS])
def test_a_padded_prompt_continues_like_the_prompt(name: str, side: str, width: int) -> None:
    layer, x, pad = make(with_and_without_convolution(name, width)), draw(), torch.zeros(2, 4, 16, dtype=torch.float64)
    prompt, more = x[:, :9], x[:, 9:]
    is_real = torch.arange(13).expand(2, 13)
    padded, mask = ([pad, prompt], is_real >= 4) if side == "left" else ([prompt, pad], is_real < 9)
    _, state = layer(torch.cat(padded, 1), mask=mask, return_state=True)
    assert state.position.tolist() == [9, 9]
    assert_close(layer(more, state=state)[0], layer(x)[0][:, 9:], rtol=RTOL)


def test_rows_of_a_batch_may_be_padded_differently() -> None:
    layer, x = make("taylor-2-centered"), draw()
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    mask[0, :3] = False
    mask[1, 9:] = False
    out = layer(x, mask=mask)[0]
    assert_close(out[0, 3:], layer(x[:1, 3:])[0][0], rtol=RTOL)
    assert_close(out[1, :9], layer(x[1:, :9])[0][0], rtol=RTOL)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [0, 3])
def test_a_state_continues_exactly(name: str, width: int) -> None:
    # of this draw every query is far enough from orthogonal to some key; where cos^2 is c for all it sees, a square
    # read from its state loses the factor 1 / c to cancellation
    layer, x = make(with_and_without_convolution(name, width)), draw(seed=11)
    expected, whole = layer(x, return_state=True)
    wanted = gradients(layer, expected)
    generator = torch.Generator().manual_seed(NAMES.index(name))
    cuts = sorted((torch.randperm(LENGTH - 1, generator=generator)[:4] + 1).tolist())
    state, parts = None, []
    for start, stop in zip([0, *cuts], [*cuts, LENGTH], strict=True):
        part, state = layer(x[:, start:stop], state=state, return_state=True)
        assert isinstance(state, LayerState)
        assert state.position.tolist() == [stop, stop]
        parts.append(part)
    actual = torch.cat(parts, 1)
    assert_close(actual, expected, rtol=RTOL)
    assert_gradients(layer, gradients(layer, actual), wanted)
    assert state.attention.nbytes == whole.attention.nbytes


@pytest.mark.parametrize("width", [0, 3])
def test_no_time_at_all(width: int) -> None:
    layer, x = make(with_and_without_convolution("taylor-2", width)), draw()
    expected = layer(x)[0]
    _, state = layer(x[:, :7], return_state=True)
    nothing, same = layer(x[:, :0], state=state, return_state=True)
    assert nothing.shape == (2, 0, 16)
    assert_close(layer(x[:, 7:], state=same)[0], expected[:, 7:], rtol=RTOL)


@pytest.mark.parametrize("name", NAMES)
def test_methods_agree(name: str) -> None:
    x = draw()
    parallel, recurrent = (make(name, method=method)(x)[0] for method in ("parallel", "recurrent"))
    assert_close(recurrent, parallel, rtol=RTOL)


def test_the_method_is_the_one_asked_for() -> None:
    with pytest.raises(MethodError, match="method='recurent' does not exist: did you mean 'recurrent'"):
        make("softmax", method="recurent")(draw())


@pytest.mark.parametrize("name", [name for name in NAMES if recipe(name).mechanism.operands])
def test_under_autocast(name: str) -> None:
    """bfloat16 has 8 bits: a few of its roundings, 4e-3 each, through projections, gates and sums."""
    layer, x = make(name).float(), draw().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half, state = layer(x, return_state=True)
    assert half.dtype == torch.bfloat16
    assert state.attention.dtype == torch.float32
    assert error_ratio(half, layer(x)[0]) < 0.05
    half.float().square().sum().backward()
    assert all(bool(each.grad.isfinite().all()) for each in layer.parameters())


@pytest.mark.parametrize("name", ["forgetting", "exp-layer-gates", "exp-cumgate", "exp/sum+window:3:1"])
def test_the_projections_are_drawn_as_if_there_were_no_gates(name: str) -> None:
    gated, plain = make(name), make("softmax")
    assert_same(gated.projection.weight, plain.projection.weight)
    assert_same(gated.output.weight, plain.output.weight)


@pytest.mark.parametrize("name", ["softmax", "taylor-2", "linear-cosine"])
def test_grouped_heads_are_shared_heads(name: str) -> None:
    """Query heads 2g and 2g+1 read key/value head g: the same as two key/value heads with equal weights."""
    grouped, full, x = make(name), make(name, num_kv_heads=4), draw()
    query, key, value = grouped.projection.weight.data.split(grouped.widths)
    shared = (each.unflatten(0, (2, -1)).repeat_interleave(2, dim=0).flatten(0, 1) for each in (key, value))
    full.projection.weight.data = torch.cat([query, *shared])
    full.output.weight.data = grouped.output.weight.data
    assert_close(grouped(x)[0], full(x)[0], rtol=RTOL)


def test_widths() -> None:
    layer = AttentionLayer("softmax", model_dim=12, num_heads=3, num_kv_heads=1, key_dim=8, value_dim=5)
    shapes = {key: tuple(each.shape) for key, each in layer.named_parameters()}
    assert shapes == {"projection.weight": (24 + 8 + 5, 12), "output.weight": (12, 15)}
    default = AttentionLayer("softmax", model_dim=12, num_heads=3)
    assert (default.key_dim, default.value_dim, default.num_kv_heads) == (4, 4, 3)


def test_learned_parts() -> None:
    cosine = AttentionLayer("linear-cosine", model_dim=12, num_heads=3)
    assert_close(torch.sigmoid(cosine.length_logit), torch.full((3,), 0.6225), rtol=1e-4)  # the paper's start
    norm = AttentionLayer("exp-layer", model_dim=12, num_heads=3)
    assert_same(norm.norm_weight, torch.ones(4))
    assert_same(norm.norm_bias, torch.zeros(4))
    assert AttentionLayer("softmax", model_dim=12, num_heads=3).norm_weight is None
    far = AttentionLayer("elu1/sum+window:3", model_dim=12, num_heads=3, num_kv_heads=1)
    assert_same(far.far_log_weight, torch.zeros(3))
    assert AttentionLayer("taylor-2-window", model_dim=12, num_heads=3).far_log_weight is None


def test_convolution_covers_query_key_and_value() -> None:
    layer = AttentionLayer(recipe("softmax").with_layer(convolution=3), model_dim=12, num_heads=3, num_kv_heads=1)
    assert layer.convolution.weight.shape == (3, 12 + 4 + 4)


def test_without_positions_the_past_is_a_set() -> None:
    x, order = draw(), torch.tensor([3, 0, 2, 1, *range(4, LENGTH)])
    free, placed = make(recipe("softmax").with_layer(rotary=False)), make("softmax")
    assert_close(free(x[:, order])[0][:, 4:], free(x)[0][:, 4:], rtol=RTOL)
    assert float((placed(x[:, order])[0] - placed(x)[0])[:, 4:].detach().abs().max()) > 1e-4


def test_the_first_token_stands_at_zero() -> None:
    """Where rotations change nothing; a map that does not commute with them would tell."""
    one = recipe("elu1/none")
    assert_close(make(one)(draw(1))[0], make(one.with_layer(rotary=False))(draw(1))[0], rtol=RTOL)


@pytest.mark.parametrize("width", [0, 3])
def test_the_future_does_not_matter(width: int) -> None:
    layer, x = make(with_and_without_convolution("taylor-2", width)), draw()
    changed = x.clone()
    changed[:, 7:] += 1.0
    assert_close(layer(changed)[0][:, :7], layer(x)[0][:, :7], rtol=RTOL)


@pytest.mark.parametrize(
    "shape",
    [
        {"num_heads": 3, "num_kv_heads": 2},
        {"num_heads": 5, "key_dim": None},
        {"num_heads": 0},
        {"num_kv_heads": 0},
    ],
)
def test_head_counts_are_checked(shape: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"model_dim=16, num_heads=\d, num_kv_heads=\d"):
        make("softmax", **shape)


def test_rotary_needs_pairs() -> None:
    with pytest.raises(ConfigError, match=r"key_dim=7 is odd[^$]*with_layer\(rotary=False\)"):
        make("softmax", key_dim=7)
    assert make(recipe("softmax").with_layer(rotary=False), key_dim=7)(draw())[0].shape == (2, LENGTH, 16)


def test_rotary_refuses_features() -> None:
    with pytest.raises(ConfigError, match=r"promises they are not[^$]*rotary=False"):
        make("features/sum")


def test_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(GrammarError, match="did you mean 'taylor-2'"):
        make("taylr-2")


@pytest.mark.parametrize("shape", [(2, 5, 17), (5, 16), (2, 3, 5, 16)])
def test_other_widths_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"not \[B, T, 16\]"):
        make("softmax")(torch.zeros(shape, dtype=torch.float64))


def test_a_state_of_another_mechanism_is_refused() -> None:
    x = draw()
    _, state = make("taylor-2")(x, return_state=True)
    with pytest.raises(StateError, match=r"taylor:2/sum, the call is for exp/sum"):
        make("softmax")(x, state=state)


def test_a_state_of_too_high_an_order_is_refused() -> None:
    with pytest.raises(MethodError, match="order 5"):
        make("taylor:5/l2")(draw(), return_state=True)


def test_initialize_reaches_what_a_layer_owns() -> None:
    layer = make(recipe("linear-cosine").with_layer(convolution=3))
    weight, bias = layer.convolution.weight, layer.convolution.bias
    for each in (weight, bias):
        largest = float(each.detach().abs().max())
        assert largest <= 1 / math.sqrt(3)
        assert largest > 0.9 / math.sqrt(3)
    assert float(layer.projection.weight.detach().abs().max()) <= 0.25
    assert_same(layer.length_logit, torch.full((4,), 0.5, dtype=torch.float64))


@pytest.mark.parametrize(
    "mask", [torch.ones(2, LENGTH), torch.ones(2, LENGTH, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool)]
)
def test_other_masks_are_refused(mask: Tensor) -> None:
    with pytest.raises(MaskError, match=r"Give bool \[B, T\] = \(2, \d+\), False on padding"):
        make("softmax")(draw(), mask=mask)


def test_another_dtype_is_refused() -> None:
    with pytest.raises(DtypeError, match=r"the input is torch\.float32, the weights are torch\.float64"):
        make("softmax")(draw().float())


@pytest.mark.parametrize(("mine", "theirs"), [(3, 0), (0, 3), (3, 2)])
def test_a_state_of_another_convolution_is_refused(mine: int, theirs: int) -> None:
    _, state = make(with_and_without_convolution("softmax", theirs))(draw(), return_state=True)
    with pytest.raises(StateError, match="Continue with what this layer returned"):
        make(with_and_without_convolution("softmax", mine))(draw(), state=state)


def test_a_state_of_another_batch_is_refused() -> None:
    layer, x = make("softmax"), draw()
    _, state = layer(x[:1], return_state=True)
    with pytest.raises(StateError, match="the state is of 1 sequences"):
        layer(x, state=state)


@pytest.mark.parametrize("wrong", [["softmax"], 3, recipe("softmax").mechanism])
def test_a_recipe_is_a_recipe_or_a_name(wrong: object) -> None:
    with pytest.raises(ConfigError, match="was given as a recipe"):
        make(wrong)


@pytest.mark.parametrize("width", ["key_dim", "value_dim"])
def test_widths_are_positive(width: str) -> None:
    with pytest.raises(ConfigError, match=f"{width}=-2 must be at least 1"):
        AttentionLayer("softmax", model_dim=16, num_heads=4, **{"key_dim": 4, "value_dim": 4, width: -2})


@pytest.mark.parametrize("name", ["softmax", "taylor-2", "linear-elu"])
def test_a_padded_prompt_continues_as_if_it_were_not(name: str) -> None:
    layer, x = make(with_and_without_convolution(name, 3)), draw()
    cut, pads = 5, 4
    rubbish = torch.full((2, pads, 16), torch.nan, dtype=x.dtype)
    mask = torch.cat([torch.ones(2, cut, dtype=torch.bool), torch.zeros(2, pads, dtype=torch.bool)], 1)
    expected = layer(x)[0][:, cut:]
    for padded, shown in (
        (torch.cat([x[:, :cut], rubbish], 1), mask),
        (torch.cat([rubbish, x[:, :cut]], 1), mask.flip(1)),
    ):
        _, state = layer(padded, mask=shown, return_state=True)
        assert_close(layer(x[:, cut:], state=state)[0], expected, rtol=RTOL)

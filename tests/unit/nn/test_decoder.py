"""One decoder for every mechanism: generation with the state equals generation without, and weights have one origin."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from laws.compare import assert_close, assert_same
from maclaurin import CATALOGUE, DecoderConfig, DecoderLM, recipe
from maclaurin.errors import ConfigError, DtypeError, MethodError, ShapeError, StateError
from maclaurin.evaluate import methods
from maclaurin.nn import ShortConvolution

#: The catalogue's members that may generate with a state.
NAMES = [name for name, each in CATALOGUE.items() if methods(each.mechanism)["recurrent"] is None]
#: float64 rounding through two layers.
RTOL = 1e-11


def config(attention: object = "softmax", **changes: object) -> DecoderConfig:
    shape = {"vocab_size": 31, "model_dim": 16, "num_layers": 2, "num_heads": 2, "key_dim": 4, **changes}
    return DecoderConfig(attention, **shape)


def tokens(length: int, *, batch: int = 2, seed: int = 4) -> Tensor:
    return torch.randint(0, 31, (batch, length), generator=torch.Generator().manual_seed(seed))


def wide(attention: object, **changes: object) -> DecoderLM:
    """Large embeddings, so that likeliest tokens vary and a wrong state would show."""
    return DecoderLM(config(attention, init_std=0.5, **changes), seed=3).double()


def assert_state_is_exact(model: DecoderLM) -> None:
    """Generated tokens, and the logits they were chosen by, are the same with and without the state."""
    prompt = tokens(5)
    with_state, without = (model.generate(prompt, 8, use_state=each) for each in (True, False))
    assert with_state.shape == (2, 13)
    assert torch.equal(with_state, without)
    assert torch.equal(with_state[:, :5], prompt)
    whole, states, steps = model(with_state), None, []
    for part in (with_state[:, :5], *with_state[:, 5:].split(1, dim=1)):
        encoded, states = model.encode(part, states=states, return_state=True)
        steps.append(model.head(encoded))
    assert_close(torch.cat(steps, 1), whole, rtol=RTOL)


@pytest.mark.parametrize("name", NAMES)
def test_generation_with_a_state_equals_generation_without(name: str) -> None:
    assert_state_is_exact(wide(name))


@pytest.mark.parametrize("name", ["softmax", "taylor-2-centered", "linear-elu"])
def test_generation_with_convolution_and_grouped_heads(name: str) -> None:
    attention = recipe(name).with_layer(convolution=3, rotary=False)
    assert_state_is_exact(wide(attention, num_heads=4, num_kv_heads=2, value_dim=3))


@pytest.mark.parametrize("text", ["exp/sum+window:3:1", "taylor:2@mean/sum+decay+window:3", "elu1/sum+window:2:2"])
def test_generation_beyond_a_short_window(text: str) -> None:
    assert_state_is_exact(wide(text, num_heads=4, num_kv_heads=2))


def test_generation_with_a_recipe_per_layer() -> None:
    assert_state_is_exact(wide(("taylor-2", "softmax")))


def test_generated_tokens_vary() -> None:
    """The equality above is not that of two constants."""
    assert len({tuple(each) for each in wide("softmax").generate(tokens(5), 8)[:, 5:].tolist()}) == 2
    assert len(set(wide("softmax").generate(tokens(5), 8)[0, 5:].tolist())) >= 3


def test_generation_takes_the_likeliest_token() -> None:
    model, prompt = wide("softmax"), tokens(5)
    assert torch.equal(model.generate(prompt, 1)[:, -1], model(prompt)[:, -1].argmax(-1))


def test_drawing_follows_the_generator() -> None:
    model = wide("taylor-2")

    def draw(seed: int, *, use_state: bool = True) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return model.generate(tokens(5), 8, temperature=1.5, generator=generator, use_state=use_state)

    assert torch.equal(draw(0), draw(0))
    assert torch.equal(draw(0), draw(0, use_state=False))
    assert not torch.equal(draw(0), draw(1))


def test_drawing_follows_the_logits() -> None:
    """2,000 draws of one next token against softmax(logits / T): within five standard errors."""
    model, prompt = wide("softmax"), tokens(5, batch=1)
    generator = torch.Generator().manual_seed(0)
    drawn = model.generate(prompt.expand(2000, 5), 1, temperature=3.0, generator=generator)[:, -1]
    expected = torch.softmax(model(prompt)[0, -1] / 3.0, dim=-1)
    frequency = torch.bincount(drawn, minlength=31) / 2000
    assert bool(((frequency - expected).abs() <= 5 * (expected * (1 - expected) / 2000).sqrt() + 1 / 2000).all())


def test_generate_carries_no_gradient_and_asks_for_enough() -> None:
    model = wide("softmax")
    assert torch.equal(model.generate(tokens(5), 0), tokens(5))
    with pytest.raises(ConfigError, match="prompt length 0"):
        model.generate(tokens(0), 1)
    with pytest.raises(ConfigError, match="temperature -1"):
        model.generate(tokens(5), 1, temperature=-1.0)
    with pytest.raises(ConfigError, match="explicit generator"):
        model.generate(tokens(5), 1, temperature=1.0)


def test_a_state_that_cannot_serve_is_refused() -> None:
    model = wide("taylor:6/sum")
    with pytest.raises(MethodError, match="order 6"):
        model.generate(tokens(5), 1)
    assert model.generate(tokens(5), 1, use_state=False).shape == (2, 6)


def test_the_future_does_not_matter() -> None:
    model, one = wide("exp-l2"), tokens(9)
    other = one.clone()
    other[:, 6:] = (other[:, 6:] + 1) % 31
    assert_close(model(other)[:, :6], model(one)[:, :6], rtol=RTOL)
    assert float((model(other) - model(one))[:, 6:].detach().abs().max()) > 1e-3


def test_padding_changes_no_logit() -> None:
    model, real = wide("taylor-2-centered"), tokens(6)
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.int64), real], dim=1)
    mask = torch.arange(9).expand(2, 9) >= 3
    assert_close(model(padded, mask=mask)[:, 3:], model(real), rtol=RTOL)


def test_head_reads_what_encode_gives() -> None:
    model = wide("softmax")
    encoded, states = model.encode(tokens(7))
    assert states is None
    assert_close(model.head(encoded[:, 3:5]), model(tokens(7))[:, 3:5], rtol=RTOL)
    mean_square = encoded.square().mean(-1)  # the final norm's weights start at one; its epsilon is 1e-5
    assert_close(mean_square, torch.ones_like(mean_square), rtol=1e-3)


@pytest.mark.parametrize("shape", [(5,), (2, 5, 1)])
def test_tokens_are_rows(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"must be \[B, T\]"):
        wide("softmax")(torch.zeros(shape, dtype=torch.int64))


def test_one_seed_one_model_whatever_ran_before() -> None:
    attention = recipe("exp-layer").with_layer(convolution=3)
    torch.manual_seed(1)
    first = DecoderLM(config(attention), seed=7).state_dict()
    torch.manual_seed(2)
    torch.rand(5)
    again, other = (DecoderLM(config(attention), seed=seed).state_dict() for seed in (7, 8))
    for key, value in first.items():
        assert_same(again[key], value, what=key)
    assert not torch.equal(other["head.weight"], first["head.weight"])


def linear_like(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, each) for name, each in model.named_modules() if isinstance(each, (nn.Linear, ShortConvolution))]


def test_default_weights_are_uniform_in_one_over_root_fan_in() -> None:
    attention = recipe("softmax").with_layer(convolution=3)
    model = DecoderLM(config(attention, model_dim=64, key_dim=None), seed=0)
    assert len(linear_like(model)) == 2 * 6 + 1
    for name, module in linear_like(model):
        fan_in = module.width if isinstance(module, ShortConvolution) else module.in_features
        for parameter in map(Tensor.detach, module.parameters()):
            bound, size = 1 / math.sqrt(fan_in), parameter.numel()
            assert float(parameter.abs().max()) <= bound, name
            # the largest of n uniform numbers falls short of the bound by 1/n on average; below by 12/n is a fault
            assert float(parameter.abs().max()) >= bound * (1 - 12 / size), name
            # the standard deviation of n uniform numbers is bound/sqrt(3), within 5 * 0.45 / sqrt(n) of it
            assert float(parameter.std()) == pytest.approx(bound / math.sqrt(3), rel=2.3 / math.sqrt(size)), name
    assert float(model.embedding.weight.detach().std()) == pytest.approx(0.02, rel=5 / math.sqrt(2 * 31 * 64))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert_same(parameter, torch.ones_like(parameter), what=name)


def test_init_std_is_for_everything_that_is_drawn() -> None:
    attention = recipe("softmax").with_layer(convolution=3)
    model = DecoderLM(config(attention, model_dim=64, key_dim=None, init_std=0.1), seed=0)
    for name, module in [*linear_like(model), ("embedding", model.embedding)]:
        size = module.weight.numel()
        assert float(module.weight.detach().std()) == pytest.approx(0.1, rel=5 / math.sqrt(2 * size)), name
        if getattr(module, "bias", None) is not None:
            assert_same(module.bias, torch.zeros_like(module.bias), what=name)


def test_number_of_parameters() -> None:
    model = DecoderLM(config(num_heads=4, num_kv_heads=2, value_dim=3))
    attention = 16 * (4 * 4 + 2 * 4 + 2 * 3) + 4 * 3 * 16
    mlp = 3 * 16 * 48  # 8/3 * 16 = 42.7, rounded up to a multiple of 8
    assert model.num_parameters == 2 * 31 * 16 + 2 * (attention + mlp + 2 * 16) + 16


@pytest.mark.parametrize(("model_dim", "mlp_dim"), [(128, 344), (24, 64), (16, 48), (8, 24)])
def test_default_width_of_the_mlp(model_dim: int, mlp_dim: int) -> None:
    model = DecoderLM(config(model_dim=model_dim))
    assert model.blocks[0].mlp.gate.out_features == mlp_dim
    assert DecoderLM(config(mlp_dim=20)).blocks[0].mlp.down.in_features == 20


def test_recipes_per_layer() -> None:
    one = recipe("softmax").with_layer(rotary=False)
    shape = config((one, "taylor:2/l2"))
    assert [str(each.mechanism) for each in shape.recipes] == ["exp/sum", "taylor:2/l2"]
    model = DecoderLM(shape)
    assert [block.attention.recipe.layer.rotary for block in model.blocks] == [False, True]
    with pytest.raises(ConfigError, match="3 recipes for 2 layers"):
        config(("softmax",) * 3)


@pytest.mark.parametrize("size", ["vocab_size", "model_dim", "num_layers", "num_heads"])
def test_sizes_are_at_least_one(size: str) -> None:
    with pytest.raises(ConfigError, match=f"{size}=0 must be at least 1"):
        config(**{size: 0})


@pytest.mark.parametrize("wrong", [{"mlp_dim": 0}, {"init_std": -0.1}, {"init_std": math.nan}])
def test_the_other_sizes_have_ranges_too(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"mlp_dim must be at least 1 and init_std above 0"):
        config(**wrong)


def test_tokens_are_integers_and_states_one_per_layer() -> None:
    model = DecoderLM(config())
    tokens = torch.zeros(1, 3, dtype=torch.int64)
    with pytest.raises(DtypeError, match=r"tokens are torch\.float32"):
        model(tokens.float())
    _, states = model.encode(tokens, return_state=True)
    with pytest.raises(StateError, match="1 states were given for 2 layers"):
        model.encode(tokens, states=states[:1])


def test_building_a_model_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    DecoderLM(config())
    assert_same(torch.rand(3), expected)

"""Softmax's kernels: the log scale they do not return, their gradients, and the public path with the same result.

Run: pytest tests/unit/evaluate/test_fused.py -q
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from laws.compare import assert_close
from maclaurin import attend, methods
from maclaurin.errors import MethodError
from maclaurin.evaluate import flash

TEXTS = ("exp/sum", "exp/l2", "exp/length", "exp/none", "exp/sum:eps=0.1:clamp=2", "exp/sum:detach", "elu1>exp/sum")


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def run(text: str, inputs: list[Tensor], **keywords: object) -> list[Tensor]:
    """Output and gradients."""
    output = attend(text, *inputs, **keywords).output
    cotangent = draw(*output.shape, seed=9).detach()
    return [output, *torch.autograd.grad((output * cotangent).sum(), inputs)]


def test_the_kernels_are_there() -> None:
    """In the torch that the lock files name; elsewhere the public path serves, and this says that it does."""
    assert flash.is_available()


@pytest.mark.parametrize("is_causal", [True, False])
def test_numerator_denominator_and_log_scale(is_causal: bool) -> None:
    q, k, v = draw(2, 3, 7, 4), draw(2, 3, 7, 4, seed=1), draw(2, 3, 7, 6, seed=2)
    out, total, log_scale = flash.attend_with_log_scale(q, k, v, is_causal=is_causal)
    x = q @ k.transpose(-1, -2)
    if is_causal:
        x = x.masked_fill(~torch.ones(7, 7).bool().tril(), -math.inf)
    torch.testing.assert_close(log_scale, x.logsumexp(-1), rtol=1e-12, atol=1e-12)
    weights = torch.exp(x - log_scale[..., None])  # relative to a constant
    g, h = draw(*out.shape, seed=3).detach(), draw(*total.shape, seed=4).detach()
    found = torch.autograd.grad((out * g).sum() + (total * h).sum(), (q, k, v))
    wanted = torch.autograd.grad(((weights @ v) * g).sum() + (weights.sum(-1) * h).sum(), (q, k, v))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kernel", ["auto", "torch"])
def test_key_and_value_of_any_widths(text: str, kernel: str) -> None:
    for key_dim, value_dim in ((1, 1), (3, 8), (8, 3), (5, 5), (64, 17)):
        inputs = [draw(1, 4, 9, key_dim), draw(1, 2, 9, key_dim, seed=1), draw(1, 2, 9, value_dim, seed=2)]
        for one, other in zip(
            run(text, inputs, method="fused", kernel=kernel), run(text, inputs, method="parallel"), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("text", TEXTS)
def test_strides_of_any_kind(text: str) -> None:
    """The private kernel reads a last axis of another stride than 1 wrongly."""
    plain = [draw(2, 2, 6, 6, seed=i).detach() for i in range(3)]
    for order in ((0, 1, 3, 2), (3, 1, 2, 0), (0, 2, 1, 3)):
        back = [order.index(axis) for axis in range(4)]
        strided = [each.permute(order).contiguous().permute(back).requires_grad_() for each in plain]
        dense = [each.clone().requires_grad_() for each in plain]
        assert [each.stride() for each in strided] != [each.stride() for each in dense]
        for one, other in zip(run(text, strided, method="fused"), run(text, dense, method="fused"), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("text", TEXTS)
def test_the_public_path_is_taken_where_the_private_one_is_missing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [draw(1, 2, 9, 4), draw(1, 2, 9, 4, seed=1), draw(1, 2, 9, 4, seed=2)]
    expected = run(text, inputs, method="fused")

    def missing() -> tuple[object, object]:
        raise AttributeError("no such operator")

    monkeypatch.setattr(flash, "_kernels", missing)
    flash._try_kernels.cache_clear()
    try:
        assert not flash.is_available()
        found = run(text, inputs, method="fused")
    finally:
        monkeypatch.undo()
        flash._try_kernels.cache_clear()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_kernels_that_compute_something_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, backward = flash._kernels()

    def wrong(*args: object, **keywords: object) -> object:
        return tuple(None if each is None else 2 * each for each in backward(*args, **keywords))

    monkeypatch.setattr(flash, "_kernels", lambda: (forward, wrong))
    flash._try_kernels.cache_clear()
    try:
        assert not flash.is_available()
    finally:
        monkeypatch.undo()
        flash._try_kernels.cache_clear()


def test_memory_of_decay_is_not_that_of_the_pairs() -> None:
    """No tensor of T x T numbers: decay is one number per key and stretch."""
    length, largest = 2048, 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            sizes = [each.numel() for each in torch.utils._pytree.tree_leaves(result) if isinstance(each, Tensor)]
            largest = max([largest, *sizes])
            return result

    inputs = [draw(1, 1, length, 4, seed=i).detach() for i in range(3)]
    decay = -torch.rand(1, 1, length, dtype=torch.float64)
    with Watch():
        attend("exp/sum+decay", *inputs, log_decay=decay, method="fused")
    assert 0 < largest < length * length / 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_decay_in_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    """Strong decay over a thousand tokens: the error is the output's own rounding, 8e-2 if the column were half."""
    length = 1024
    inputs = [draw(1, 2, length, 16, seed=i).detach().to(dtype) for i in range(3)]
    decay = (-torch.rand(1, 2, length, generator=torch.Generator().manual_seed(5)) * 4).to(dtype)
    found = attend("exp/sum+decay", *inputs, log_decay=decay, method="fused").output.double()
    doubles = [each.double() for each in inputs]
    wanted = attend("exp/sum+decay", *doubles, log_decay=decay.double(), method="parallel").output
    ratio = float((found - wanted).norm() / wanted.norm())
    assert ratio <= {torch.float32: 1e-6, torch.bfloat16: 3e-3, torch.float16: 4e-4}[dtype]  # 2**-9, 2**-12, rounded


def test_what_is_refused() -> None:
    reasons = {
        text: methods(text)["fused"] for text in ("exp/sum", "exp:clamp=5/sum", "taylor:2/sum", "exp/sum+window:4")
    }
    assert reasons.pop("exp/sum") is None
    assert all(reasons.values())
    q = draw(1, 1, 5, 3)
    with pytest.raises(MethodError, match="Methods that can: parallel"):
        attend("exp:clamp=5/sum", q, q, q, method="fused")
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    with pytest.raises(MethodError, match="together with decay"):
        attend("exp/sum+decay", q, q, q, log_decay=-torch.ones(1, 1, 5), mask=mask, method="fused")


@pytest.mark.parametrize("text", ["exp/sum", "exp/l2+valuegate", "exp/length", "exp/sum+decay"])
def test_the_gradient_of_a_gradient(text: str) -> None:
    inputs = [draw(2, 3, 9, 4, seed=each) for each in (1, 2, 3)]
    operands = {"value_gate": draw(2, 3, 9, seed=4)} if "valuegate" in text else {}
    if "decay" in text:
        operands["log_decay"] = -draw(2, 3, 9, seed=5).square()
    seconds = []
    for method in ("fused", "parallel"):
        out = attend(text, *inputs, method=method, **operands).output
        leaves = [*inputs, *(each for each in operands.values() if each.is_leaf)]
        first = torch.autograd.grad(out.pow(3).sum(), leaves, create_graph=True)
        seconds.append(torch.autograd.grad(sum(each.square().sum() for each in first), leaves))
    for found, wanted in zip(*seconds, strict=True):
        assert_close(found, wanted, rtol=1e-11)  # float64, some hundred products one after another


def test_a_mask_and_two_head_sizes_have_second_gradients_too() -> None:
    q, k, v = draw(1, 2, 6, 4, seed=1), draw(1, 2, 6, 4, seed=2), draw(1, 2, 6, 7, seed=3)
    mask = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.6
    seconds = []
    for method in ("fused", "parallel"):
        out = attend("exp/sum", q, k, v, method=method, mask=mask).output
        (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        seconds.append(torch.autograd.grad(first.square().sum(), (q, k, v)))
    for found, wanted in zip(*seconds, strict=True):
        assert_close(found, wanted, rtol=1e-11)

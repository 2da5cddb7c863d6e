"""A scan keeps one state per stretch, recomputes the rest, and gives the gradients of the plain loop.

Run: pytest tests/unit/evaluate/test_scan.py -q
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from maclaurin import attend, mechanism
from maclaurin.algebra.accumulator import unscale
from maclaurin.evaluate.problem import Options, Problem, pose
from maclaurin.evaluate.scan import Stretch, scan

TEXTS = ("taylor:2@mean/sum", "power:2/length+decay", "elu1/cumgate+decay+window:3:1", "taylor:2/none+window:4")


def problem(text: str, *, length: int = 12, requires_grad: bool = True) -> tuple[Problem, list[Tensor]]:
    """A posed call in float64 and its leaves."""
    generator = torch.Generator().manual_seed(3)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_(requires_grad)

    qkv = [leaf(2, 4, length, 3), leaf(2, 2, length, 3), leaf(2, 2, length, 5)]
    drawn = {
        "log_decay": -leaf(2, 2, length).exp(),
        "denominator_logit": leaf(2, 2, length),
        "far_log_weight": leaf(4),
    }
    operands = {name: drawn[name] for name in mechanism(text).operands}
    return pose(mechanism(text), *qkv, Options(operands=operands)), [*qkv, *operands.values()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("sizes", [(12,), (5, 7), (1, 1, 10), (4, 4, 4)])
def test_stretches_of_any_length_give_one_result(text: str, sizes: tuple[int, ...]) -> None:
    results = []
    for each in ((12,), sizes):
        posed, leaves = problem(text)
        found, state = scan(posed, [Stretch(size, size) for size in each], return_state=True)
        assert state is not None
        sums = [
            unscale(found.numerator, found.log_scale[..., None]),
            found.count,
            *(x for x in state.tensors() if x.requires_grad),
        ]
        total = sum((x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)).sum() for x in sums)
        assert isinstance(total, Tensor)
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
        results.append([*sums, *(each for each in grads if each is not None)])
    assert len(results[0]) == len(results[1])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-11, atol=1e-13)  # float64, sums in another order


def test_autograd_keeps_inputs_and_states_alone() -> None:
    """Bytes saved for backward: the inputs, and one state per stretch, whatever happens inside."""
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    length, chunk = 2048, 64
    generator = torch.Generator().manual_seed(0)
    qkv = [torch.randn(1, 1, length, 8, generator=generator).requires_grad_() for _ in range(3)]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each):
        output = attend("taylor:2/none", *qkv, method="chunked", chunk_size=chunk).output
    row = 4 * length
    assert sum(saved.values()) <= row * (8 * 3 + 8 + 8)  # q, k, v, the numerators, and per-row numbers
    monomials = 45
    assert monomials * row > row * 40  # a single set of monomials would already be more
    output.sum().backward()
    assert all(each.grad is not None and bool(each.grad.any()) for each in qkv)


def test_without_gradients_nothing_is_kept() -> None:
    posed, _ = problem("taylor:2@mean/sum", requires_grad=False)
    found, state = scan(posed, [Stretch(6, 6), Stretch(6, 6)], return_state=False)
    assert state is None
    assert not found.numerator.requires_grad


def test_the_gradient_of_the_gradient_is_that_of_the_plain_form() -> None:
    seconds = []
    for method in ("parallel", "chunked"):
        _, leaves = problem("taylor:2/length+decay")
        chunks = {"chunk_size": 5} if method == "chunked" else {}
        q, k, v, decay = leaves
        out = attend("taylor:2/length+decay", q, k, v, log_decay=decay, method=method, **chunks).output
        first = torch.autograd.grad(out.square().sum(), (q, k, v, decay), create_graph=True)
        seconds.append(torch.autograd.grad(sum(each.square().sum() for each in first), (q, k, v)))
    for one, other in zip(*seconds, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-12)

"""What kernels are compared with, and on which calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laws.compare import assert_close
from maclaurin import attend

RTOL = 1e-10  # float64: rounding errors of a few hundred terms, and of quotients of them
RTOL_32 = 1e-4  # float32: a few hundred terms of 6e-8 each, gradients through quotients


def parallel(text: str, *qkv: Tensor, **keywords: Any) -> Tensor:
    """The output by definition."""
    return attend(text, *qkv, method="parallel", kernel="torch", **keywords).output


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def qkv_of(length: int, value_dim: int = 3) -> list[Tensor]:
    """Two rows, four query heads over two key/value heads, keys of 5 numbers."""
    return [draw(2, 4, length, 5), draw(2, 2, length, 5, seed=1), draw(2, 2, length, value_dim, seed=2)]


def operands_of(text: str, length: int) -> dict[str, Tensor]:
    """What the parts of a mechanism read."""
    found = {}
    if "valuegate" in text:
        found["value_gate"] = draw(2, 2, length, seed=3)
    if "outgate" in text:
        found["output_gate"] = draw(2, 4, length, seed=4)
    if "decay" in text:
        found["log_decay"] = -draw(2, 2, length, seed=5).abs() / 4
    return found


def leaves(tensors: list[Tensor]) -> list[Tensor]:
    return [each.detach().clone().requires_grad_() for each in tensors]


def gradients(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Of a fixed mixture of the outputs."""
    cotangent = draw(*output.shape, seed=9)
    return list(torch.autograd.grad((output.double() * cotangent).sum(), inputs, retain_graph=True))


def assert_by_definition(
    run: Callable[..., Tensor],
    text: str,
    length: int,
    dtype: torch.dtype = torch.float64,
    *,
    rtol: float = RTOL,
    grad_rtol: float | None = None,
    value_dim: int = 3,
) -> None:
    """Output and every gradient of ``run(text, query, key, value, **operands)``, in float64 of the same numbers."""
    grad_rtol, operands = grad_rtol or rtol, operands_of(text, length)
    given = leaves([each.to(dtype) for each in [*qkv_of(length, value_dim), *operands.values()]])
    exact = leaves([each.double() for each in given])
    found = run(text, *given[:3], **dict(zip(operands, given[3:], strict=True)))
    wanted = parallel(text, *exact[:3], **dict(zip(operands, exact[3:], strict=True)))
    assert found.dtype == dtype
    assert_close(found, wanted, rtol=rtol, what="output")
    names = ["query", "key", "value", *operands]
    for name, one, other in zip(names, gradients(found, given), gradients(wanted, exact), strict=True):
        if float(other.abs().max()) < RTOL:  # none but rounding, as the query's of one key alone
            assert float(one.abs().max()) < grad_rtol, name
        else:
            assert_close(one, other, rtol=grad_rtol, what=name)


def assert_hidden_rows_may_hold_anything(run: Callable[..., Tensor], text: str, spoiled: float) -> None:
    """Neither outputs nor gradients know what stands in hidden keys and values; those have no gradient."""
    length = 97
    mask = torch.rand(2, length, generator=torch.Generator().manual_seed(6)) < 0.6
    mask[0, :5] = False  # queries that see no key
    rows, plain = mask[:, None, :, None], leaves(qkv_of(length))
    given = leaves([plain[0], *(each.masked_fill(~rows, spoiled) for each in plain[1:])])
    found, wanted = run(text, *given, mask=mask), parallel(text, *plain, mask=mask)
    assert_close(found, wanted, rtol=RTOL)
    assert float(found.detach()[0, :, :5].abs().max()) == 0.0
    grads = gradients(found, given)
    for one, other in zip(grads, gradients(wanted, plain), strict=True):
        assert_close(one, other, rtol=RTOL)
    for each in grads[1:]:
        assert float(each.masked_fill(rows, 0.0).abs().max()) == 0.0


def assert_second_gradients(run: Callable[..., Tensor], text: str) -> None:
    """Of the squared gradient of a cubic in the outputs, autograd's through the definition."""
    seconds = []
    for each_run in (run, parallel):
        inputs = leaves(qkv_of(23))
        first = torch.autograd.grad(each_run(text, *inputs).pow(3).sum(), inputs, create_graph=True)
        total = torch.stack([each.square().sum() for each in first]).sum()
        seconds.append(torch.autograd.grad(total, inputs))
    for one, other in zip(*seconds, strict=True):
        assert_close(one, other, rtol=RTOL)


def assert_little_is_kept(run: Callable[..., Tensor], text: str, dtype: torch.dtype) -> None:
    """Query, key, value, sums, and what is one number a token; all pairs alone would be 32 times the query."""
    inputs = leaves([draw(1, 2, 1024, 32, seed=each).to(dtype) for each in range(3)])
    storages: dict[int, int] = {}

    def pack(each: Tensor) -> Tensor:
        storages[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
        return each

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each):
        output = run(text, *inputs)
    assert output.requires_grad
    assert 3 * inputs[0].nbytes <= sum(storages.values()) <= 5 * inputs[0].nbytes

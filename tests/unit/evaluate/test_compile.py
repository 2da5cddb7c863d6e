"""``torch.compile(fullgraph=True)`` of each method equals eager, forward and backward.

The graph is traced and differentiated ahead of time and run by torch's own operators (``aot_eager``), so no compiler is
needed; the nightly run compiles with the default backend too. Run: pytest tests/unit/evaluate/test_compile.py -q
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from maclaurin import attend, mechanism, methods

LENGTH = 6
#: Text and the methods that serve it; each covers a code path of its own.
TEXTS = (
    "exp/sum",
    "exp/length",
    "taylor:2@mean/sum",
    "exp/l2+valuegate+decay+outgate:after",
    "elu1/sum+decay+window:2:1",
    "exp/cumgate+decay",
)
CASES = [(text, method) for text in TEXTS for method, refusal in methods(text).items() if refusal is None]


def operands(text: str) -> dict[str, Tensor]:
    """What the mechanism reads besides query, key and value."""
    generator = torch.Generator().manual_seed(2)
    per_key = -torch.rand(1, 1, LENGTH, generator=generator)
    drawn = {
        "log_decay": per_key,
        "value_gate": per_key.exp(),
        "output_gate": torch.rand(1, 2, LENGTH, generator=generator),
        "denominator_logit": per_key,
        "far_log_weight": torch.zeros(2),
    }
    return {name: drawn[name].requires_grad_() for name in mechanism(text).operands}


def check(text: str, method: str, backend: str) -> None:
    generator = torch.Generator().manual_seed(1)
    sizes = ((1, 2, LENGTH, 3), (1, 1, LENGTH, 3), (1, 1, LENGTH, 4))
    inputs = [torch.randn(*size, generator=generator).requires_grad_() for size in sizes]
    extra = operands(text)
    chunks = {"chunk_size": 4} if method in ("chunked", "fused") else {}

    def function(*qkv: Tensor) -> Tensor:
        return attend(text, *qkv, method=method, **extra, **chunks).output

    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing of ours may make a tracer warn
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        compiled = torch.compile(function, fullgraph=True, backend=backend)(*inputs)
    eager = function(*inputs)
    torch.testing.assert_close(compiled, eager, rtol=1e-6, atol=1e-6)
    leaves = [*inputs, *extra.values()]
    cotangent = torch.randn(eager.shape, generator=generator)
    found, wanted = (torch.autograd.grad((each * cotangent).sum(), leaves) for each in (compiled, eager))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)  # float32, sums in another order
    assert all(bool(each.any()) for each in wanted if each.shape != (2,))


@pytest.mark.parametrize(("text", "method"), CASES)
def test_compiled_equals_eager(text: str, method: str) -> None:
    check(text, method, "aot_eager")


@pytest.mark.nightly
@pytest.mark.parametrize(("text", "method"), [case for case in CASES if case[1] != "recurrent"])
def test_compiled_by_the_default_backend_equals_eager(text: str, method: str) -> None:
    check(text, method, "inductor")

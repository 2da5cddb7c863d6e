"""Every method on a device against the reference in float64 on the CPU.

Run: pytest tests/gpu -q; with a CUDA device: bash benchmarks/gpu.sh
"""

from __future__ import annotations

import subprocess
from itertools import product
from pathlib import Path

import pytest
import torch

from laws.cases import by, draw, members, serving
from laws.checks import KERNELS, bound_of, well_conditioned_rows
from laws.compare import error_ratio
from laws.test_precision import BOUNDS, ILL_CONDITIONED
from maclaurin import Mechanism, Shape, attend, explain, mechanism, stepper

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
DTYPES = (torch.float32, torch.bfloat16)


def check(member: Mechanism, device: str, dtype: torch.dtype) -> None:
    """Outputs and gradients by every method and kernel, as near to float64 as the laws ask for on the CPU."""
    inputs = draw(20).of(member).map(lambda each: each.to(dtype))
    exact = inputs.map(torch.Tensor.double).leaves()
    keep = well_conditioned_rows(member, exact, is_causal=True)
    expected = attend(member, *exact.qkv, **exact.operands, method="parallel").output * keep
    wanted = torch.autograd.grad(expected.square().sum(), exact.qkv)
    strict = max(BOUNDS[dtype], ILL_CONDITIONED.get(str(member), 0.0))
    for method, kernel in product([*serving(member), "auto"], KERNELS):
        given = inputs.map(lambda each: each.to(device)).leaves()
        out = attend(member, *given.qkv, **given.operands, **by(method), kernel=kernel).output
        assert out.device.type == torch.device(device).type and out.dtype == dtype
        out = out.double() * keep.to(device)
        assert error_ratio(out.cpu(), expected) <= bound_of(strict, dtype, kernel), (method, kernel)
        # the loss doubles an error of the output, and the gradient adds its own roundings
        for one, other in zip(torch.autograd.grad(out.square().sum(), given.qkv), wanted, strict=True):
            assert error_ratio(one.cpu(), other) <= 4 * bound_of(strict, dtype, kernel, passes=2), (method, kernel)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("text", ["exp/sum", "elu1/sum", "taylor:2/sum"])
def test_the_comparison_runs(text: str, dtype: torch.dtype) -> None:
    """On the CPU, so that it is known to be right when there is a device."""
    check(mechanism(text), "cpu", dtype)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("member", members())
def test_methods_on_cuda(member: Mechanism, dtype: torch.dtype) -> None:
    check(member, "cuda", dtype)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("text", ["elu1/sum", "taylor:2/sum"])
def test_compiled_chunks_on_cuda(text: str) -> None:
    given = draw(20).of(mechanism(text)).map(lambda each: each.to("cuda", torch.float32))

    def call(*qkv: torch.Tensor) -> torch.Tensor:
        return attend(text, *qkv, method="chunked").output

    assert error_ratio(torch.compile(call)(*given.qkv), call(*given.qkv)) <= BOUNDS[torch.float32]


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("text", ["exp/sum", "elu1/sum", "taylor:2/sum"])
def test_steps_on_cuda(text: str) -> None:
    q, k, v = (each.to("cuda", torch.float32) for each in draw(20).qkv)
    whole = attend(text, q, k, v).output
    before = attend(text, q[:, :, :-1], k[:, :, :-1], v[:, :, :-1], return_state=True)
    step = stepper(text, before.state)(q[:, :, -1:], k[:, :, -1:], v[:, :, -1:])
    assert error_ratio(step, whole[:, :, -1:]) <= 1e-5  # float32 sums in another order


def test_softmax_goes_to_its_kernels_on_cuda() -> None:
    """Planned anywhere."""
    assert explain("exp/l2", Shape(queries=2048, key_dim=64, heads=8, device="cuda")).method == "fused"


def test_the_script_says_what_it_needs() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    script = Path(__file__).parents[2] / "benchmarks" / "gpu.sh"
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr and not done.stdout

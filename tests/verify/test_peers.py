"""The battery raises no false alarm on implementations by others that are right, and reads a wrong layout as wrong.

The packages are the extra ``peers``; without one its tests are reported as not run.
Run: pytest tests/verify/test_peers.py -q
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin import mechanism
from maclaurin.verify import Report, Target, verify

FLA_WORDS = {"query": "q", "key": "k", "value": "v", "state": "initial_state", "return_state": "output_final_state"}


def peer(module: str, name: str) -> Callable[..., Any]:
    """A function of an installed package; some warn on import that there is no GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
        except ModuleNotFoundError as error:
            pytest.skip(f"{error.name} is not installed: pip install 'maclaurin[peers]'")


def assert_passes(report: Report, *, least: int) -> None:
    """No law failed, and enough of them ran to mean it."""
    assert report.passed, report.failures
    assert report.count("passed") >= least


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=True
    )


def gated_delta_rule(layout: str) -> Target:
    """A mixer outside the family, as the package's reference computes it: only laws without a second opinion run."""
    function = peer("attn_gym.linear", "recurrent_gdn")

    def call(query: Tensor, key: Tensor, value: Tensor, state: Any = None, return_state: bool = False) -> Any:
        gate = query.new_zeros(query.shape[:3])
        key = F.normalize(key, dim=-1)  # longer keys make the delta rule diverge
        out = function(
            query, key, value, gate, gate + 0.5, initial_state=state, output_final_state=return_state, impl="reference"
        )
        return out if return_state else out[0]

    return Target({"recurrent_gdn": call}, layout=layout)


def test_scaled_dot_product_attention_of_torch() -> None:
    target = Target(
        {"sdpa": sdpa}, mechanism("exp/sum"), rename={"mask": "attn_mask"}, mask_kind="pairs", alignment="start"
    )
    assert_passes(verify(target), least=40)


def test_naive_linear_attention_of_fla() -> None:
    """It computes in float32 whatever it is given."""
    function = peer("fla.ops.linear_attn.naive", "naive_recurrent_linear_attn")
    target = Target(
        {"naive": function}, mechanism("power:1/none"), layout="bthd", rename=FLA_WORDS, precision=torch.float32
    )
    assert_passes(verify(target), least=40)


def test_naive_gated_linear_attention_of_fla() -> None:
    function = peer("fla.ops.simple_gla.naive", "naive_recurrent_simple_gla")
    target = Target(
        {"naive": function},
        mechanism("power:1/none+decay"),
        layout="bthd",
        rename={**FLA_WORDS, "log_decay": "g"},
        precision=torch.float32,
    )
    assert_passes(verify(target), least=40)


def test_naive_taylor_attention_of_fla() -> None:
    function = peer("fla.ops.based.naive", "naive_parallel_based")
    rename = {word: FLA_WORDS[word] for word in ("query", "key", "value")}
    target = Target({"naive": function}, mechanism("taylor:2/none"), rename=rename, fixed={"use_norm": False})
    assert_passes(verify(target), least=30)


def test_gated_delta_rule_of_attention_gym() -> None:
    assert_passes(verify(gated_delta_rule("bthd")), least=25)


def test_the_wrong_layout_is_found() -> None:
    """Heads and time exchanged: the shapes agree, the answers do not."""
    report = verify(gated_delta_rule("bhtd"))
    assert not report.passed
    assert "strangers" in {each.law for each in report.failures}

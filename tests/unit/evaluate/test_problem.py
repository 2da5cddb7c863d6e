"""A call, checked: every message about shapes, dtypes, masks, scales, learned tensors and states.

Run: pytest tests/unit/evaluate/test_problem.py -q
"""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from maclaurin import State, attend, mechanism
from maclaurin.errors import ConfigError, DtypeError, MaskError, ShapeError, StateError
from maclaurin.evaluate.problem import Options, Problem, pose


def qkv(
    query: tuple[int, ...] = (2, 6, 5, 4), key: tuple[int, ...] = (2, 3, 7, 4), value: tuple[int, ...] = (2, 3, 7, 8)
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ones(query), torch.ones(key), torch.ones(value)


def posed(*tensors: Tensor, text: str = "exp/sum", **options: object) -> Problem:
    shape = {name: options.pop(name) for name in ("is_causal", "scale", "mask", "state") if name in options}
    return pose(mechanism(text), *(tensors or qkv()), Options(**shape, operands=options))


# ------------------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("shapes", "wrong"),
    [
        ({"query": (6, 5, 4)}, "must have four dimensions each"),
        ({"value": (2, 3, 7, 8, 1)}, "must have four dimensions each"),
        ({"query": (1, 6, 5, 4)}, r"disagree on the batch \(dimension 0\)"),
        ({"value": (1, 3, 7, 8)}, r"disagree on the batch \(dimension 0\)"),
        ({"value": (2, 6, 7, 8)}, r"disagree on key/value heads \(dimension 1 of key and value\)"),
        ({"value": (2, 3, 6, 8)}, r"disagree on time \(dimension 2 of key and value\)"),
        ({"query": (2, 6, 5, 3)}, r"disagree on the key dim \(dimension 3 of query and key\)"),
        ({"query": (2, 4, 5, 4)}, "do not group: query heads must be a multiple of key/value heads"),
        ({"query": (2, 2, 5, 4)}, "do not group"),
        ({"key": (2, 0, 7, 4), "value": (2, 0, 7, 8)}, "do not group"),
    ],
)
def test_shapes_that_disagree_are_all_printed(shapes: dict[str, tuple[int, ...]], wrong: str) -> None:
    tensors = qkv(**shapes)
    with pytest.raises(ShapeError, match=f"attend: query, key and value {wrong}") as caught:
        attend("exp/sum", *tensors)
    message = str(caught.value)
    names = zip(("query", "key", "value"), tensors, strict=True)
    assert " - ".join(f"{name} {tuple(each.shape)}" for name, each in names) in message
    assert "query [B, H, T, K], key [B, Hkv, S, K], value [B, Hkv, S, V]" in message


# ------------------------------------------------------------------------------------------------- dtypes


@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float32, torch.float64, torch.float32),
        (torch.float32, torch.float32, torch.bfloat16),
        (torch.float16, torch.bfloat16, torch.bfloat16),
        (torch.int64, torch.int64, torch.int64),
        (torch.bool, torch.bool, torch.bool),
        (torch.complex64, torch.complex64, torch.complex64),
    ],
    ids=str,
)
def test_dtypes_are_one_and_floating(dtypes: tuple[torch.dtype, ...]) -> None:
    tensors = [each.to(dtype) for each, dtype in zip(qkv(), dtypes, strict=True)]
    with pytest.raises(DtypeError) as caught:
        attend("exp/sum", *tensors)
    message = str(caught.value)
    assert f"query is {dtypes[0]}, key is {dtypes[1]}, value is {dtypes[2]}." in message
    assert "Give all three in one floating-point dtype" in message


def test_devices_are_one() -> None:
    q, k, v = qkv()
    with pytest.raises(DtypeError, match=r"are on cpu, cpu, meta\.\n  Move them to one device"):
        attend("exp/sum", q, k, v.to("meta"))


@pytest.mark.parametrize("given", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_half_precision_is_computed_in_float32(given: torch.dtype) -> None:
    problem = posed(*(each.to(given) for each in qkv()))
    wide = torch.float64 if given == torch.float64 else torch.float32
    tensors = (problem.queries.near, problem.keys.key, problem.keys.value)
    assert (problem.dtype, *(each.dtype for each in tensors)) == (given, wide, wide, wide)


# ------------------------------------------------------------------------------------------------- masks


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (torch.zeros(2, 7), r"dtype torch\.float32"),
        (torch.zeros(2, 1, 5, 7), r"dtype torch\.float32"),
        (torch.ones(2, 7, dtype=torch.int64), r"dtype torch\.int64"),
        (torch.ones(2, 7, dtype=torch.uint8), r"dtype torch\.uint8"),
        ([[True] * 7] * 2, "type list"),
    ],
)
def test_additive_and_integer_masks_are_refused(mask: object, kind: str) -> None:
    with pytest.raises(MaskError, match=f"the mask has {kind}; additive and integer masks are refused") as caught:
        attend("exp/sum", *qkv(), mask=mask)
    legal = (
        "Give bool [B, S] = (2, 7) over keys, or bool [B, 1 or H, T, S] = (2, 6, 5, 7), True where a key may be seen"
    )
    assert legal in str(caught.value)
    assert "mask == 0" in str(caught.value)


@pytest.mark.parametrize(
    "shape",
    [(7,), (2, 5), (1, 7), (2, 1, 7), (5, 7), (2, 3, 5, 7), (1, 1, 5, 7), (2, 1, 1, 7), (2, 6, 7, 5), (2, 6, 5, 7, 1)],
)
def test_masks_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(MaskError, match=re.escape(f"the mask has shape {shape}.\n  Give bool [B, S] = (2, 7)")):
        attend("exp/sum", *qkv(), mask=torch.ones(shape, dtype=torch.bool))


def test_masks_of_both_kinds_find_their_place() -> None:
    keys = torch.rand(2, 7, generator=torch.Generator().manual_seed(0)) < 0.5
    assert posed(mask=keys).pair_mask is None
    assert torch.equal(posed(mask=keys).keys.visible, keys)
    assert torch.equal(posed(mask=keys).keys.shown, keys)
    assert posed().keys.visible is None
    assert bool(posed().keys.shown.all())
    shared, own = torch.ones(2, 1, 5, 7, dtype=torch.bool), torch.ones(2, 6, 5, 7, dtype=torch.bool)
    assert posed(mask=shared).pair_mask.shape == (2, 1, 1, 5, 7)
    assert posed(mask=own).pair_mask.shape == (2, 3, 2, 5, 7)


def test_what_is_visible() -> None:
    causal = torch.ones(5, 7, dtype=torch.bool).tril(2)  # aligned to the end
    assert torch.equal(posed().visible[0, 0, 0], causal)
    assert bool(posed(is_causal=False).visible.all())
    keys = torch.tensor([[True] * 6 + [False], [False] + [True] * 6])
    assert torch.equal(posed(mask=keys).visible[:, 0, 0], causal & keys[:, None])
    pairs = torch.rand(2, 6, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.5
    assert torch.equal(posed(mask=pairs).visible.flatten(1, 2), causal & pairs)
    assert torch.equal(posed(mask=pairs, is_causal=False).visible.flatten(1, 2), pairs)


def test_hidden_keys_and_values_are_zeros_after_the_map() -> None:
    keys = torch.tensor([[True] * 6 + [False], [False] + [True] * 6])
    for text in ("exp/sum", "elu1/sum", "expmap/sum", "cosine/l2"):
        problem = posed(mask=keys, text=text)
        for each in (problem.keys.key, problem.keys.value):
            assert torch.equal(each.any(-1), keys[:, None].expand(2, 3, 7))


def test_only_what_stands_on_a_pad_loses_what_is_not_finite() -> None:
    """A NaN anywhere else is the caller's, and stays to be seen."""
    keys = torch.tensor([[False, True, True], [True, False, True]])
    q, k, v = qkv((2, 6, 5, 4), (2, 3, 3, 4), (2, 3, 3, 8))
    q[..., 0] = float("nan")
    q[..., 1] = 7.0
    stays = torch.tensor([[True, True, False, True, True], [True, True, True, False, True]])  # query t on key t - 2
    query = posed(q, k, v, mask=keys).queries.near.flatten(1, 2)
    assert torch.equal(query[..., 0].isnan(), stays[:, None].expand(2, 6, 5))
    assert bool((query[..., 1] == 7.0).all())
    assert bool(posed(q, k, v, mask=keys, is_causal=False).queries.near[..., 0].isnan().all())  # stand on no key
    assert bool(posed(q, k, v).queries.near[..., 0].isnan().all())


# ------------------------------------------------------------------------------------------------- scale


def test_default_scales() -> None:
    assert posed().queries.near_scale == 0.5
    assert posed(text="elu1/sum").queries.far_scale == 1.0
    assert posed(scale=0).queries.near_scale == 0.0
    assert posed(scale=-2).queries.near_scale == -2.0
    window = posed(text="elu1/sum+window:4", far_log_weight=torch.zeros(6)).queries
    assert (window.near_scale, window.far_scale) == (0.5, 1.0)  # exact inside, linear attention beyond
    window = posed(text="elu1/sum+window:4", far_log_weight=torch.zeros(6), scale=0.3).queries
    assert (window.near_scale, window.far_scale) == (0.3, 0.3)


# ------------------------------------------------------------------------------------------------- learned tensors


def test_learned_tensors_are_brought_to_the_accumulators_form() -> None:
    per_head = posed(text="layer".join(["exp/", ":weight:bias"]), norm_weight=torch.ones(6, 8), norm_bias=torch.ones(8))
    assert per_head.finish.norm_weight.shape == (3, 2, 1, 8)
    assert per_head.finish.norm_bias.shape == (8,)
    assert posed(text="exp/length:learned", length_exponent=torch.ones(6)).finish.length_exponent.shape == (3, 2, 1)
    assert posed(text="exp/rms:weight").finish.norm_weight is None
    mixed = posed(*(each.bfloat16() for each in qkv()), text="exp/rms:weight", norm_weight=torch.ones(8).double())
    assert mixed.finish.norm_weight.dtype == torch.float32
    assert posed(text="elu1/sum+window:4", far_log_weight=torch.zeros(6)).queries.far_log_weight.shape == (3, 2, 1)


def test_gates_are_brought_to_the_form_of_what_they_multiply() -> None:
    for gate, shape in ((torch.ones(2, 6, 5), (2, 3, 2, 5, 1)), (torch.ones(2, 6, 5, 8), (2, 3, 2, 5, 8))):
        assert posed(text="exp/sum+outgate", output_gate=gate).finish.output_gate.shape == shape
    gate = torch.full((2, 3, 7), 0.5)
    assert bool((posed(text="exp/sum+valuegate", value_gate=gate).keys.value == 0.5).all())
    decayed = posed(text="exp/sum+decay", log_decay=-gate)
    assert torch.equal(decayed.keys.log_decay, -gate)
    assert decayed.pairwise_log_decay.shape == (2, 3, 1, 5, 7)
    assert torch.equal(decayed.log_decay_of_state[0, 0, 0], -0.5 * torch.arange(3.0, 8.0))
    assert posed(text="exp/sum").pairwise_log_decay is None
    assert posed(text="exp/sum").log_decay_of_state is None


def test_what_is_hidden_neither_decays_nor_counts_whatever_stands_there() -> None:
    keys = torch.tensor([[True] * 6 + [False], [False] + [True] * 6])
    for hidden in (float("nan"), float("inf"), 7.0):
        decay = torch.where(keys[:, None].expand(2, 3, 7), -1.0, hidden)
        problem = posed(
            text="exp/cumgate+valuegate+decay", mask=keys, log_decay=decay, value_gate=decay, denominator_logit=decay
        )
        for each in (problem.keys.log_decay, problem.keys.denominator_logit, problem.keys.value[..., 0]):
            assert torch.equal(each, torch.where(keys[:, None].expand(2, 3, 7), -1.0, 0.0))


def test_a_log_decay_is_not_positive() -> None:
    decay = torch.zeros(2, 3, 7)
    decay[1, 2, 3] = 0.25
    with pytest.raises(
        ConfigError, match=r"log_decay reaches 0\.25; weights would grow with time\.\n  Give log decays <= 0"
    ):
        attend("exp/sum+decay", *qkv(), log_decay=decay)
    decay[1, 2, 3] = float("-inf")
    assert bool(attend("exp/sum+decay", *qkv(), log_decay=decay).output.isfinite().all())


@pytest.mark.parametrize(("text", "part"), [("exp/sum+decay", "decays"), ("taylor:2/sum+window:4", "has a window")])
def test_what_needs_a_direction_of_time(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"is_causal=False was asked of {text}, which {part}: it needs a")):
        attend(text, *qkv(), is_causal=False)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("exp/sum", "norm_weight"),
        ("exp/sum", "norm_bias"),
        ("exp/length", "length_exponent"),
        ("exp/rms", "norm_weight"),
        ("exp/rms:weight", "norm_bias"),
        ("exp/layer:bias", "norm_weight"),
        ("exp/sum", "log_decay"),
        ("exp/sum", "value_gate"),
        ("exp/sum", "output_gate"),
        ("exp/sum", "denominator_logit"),
        ("elu1/sum", "far_log_weight"),
        ("taylor:2@mean/sum+window:4", "far_log_weight"),
        ("exp/sum+window:4", "far_log_weight"),
    ],
)
def test_a_learned_tensor_that_nobody_reads(text: str, name: str) -> None:
    message = f"attend: {name} was given to {text}, which does not read it.\n  Leave it out, or use"
    with pytest.raises(ConfigError, match=re.escape(message)):
        attend(text, *qkv(), **{name: torch.ones(8)})


@pytest.mark.parametrize(
    ("text", "name", "shape", "legal"),
    [
        ("exp/rms:weight", "norm_weight", (7,), "(8,) or (6, 8)"),
        ("exp/rms:weight", "norm_weight", (3, 8), "(8,) or (6, 8)"),
        ("exp/layer:bias", "norm_bias", (1,), "(8,) or (6, 8)"),
        ("exp/length:learned", "length_exponent", (3,), "(6,)"),
        ("exp/length:learned", "length_exponent", (), "(6,)"),
        ("exp/length:learned", "length_exponent", (6, 1), "(6,)"),
        ("exp/sum+decay", "log_decay", (2, 6, 7), "(2, 3, 7)"),
        ("exp/sum+decay", "log_decay", (2, 3, 5), "(2, 3, 7)"),
        ("exp/sum+decay", "log_decay", (3,), "(2, 3, 7)"),
        ("exp/sum+valuegate", "value_gate", (2, 7, 3), "(2, 3, 7)"),
        ("exp/cumgate", "denominator_logit", (2, 3, 7, 1), "(2, 3, 7)"),
        ("exp/sum+outgate", "output_gate", (2, 3, 5), "(2, 6, 5) or (2, 6, 5, 8)"),
        ("exp/sum+outgate:after", "output_gate", (2, 6, 7, 8), "(2, 6, 5) or (2, 6, 5, 8)"),
        ("elu1/sum+window:4", "far_log_weight", (3,), "(6,)"),
    ],
)
def test_a_learned_tensor_of_another_shape(text: str, name: str, shape: tuple[int, ...], legal: str) -> None:
    with pytest.raises(
        ShapeError, match=rf"attend: {name}, .*, has shape {re.escape(str(shape))}; it must be {re.escape(legal)}"
    ):
        attend(text, *qkv(), **{name: torch.ones(shape)})


@pytest.mark.parametrize(
    ("text", "name", "legal"),
    [
        ("exp/length:learned", "length_exponent", "(6,)"),
        ("exp/sum+decay", "log_decay", "(2, 3, 7)"),
        ("exp/sum+valuegate", "value_gate", "(2, 3, 7)"),
        ("exp/sum+outgate", "output_gate", "(2, 6, 5) or (2, 6, 5, 8)"),
        ("exp/cumgate", "denominator_logit", "(2, 3, 7)"),
        ("power:2/sum+window:4", "far_log_weight", "(6,)"),
    ],
)
def test_an_operand_that_is_missing(text: str, name: str, legal: str) -> None:
    message = (
        rf"attend: {re.escape(text)} needs {name}, .*; it is missing\.\n  Give a tensor of shape {re.escape(legal)}"
    )
    with pytest.raises(ConfigError, match=message):
        attend(text, *qkv())


def test_an_operand_is_a_floating_point_tensor() -> None:
    for wrong, kind in ((torch.zeros(2, 3, 7, dtype=torch.int64), "torch.int64"), ([0.0], "list")):
        with pytest.raises(DtypeError, match=f"attend: log_decay is {kind}"):
            attend("exp/sum+decay", *qkv(), log_decay=wrong)
    with pytest.raises(DtypeError, match="attend: log_decay is on meta, value on cpu"):
        attend("exp/sum+decay", *qkv(), log_decay=torch.zeros(2, 3, 7, device="meta"))


# ------------------------------------------------------------------------------------------------- states


def state(text: str, **changes: object) -> State:
    sizes = {"batch_size": 2, "num_kv_heads": 3, "key_dim": 4, "value_dim": 8, **changes}
    return State.empty(mechanism(text), **sizes)


@pytest.mark.parametrize("method", ["auto", "parallel", "recurrent"])
@pytest.mark.parametrize("text", ["exp/sum", "taylor:2@mean/sum", "power:2/sum", "taylor:0/sum"])
def test_a_state_that_fits(text: str, method: str) -> None:
    for given in (qkv(), tuple(each.bfloat16() for each in qkv())):
        fresh = attend(text, *given, state=state(text), method=method).output
        # an empty state adds nothing; 1e-2: bfloat16 keeps three digits
        assert torch.allclose(fresh, attend(text, *given, method=method).output, rtol=1e-2)


@pytest.mark.parametrize(
    ("text", "other", "message"),
    [
        (
            "exp/sum",
            state("exp/l2"),
            "the state belongs to exp/l2, the call is for exp/sum.\n  A state holds what its own",
        ),
        ("exp/sum", state("taylor:2/sum"), "the state belongs to taylor:2/sum, the call is for exp/sum."),
        ("taylor:2/sum", state("taylor:2@mean/sum"), "the state belongs to taylor:2@mean/sum"),
        ("taylor:2/sum", state("taylor:2/sum:detach"), "the state belongs to taylor:2/sum:detach"),
        ("exp/sum", "a state", "state is a str.\n  Give what an earlier call returned, or State.empty."),
        ("exp/sum", torch.ones(1), "state is a Tensor."),
        ("exp/sum", state("exp/sum", batch_size=1), "[B, Hkv, K, V] = (1, 3, 4, 8), the call for (2, 3, 4, 8)."),
        ("exp/sum", state("exp/sum", num_kv_heads=6), "= (2, 6, 4, 8), the call for (2, 3, 4, 8)."),
        ("exp/sum", state("exp/sum", key_dim=5), "= (2, 3, 5, 8), the call for (2, 3, 4, 8)."),
        ("taylor:2/sum", state("taylor:2/sum", key_dim=5), "= (2, 3, 5, 8), the call for (2, 3, 4, 8)."),
        ("power:2/sum", state("power:2/sum", key_dim=5), "= (2, 3, 5, 8), the call for (2, 3, 4, 8)."),
        ("power:3/l2", state("power:3/l2", key_dim=3), "= (2, 3, 3, 8), the call for (2, 3, 4, 8)."),
        ("taylor:2@mean/l2", state("taylor:2@mean/l2", value_dim=2), "= (2, 3, 4, 2), the call for (2, 3, 4, 8)."),
        ("taylor:0/sum", state("taylor:0/sum", value_dim=2), "= (2, 3, None, 2), the call for (2, 3, None, 8)."),
        (
            "taylor:2/l2",
            state("taylor:2/l2", dtype=torch.float64),
            "the state is torch.float64 on cpu, the call computes",
        ),
        ("exp/sum", state("exp/sum", dtype=torch.float64), "in torch.float32 on cpu.\n  Make the state in that dtype"),
        ("exp/sum", state("exp/sum", device="meta"), "the state is torch.float32 on meta"),
    ],
)
def test_a_state_of_something_else(text: str, other: object, message: str) -> None:
    for method in ("parallel", "recurrent"):
        with pytest.raises(StateError, match=re.escape(message)):
            attend(text, *qkv(), state=other, method=method)


def test_half_precision_does_not_take_a_float64_state() -> None:
    with pytest.raises(StateError, match=r"float32 for half-precision inputs"):
        attend("exp/sum", *(each.bfloat16() for each in qkv()), state=state("exp/sum", dtype=torch.float64))


def test_the_initial_state_is_the_one_given_or_an_empty_one() -> None:
    given = state("taylor:2@mean/sum")
    assert posed(text="taylor:2@mean/sum", state=given).initial_state() is given
    made = posed(text="taylor:2@mean/sum").initial_state()
    assert made.layout == given.layout
    assert not made.count.any()


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), float("-inf")])
def test_a_scale_is_a_number(scale: float) -> None:
    with pytest.raises(ConfigError, match=r"scale=-?(nan|inf) is not a finite number"):
        posed(scale=scale)

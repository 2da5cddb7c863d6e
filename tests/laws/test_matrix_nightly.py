"""The extended law matrix: more head sizes, lengths, chunk sizes and seeds than the everyday suite has time for.

Run: pytest tests/laws/test_matrix_nightly.py -m nightly -q
"""

from __future__ import annotations

from math import comb

import pytest

from laws.cases import Inputs, by, draw
from laws.checks import RTOL, Piece, check_plans_agree, magnitudes, pieces, sums, well_conditioned_rows, whole
from laws.compare import assert_close
from laws.matrix import Cell, Composition, cells, gated, plain
from laws.oracle import oracle
from laws.refusals import has_state, is_built, refusal
from maclaurin import Mechanism, attend
from maclaurin.algebra import Power, Series, parse

pytestmark = pytest.mark.nightly

#: The gated half has every similarity with every normalizer; the plain half is run at every chunk size besides.
GATED = gated(is_built)
PLAIN = [each for each in plain() if is_built(each)]
CHUNK_SIZES = (1, 7, 16, 64)
#: (key dim, value dim), none equal but for the last.
WIDTHS = ((1, 3), (3, 1), (8, 5), (17, 8), (64, 17), (256, 64), (16, 16))
#: Numbers in a state beyond which a width is left out: memory and minutes, not a law.
LARGEST_STATE = 200_000
#: Lengths of queries and keys, prime or next to a chunk.
LENGTHS = ((1, 1), (2, 2), (17, 17), (63, 63), (5, 41), (41, 5))


def run_cells(composition: Composition) -> list[Cell]:
    """Those that are not refused."""
    return [cell for cell in cells(composition) if refusal(cell) is None]


def plans(run: list[Cell], chunk_sizes: tuple[int, ...]) -> list[list[Piece]]:
    """Every method, and every chunk size where there are chunks."""
    found = []
    for cell in run:
        sizes = chunk_sizes if cell.method in ("chunked", "fused") else (1,)
        found += [whole(cell.method, size) for size in sizes if cell.method != "parallel"]
    return found


def is_ill_conditioned(mechanism: Mechanism) -> bool:
    """Whether some row of some draw loses more digits than the tolerance leaves.

    A power read from moments, where the query is nearly orthogonal to the few keys it sees; a norm of a sum of both
    signs, which may nearly vanish.
    """
    function = mechanism.similarity.function
    is_power = isinstance(function, Power) and function.exponent > 1
    return is_power or (mechanism.normalizer.is_scale_invariant and mechanism.positivity == "signed")


def forgets_the_query(mechanism: Mechanism, key_dim: int) -> bool:
    """Whether one feature and one power leave the query as a factor, whose gradient is a zero made of roundings."""
    function = mechanism.similarity.function
    return key_dim == 1 and isinstance(function, Series) and len(function.orders) == 1


def check_sums(mechanism: Mechanism, inputs: Inputs, others: list[list[Piece]], *, is_causal: bool) -> None:
    """What outputs are made of, where they themselves lose digits: relative to the sums without signs."""
    expected = sums(mechanism, inputs, whole("parallel"), is_causal=is_causal)
    scales = magnitudes(mechanism, inputs, is_causal=is_causal)
    for plan in others:
        found = sums(mechanism, inputs, plan, is_causal=is_causal)
        for one, other, scale in zip(found, expected, scales, strict=True):
            assert_close(one, other, rtol=RTOL, scale=scale.max())


def check_sizes(composition: Composition, chunk_sizes: tuple[int, ...], seed: int, **sizes: int) -> None:
    """Every method agrees at these sizes, in every direction."""
    mechanism = parse(composition.text)
    inputs = draw(seed, **sizes).of(mechanism)
    for is_causal in (True, False):
        run = [cell for cell in run_cells(composition) if cell.is_causal == is_causal]
        if len(run) < 2:
            continue
        others = plans(run, chunk_sizes)
        if is_ill_conditioned(mechanism) or forgets_the_query(mechanism, sizes["key_dim"]):
            check_sums(mechanism, inputs, others, is_causal=is_causal)
            continue
        check_plans_agree(
            mechanism, inputs, whole("parallel"), *others, is_causal=is_causal, return_state=has_state(composition)
        )


@pytest.mark.parametrize("composition", PLAIN + GATED, ids=lambda each: each.text)
def test_chunk_sizes(composition: Composition) -> None:
    check_sizes(composition, CHUNK_SIZES, 2, batch=2, heads=2, kv_heads=1, queries=37, key_dim=4, value_dim=3)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("composition", GATED, ids=lambda each: each.text)
def test_lengths(composition: Composition, lengths: tuple[int, int]) -> None:
    queries, keys = lengths
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "queries": queries, "keys": keys, "key_dim": 4, "value_dim": 3}
    mechanism = parse(composition.text)
    inputs = draw(4, **sizes).of(mechanism)
    for is_causal in sorted({cell.is_causal for cell in run_cells(composition)}):
        keep = well_conditioned_rows(mechanism, inputs, is_causal=is_causal)
        expected = oracle(mechanism, inputs, is_causal=is_causal) * keep
        for cell in [each for each in run_cells(composition) if each.is_causal == is_causal]:
            for size in CHUNK_SIZES if cell.method in ("chunked", "fused") else (1,):
                call = by(cell.method, size)
                out = attend(mechanism, *inputs.qkv, **inputs.operands, **call, is_causal=is_causal).output
                scale = max(1.0, float(expected.abs().max()))
                # powers: a query nearly orthogonal to the one key it sees loses digits of its moments
                rtol = 1e-9 if is_ill_conditioned(mechanism) else RTOL
                assert_close(out * keep, expected, rtol=rtol, scale=scale, what=f"{cell} chunk {size}")


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("composition", GATED, ids=lambda each: each.text)
def test_head_sizes(composition: Composition, widths: tuple[int, int]) -> None:
    key_dim, value_dim = widths
    mechanism = parse(composition.text)
    if mechanism.far is not None and comb(key_dim + mechanism.far.function.degree, key_dim) * value_dim > LARGEST_STATE:
        pytest.skip(f"a state of more than {LARGEST_STATE} numbers")
    # expmap and features reach exp(1)^K: their logits grow with K, and are compared as any other
    check_sizes(composition, (7,), 5, batch=1, heads=2, kv_heads=1, queries=17, key_dim=key_dim, value_dim=value_dim)


@pytest.mark.parametrize("seed", range(6, 12))
@pytest.mark.parametrize("composition", GATED, ids=lambda each: each.text)
def test_splits(composition: Composition, seed: int) -> None:
    """Prefill by one method, continue by another, on a state between."""
    mechanism = parse(composition.text)
    able = [cell.method for cell in run_cells(composition) if cell.is_causal]
    if not has_state(composition):
        pytest.skip("no state")
    inputs = draw(seed, heads=4, kv_heads=2, queries=23, key_dim=3, value_dim=4).of(mechanism)
    order = [able[(seed + i) % len(able)] for i in range(3)]
    plan = pieces(order, (1 + seed, 15), is_causal=True)
    if is_ill_conditioned(mechanism):
        check_sums(mechanism, inputs, [plan], is_causal=True)
    else:
        check_plans_agree(mechanism, inputs, whole("parallel"), plan, is_causal=True)

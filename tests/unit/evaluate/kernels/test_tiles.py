"""How a call is cut: spans of time, tiles of batch rows and heads, chunks of a span.

Run: pytest tests/unit/evaluate/kernels/test_tiles.py -q
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from maclaurin.evaluate.kernels.tiles import Cut, Span, from_chunks, to_chunks

LENGTHS = (1, 2, 3, 7, 16, 63, 64, 97, 128, 257, 1000, 1021)
CHUNKS = (1, 3, 16, 64, 128)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("chunks_of_a_span", [1, 2, 3, 5, 100])
def test_spans_follow_one_another(chunk: int, chunks_of_a_span: int) -> None:
    for length in LENGTHS:
        found = Cut(chunk, chunk * chunks_of_a_span).spans(length)
        assert found[0].start == 0 and found[-1].stop == length
        assert all(one.stop == two.start for one, two in pairwise(found))
        assert all(each.num_chunks * each.chunk == each.stop - each.start > 0 for each in found)
        tails = [each for each in found if each.chunk != chunk]
        assert tails == ([Span(length - length % chunk, length, length % chunk)] if length % chunk else [])


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("chunks_of_a_span", [1, 2, 3, 5, 100])
def test_whole_spans_are_of_like_length(chunk: int, chunks_of_a_span: int) -> None:
    """All but the last are equal, the last is no longer, and none is much longer than what was wanted."""
    wanted = chunk * chunks_of_a_span
    for length in LENGTHS:
        sizes = [each.stop - each.start for each in Cut(chunk, wanted).spans(length) if each.chunk == chunk]
        assert len(set(sizes[:-1])) <= 1
        assert not sizes or sizes[-1] <= sizes[0] < 1.5 * wanted + chunk  # rounding to a whole number, then to chunks


def test_spans_by_hand() -> None:
    assert Cut(4, 8).spans(3) == [Span(0, 3, 3)]
    assert Cut(4, 8).spans(18) == [Span(0, 8, 4), Span(8, 16, 4), Span(16, 18, 2)]
    assert Cut(4, 12).spans(20) == [Span(0, 12, 4), Span(12, 20, 4)]
    assert Cut(4, 12).spans(28) == [Span(0, 16, 4), Span(16, 28, 4)]  # two of like length, not two and a third


@pytest.mark.parametrize("span", [1, 16, 64, 200, 1000, 100_000])
def test_tiles_are_a_partition_of_rows_and_heads(span: int) -> None:
    for batch in (1, 2, 5):
        for heads in (1, 3, 8):
            for length in (1, 7, 64, 257):
                seen = torch.zeros(batch, heads)
                for tile in Cut(1, span).tiles(batch, heads, length):
                    seen[tile] += 1
                    rows, width = tile.batch.stop - tile.batch.start, tile.head.stop - tile.head.start
                    assert rows * width * length <= max(span, length)  # one head at least
                assert bool((seen == 1).all())


@pytest.mark.parametrize("groups", [1, 3])
def test_chunks_and_back(groups: int) -> None:
    span, heads, width = Span(5, 17, 4), 2, 3
    x = torch.arange(heads * groups * 12 * width).view(heads, groups, 12, width)
    chunks = to_chunks(x, span)
    assert chunks.shape == (heads * 3, groups * 4, width)
    for head in range(heads):
        for number in range(3):
            expected = x[head, :, 4 * number : 4 * number + 4].reshape(-1, width)
            assert torch.equal(chunks[3 * head + number], expected)
    assert torch.equal(from_chunks(chunks, span, x.shape), x)
    assert torch.equal(from_chunks(chunks, span, (1, *x.shape)), x[None])

r"""Features of a polynomial's finite state, in the layout that is fastest to make and to differentiate.

Order 2 is circulant: block s holds x_i x_{i+s} for all i (indices modulo K), so every product is a slice times a
slice. The state's own layout, symmetric monomials, is a permutation with weights away.

Dimension key: N any number of chunks, C tokens of one, K width of the mapped key, F features, V columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import torch
from torch import Tensor

from maclaurin.algebra import monomials, num_monomials


@dataclass(frozen=True)
class Features:
    """The monomials of some orders of K variables.

    Args:
        orders: ascending.
        width: K.
    """

    orders: tuple[int, ...]
    width: int

    @property
    def size(self) -> int:
        """F."""
        return sum(num_monomials(self.width, n) for n in self.orders)

    @property
    def parts(self) -> list[slice]:
        """Where the features of each order are."""
        found, start = [], 0
        for n in self.orders:
            found.append(slice(start, start + num_monomials(self.width, n)))
            start = found[-1].stop
        return found

    @property
    def _is_linear(self) -> bool:
        return self.orders == (1,)

    @property
    def _is_circulant(self) -> bool:
        return self.orders[-1] <= 2

    def of(self, x_NCK: Tensor, scales: Mapping[int, Tensor] = MappingProxyType({})) -> Tensor:
        """``[N, C, F]``, of any strides.

        Args:
            x_NCK: the vectors.
            scales: factors ``[N, C, 1]`` of every feature of an order; none for orders that are not there.
        """
        if not self._is_circulant:
            powers = monomials(x_NCK, self.orders[-1])
            scaled = [powers[n] * scales[n] if n in scales else powers[n] for n in self.orders]
            return torch.cat(scaled, dim=-1)
        if self._is_linear and not scales:
            return x_NCK
        num, length, _ = x_NCK.shape
        out_NFC = x_NCK.new_empty(num, self.size, length)
        x_NKC = x_NCK.transpose(1, 2).contiguous()
        for n, part in zip(self.orders, self.parts, strict=True):
            factor = scales[n].transpose(1, 2) if n in scales else None
            if n == 0:
                out_NFC[:, part] = 1.0 if factor is None else factor
            elif n == 1 and factor is not None:
                torch.mul(x_NKC, factor, out=out_NFC[:, part])
            elif n == 1:
                out_NFC[:, part] = x_NKC
            else:
                _multiply_circulant(x_NKC, out_NFC[:, part])
                if factor is not None:
                    out_NFC[:, part] *= factor
        return out_NFC.transpose(1, 2)

    def pull(self, x_NCK: Tensor, rows: Sequence[Tensor], matrix_NFV: Tensor) -> Tensor:
        """Gradient in x of the sum over orders of ``(of(x)[order] * (rows[order] @ matrix[order].T)).sum()``.

        Args:
            x_NCK: where.
            rows: ``[N, C, V]`` for every order.
            matrix_NFV: of all features.
        """
        if not self._is_circulant:
            with torch.enable_grad():
                x = x_NCK.detach().requires_grad_()
                found = self.of(x)
            grads = [each @ matrix_NFV[:, part].transpose(1, 2) for each, part in zip(rows, self.parts, strict=True)]
            return torch.autograd.grad(found, x, torch.cat(grads, dim=-1))[0]
        out: Tensor | None = None
        for n, part, each in zip(self.orders, self.parts, rows, strict=True):
            if n > 0:
                pull = _pull_linear if n == 1 else _pull_circulant
                term = pull(x_NCK, each, matrix_NFV[:, part])
                out = term if out is None else out.add_(term)
        return torch.zeros_like(x_NCK) if out is None else out

    def readout(self, coefficients: Sequence[float], like: Tensor) -> Tensor | None:
        """Factors ``[F, 1]`` that make ``of(q) @ (factors * of(k))`` a polynomial of <q, k>; None for ones.

        Args:
            coefficients: of the powers, one for each order.
            like: of the dtype and device to have.
        """
        if all(a == 1.0 for a in coefficients) and not (self._is_circulant and 2 in self.orders):
            return None
        found = [a * self._multiplicity(n, like) for n, a in zip(self.orders, coefficients, strict=True)]
        return torch.cat(found)[:, None]

    def _multiplicity(self, order: int, like: Tensor) -> Tensor:
        """How often each feature counts in <q, k>**order, ``[F_n]``."""
        count = like.new_ones(num_monomials(self.width, order))
        if order == 2 and self._is_circulant:
            count[self.width :] = 2.0
        return count

    def to_moments(self, state_BHFV: Tensor) -> list[Tensor]:
        """The state's moments ``[B, H, F_n, V]``, by order, from sums of these features."""
        found = [state_BHFV[:, :, part] for part in self.parts]
        if not self._is_circulant or 2 not in self.orders:
            return found
        place, weight = self._order_two(state_BHFV)
        return [each[:, :, place] * weight if n == 2 else each for n, each in zip(self.orders, found, strict=True)]

    def from_moments(self, moments: list[Tensor]) -> Tensor:
        """The inverse of :meth:`to_moments`, ``[B, H, F, V]``."""
        if self._is_circulant and 2 in self.orders:
            place, weight = self._order_two(moments[0])
            back = torch.empty_like(place)
            back[place] = torch.arange(len(place), device=place.device)
            moments = [
                (each / weight)[:, :, back] if n == 2 else each for n, each in zip(self.orders, moments, strict=True)
            ]
        return torch.cat(moments, dim=2)

    def _order_two(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """For each symmetric monomial its circulant place, ``[F_2]``, and its weight, ``[F_2, 1]``."""
        place, is_square = _places(self.width)
        weight = like.new_full(is_square.shape, math.sqrt(2.0)).masked_fill(is_square.to(like.device), 1.0)
        return place.to(like.device), weight[:, None]


def _multiply_circulant(x_NKC: Tensor, out_NFC: Tensor) -> None:
    """Write every product of two coordinates, all whole blocks at once: block s is a window of x behind x."""
    num, width, length = x_NKC.shape
    whole, half = (width + 1) // 2, width // 2
    twice_NKC = torch.cat([x_NKC, x_NKC], dim=1)
    windows = twice_NKC.as_strided((num, whole, width, length), (2 * width * length, length, length, 1))
    blocks = out_NFC[:, : whole * width].view(num, whole, width, length)
    torch.mul(windows, x_NKC[:, None], out=blocks)
    if whole == half:
        torch.mul(x_NKC[:, :half], x_NKC[:, half:], out=out_NFC[:, whole * width :])


def _pull_linear(x_NCK: Tensor, rows_NCV: Tensor, matrix_NKV: Tensor) -> Tensor:
    return rows_NCV @ matrix_NKV.transpose(1, 2)


def _pull_circulant(x_NCK: Tensor, rows_NCV: Tensor, matrix_NFV: Tensor) -> Tensor:
    grad_NFC = matrix_NFV @ rows_NCV.transpose(1, 2)
    x_NKC = x_NCK.transpose(1, 2).contiguous()
    width = x_NKC.shape[1]
    twice_NKC = torch.cat([x_NKC, x_NKC], dim=1)
    first_NKC, second_NKC = torch.zeros_like(x_NKC), torch.zeros_like(twice_NKC)
    for shift, start, rows in _circulant(width):
        grad = grad_NFC[:, start : start + rows]
        first_NKC[:, :rows].addcmul_(grad, twice_NKC[:, shift : shift + rows])
        second_NKC[:, shift : shift + rows].addcmul_(grad, x_NKC[:, :rows])
    return (first_NKC + second_NKC[:, :width] + second_NKC[:, width:]).transpose(1, 2)


@lru_cache(maxsize=64)
def _circulant(width: int) -> tuple[tuple[int, int, int], ...]:
    """``(shift, first row, rows)`` of every block of products; the last of an even width is half as long."""
    found, start = [], 0
    for shift in range(width // 2 + 1):
        rows = width // 2 if 2 * shift == width else width
        found.append((shift, start, rows))
        start += rows
    return tuple(found)


@lru_cache(maxsize=64)
def _places(width: int) -> tuple[Tensor, Tensor]:
    """Where x_i x_j (i <= j, in order) is among the circulant products, and whether i = j."""
    where = {}
    for shift, start, rows in _circulant(width):
        for i in range(rows):
            where[tuple(sorted((i, (i + shift) % width)))] = start + i
    pairs = [(i, j) for i in range(width) for j in range(i, width)]
    return torch.tensor([where[pair] for pair in pairs]), torch.tensor([i == j for i, j in pairs])

"""A mechanism: similarity x normalizer. It describes an attention, holds no tensors, and refuses illegal pairs."""

from __future__ import annotations

from dataclasses import dataclass

from maclaurin.algebra.feature_map import MAPS
from maclaurin.algebra.monomials import num_monomials
from maclaurin.algebra.normalizer import Normalizer
from maclaurin.algebra.similarity import Similarity
from maclaurin.algebra.text import has_text, normalizer_text, similarity_text
from maclaurin.errors import GrammarError, MechanismError


@dataclass(frozen=True)
class Mechanism:
    r"""One member of the family.

    .. math:: o_t = N\Bigl(\sum_s w_{ts} v_s,\ \sum_s w_{ts},\ n_t\Bigr)

    Args:
        similarity: what weight a key gets, w.
        normalizer: what becomes of the sums, N.

    Raises:
        MechanismError: if the normalizer divides by the sum of weights that may be negative.

    ``str()`` gives the text of the grammar and :func:`maclaurin.mechanism` reads it back; ``repr()`` rebuilds it.

    Example:
        >>> from maclaurin.algebra import L2, Exp, Mechanism, Similarity
        >>> str(Mechanism(Similarity(Exp()), L2()))
        'exp/l2'

    Source: Mongaras & Larson, arXiv 2507.23632, whose variants are points of this product.
    """

    similarity: Similarity
    normalizer: Normalizer

    def __post_init__(self) -> None:
        if self.normalizer.needs_nonnegative and self.positivity == "signed":
            raise MechanismError(
                f"{self.describe()} asks to divide by the sum of weights that may be negative: "
                f"{self.similarity.formula}.\n"
                "  The denominator can then vanish or change sign.\n"
                "  Use sum:signed to accept that, an even order (taylor:2, power:2), a non-negative map (elu1, relu), "
                "or a normalizer without denominator (l2, rms, layer, length)."
            )

    @property
    def positivity(self) -> str:
        """``positive``, ``nonnegative`` or ``signed``: the sign of the weights at a scale >= 0."""
        return self.similarity.positivity.value

    @property
    def is_finite_state(self) -> bool:
        """Whether a state of constant size replaces the key/value cache."""
        return self.similarity.is_finite_state

    @property
    def moment_orders(self) -> tuple[int, ...]:
        """Orders n of the moments sum_s phi_n(k_s) v_s that the state holds."""
        return self.similarity.moment_orders

    @property
    def denominator_orders(self) -> tuple[int, ...]:
        """Orders n of the moments sum_s phi_n(k_s): those of the denominator, and 0 and 1 for centering."""
        orders = set(self.moment_orders) if self.normalizer.uses_denominator else set()
        return tuple(sorted(orders | ({0, 1} if self.similarity.is_centered else set())))

    def num_moments(self, key_dim: int) -> int:
        """Number of monomials of all orders in the state, per key/value head."""
        width = self.similarity.map.num_features(key_dim)
        return sum(num_monomials(width, n) for n in self.moment_orders)

    def state_size(self, key_dim: int, value_dim: int) -> int:
        """Numbers in the state of one key/value head; constant in the length.

        Moments (monomials x V), denominator moments, a count where no order-0 denominator holds it, and the key
        reference of a centered similarity. ``State.nbytes`` is this times batch, heads and item size, exactly.

        Raises:
            MechanismError: if there is no finite state (``cache_size`` per token then).

        Example:
            >>> import maclaurin
            >>> maclaurin.mechanism("taylor:2/sum").state_size(16, 16)  # 153 * (16 + 1)
            2601
        """
        if not self.is_finite_state:
            raise MechanismError(
                f"{self.describe()} asks for the size of a finite state, and has none: its cache grows with the "
                f"length.\n  Use cache_size({key_dim}, {value_dim}, length=...), or a similarity with a finite state "
                "such as taylor:2 or elu1, without a clamp."
            )
        width = self.similarity.map.num_features(key_dim)
        size = self.num_moments(key_dim) * value_dim
        size += sum(num_monomials(width, n) for n in self.denominator_orders)
        size += 0 if 0 in self.denominator_orders else 1
        return size + (width if self.similarity.is_centered else 0)

    def cache_size(self, key_dim: int, value_dim: int, length: int) -> int:
        """Numbers in a cache of ``length`` mapped keys and values of one key/value head."""
        return length * (self.similarity.map.num_features(key_dim) + value_dim)

    def break_even_length(self, key_dim: int, value_dim: int, *, state_bytes: int = 4, cache_bytes: int = 2) -> float:
        """Length at which a key/value cache (16-bit by default) reaches the bytes of this state (32-bit by default).

        Counts the moments only (numerator and denominator), as comparisons in the literature do: neither count nor
        key reference.

        Raises:
            MechanismError: if there is no finite state.
        """
        self.state_size(key_dim, value_dim)  # refuses
        moments = self.num_moments(key_dim) * (value_dim + (1 if self.normalizer.uses_denominator else 0))
        return moments * state_bytes / ((key_dim + value_dim) * cache_bytes)

    def flops_per_token(self, key_dim: int, value_dim: int, *, length: int | None = None) -> int:
        """Floating-point operations to absorb one key and answer one query, for one head.

        A finite state counts building two sets of monomials, one update and one read-out (2 per multiply-add);
        otherwise the products of one query with ``length`` cached keys and values.

        Raises:
            MechanismError: if ``length`` is needed and missing.
        """
        if self.is_finite_state:
            moments = self.num_moments(key_dim)
            columns = value_dim + (1 if self.normalizer.uses_denominator else 0)
            return 2 * (2 * moments) + 4 * moments * columns
        if length is None:
            raise MechanismError(
                f"{self.describe()} asks for the operations per token, which grow with the cache.\n"
                "  Give the number of cached keys: flops_per_token(..., length=1024)."
            )
        return 2 * self.cache_size(key_dim, value_dim, length)

    @property
    def formula(self) -> str:
        """Weight and output as text."""
        return f"{self.similarity.formula};  N = sum w v, Z = sum w, n = number of keys;  {self.normalizer.formula}"

    def describe(self) -> str:
        """The text of the grammar where there is one, otherwise the repr. For messages."""
        return str(self) if has_text(self.similarity) else repr(self)

    def __str__(self) -> str:
        if not has_text(self.similarity):
            raise GrammarError(
                f"{self!r} has no text: its feature map is a function.\n  Use repr(), or a map of the grammar: "
                + ", ".join(MAPS)
                + "."
            )
        return f"{similarity_text(self.similarity)}/{normalizer_text(self.normalizer)}"

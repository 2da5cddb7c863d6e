"""A mechanism: similarity x normalizer x gates, perhaps with a window.

It describes an attention, holds no tensors, and refuses illegal combinations.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from maclaurin.algebra.feature_map import MAPS
from maclaurin.algebra.function import Exp
from maclaurin.algebra.gate import Gates
from maclaurin.algebra.monomials import num_monomials
from maclaurin.algebra.normalizer import Normalizer
from maclaurin.algebra.similarity import SOFTMAX, Similarity
from maclaurin.algebra.text import has_text, normalizer_text, part_text, similarity_text
from maclaurin.algebra.window import Window
from maclaurin.errors import GrammarError, MechanismError


@dataclass(frozen=True)
class Mechanism:
    r"""One member of the family.

    .. math:: o_t = g_t\, N\Bigl(\sum_s w_{ts} i_s v_s,\ \sum_s w_{ts},\ n_t\Bigr)

    Args:
        similarity: what weight a key gets, w.
        normalizer: what becomes of the sums, N.
        gates: value gate i, decay inside w, output gate g.
        window: exact weights for the last and first keys, ``similarity`` for those between; None for none.

    Raises:
        MechanismError: if the normalizer divides by the sum of weights that may be negative, or if the keys beyond a
            window have neither a finite state nor the window's own similarity.

    ``str()`` gives the text of the grammar and :func:`maclaurin.mechanism` reads it back; ``repr()`` rebuilds it.

    Example:
        >>> from maclaurin.algebra import L2, Exp, Mechanism, Similarity
        >>> str(Mechanism(Similarity(Exp()), L2()))
        'exp/l2'

    Source: Mongaras & Larson, arXiv 2507.23632, whose variants are points of this product.
    """

    similarity: Similarity
    normalizer: Normalizer
    gates: Gates = field(default_factory=Gates)
    window: Window | None = None

    def __post_init__(self) -> None:
        if self.window is not None and not (self.similarity.is_finite_state or self._is_exp):
            raise MechanismError(
                f"{self.describe()} asks for a window before keys weighed by {self.similarity.formula}, which has no "
                "finite state.\n  Leave the clamp out, or use exp, which is then a window alone."
            )
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
        return self.similarity.is_finite_state or self.window is not None

    @property
    def near(self) -> Similarity | None:
        """How keys are weighed that are kept as they are: those in the window, or all without a finite state."""
        if self.far is None:
            return self.similarity
        return None if self.window is None else SOFTMAX

    @property
    def far(self) -> Similarity | None:
        """How keys are weighed that the moments hold; None where nothing has a finite state of moments."""
        return self.similarity if self.similarity.is_finite_state else None

    @property
    def needs_far_weight(self) -> bool:
        """Whether near and far weights share a denominator only through a learned ``far_log_weight``."""
        return self.window is not None and self.far is not None and not self.far.shares_exp_scale

    @property
    def operands(self) -> tuple[str, ...]:
        """Keywords of the tensors that an evaluation needs besides query, key and value."""
        far = ("far_log_weight",) if self.needs_far_weight else ()
        return (*(each.operand for each in self.gates.parts), *self.normalizer.learned, *far)

    @property
    def moment_orders(self) -> tuple[int, ...]:
        """Orders n of the moments sum_s phi_n(k_s) v_s that the state holds."""
        return () if self.far is None else self.far.moment_orders

    @property
    def denominator_orders(self) -> tuple[int, ...]:
        """Orders n of the moments sum_s phi_n(k_s): those of the denominator, and 0 and 1 for centering."""
        orders = set(self.moment_orders) if self.normalizer.uses_denominator else set()
        is_centered = self.far is not None and self.far.is_centered
        return tuple(sorted(orders | ({0, 1} if is_centered else set())))

    def num_moments(self, key_dim: int) -> int:
        """Number of monomials of all orders in the state, per key/value head."""
        if self.far is None:
            return 0
        width = self.similarity.map.num_features(key_dim)
        return sum(num_monomials(width, n) for n in self.moment_orders)

    def state_size(self, key_dim: int, value_dim: int) -> int:
        """Numbers in the state of one key/value head; constant in the length.

        Moments (monomials x V), denominator moments, a count where no order-0 denominator holds it, the key reference
        of a centered similarity; the keys, values and log decays in a window and their number; the log denominator of
        ``cumgate``. ``State.nbytes`` is this times batch, heads and item size, exactly.

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
        size = 1 if self.normalizer.uses_log_denominator else 0
        if self.far is not None:
            width = self.far.map.num_features(key_dim)
            size += self.num_moments(key_dim) * value_dim
            size += sum(num_monomials(width, n) for n in self.denominator_orders)
            size += 0 if 0 in self.denominator_orders else 1
            size += width if self.far.is_centered else 0
        if self.window is not None:
            size += self.cache_size(key_dim, value_dim, self.window.num_slots) + 1
        return size

    def cache_size(self, key_dim: int, value_dim: int, length: int) -> int:
        """Numbers in a cache of ``length`` mapped keys and values (and log decays) of one key/value head."""
        kept = self.near or self.similarity
        return length * (kept.map.num_features(key_dim) + value_dim + (1 if self.gates.decay else 0))

    def break_even_length(self, key_dim: int, value_dim: int, *, state_bytes: int = 4, cache_bytes: int = 2) -> float:
        """Length at which a key/value cache (16-bit by default) reaches the bytes of this state (32-bit by default).

        Counts the moments (numerator and denominator), as comparisons in the literature do, and a window's keys and
        values: neither count nor key reference.

        Raises:
            MechanismError: if there is no finite state.
        """
        self.state_size(key_dim, value_dim)  # refuses
        moments = self.num_moments(key_dim) * (value_dim + (1 if self.normalizer.uses_denominator else 0))
        slots = 0 if self.window is None else self.window.num_slots
        numbers = moments + slots * (key_dim + value_dim)
        return numbers * state_bytes / ((key_dim + value_dim) * cache_bytes)

    def flops_per_token(self, key_dim: int, value_dim: int, *, length: int | None = None) -> int:
        """Floating-point operations to absorb one key and answer one query, for one head.

        A finite state counts building two sets of monomials, one update and one read-out (2 per multiply-add), and the
        products of one query with the keys and values of a window; otherwise those with ``length`` cached ones.

        Raises:
            MechanismError: if ``length`` is needed and missing.
        """
        if self.is_finite_state:
            moments = self.num_moments(key_dim)
            columns = value_dim + (1 if self.normalizer.uses_denominator else 0)
            slots = 0 if self.window is None else self.window.num_slots
            return 2 * (2 * moments) + 4 * moments * columns + 2 * slots * (key_dim + value_dim)
        if length is None:
            raise MechanismError(
                f"{self.describe()} asks for the operations per token, which grow with the cache.\n"
                "  Give the number of cached keys: flops_per_token(..., length=1024)."
            )
        return 2 * self.cache_size(key_dim, value_dim, length)

    @property
    def formula(self) -> str:
        """Weight and output as text."""
        decay = " d" if self.gates.decay else ""
        gated = "i v" if self.gates.value else "v"
        lines = [] if self.far is None else [self.far.formula]
        if self.near is not None:
            where = "" if self.window is None else f"{self.window.formula}: "
            lines = [where + self.near.formula, *([] if self.window is None else [self._beyond_window]), *lines]
        sums = f"N = sum w{decay} {gated}, Z = sum w{decay}, n = " + ("sum d" if decay else "number of keys")
        if decay:
            sums += "; d = exp(sum of log decays after the key)"
        output = self.normalizer.formula
        if self.gates.output is not None:
            after = self.gates.output.after
            output += ", times g" if after else ", N gated by g first"
        return ";  ".join([*lines, sums, output])

    @property
    def _beyond_window(self) -> str:
        if self.far is None:
            return "beyond the window no key is seen"
        return "beyond the window" + (", times exp(far_log_weight)" if self.needs_far_weight else "")

    @property
    def _is_exp(self) -> bool:
        return isinstance(self.similarity.function, Exp)

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
        parts = [*self.gates.parts, *([] if self.window is None else [self.window])]
        whole = [f"{similarity_text(self.similarity)}/{normalizer_text(self.normalizer)}", *map(part_text, parts)]
        return "+".join(whole)

"""State: what is kept of the keys and values seen so far, before any query.

A mechanism keeps keys as they are (:class:`Cache`, or the :class:`Slots` of a window), or moments of them, whose size
does not depend on how many keys went in (:class:`Moments`), or both: the window and the moments of what left it. A
state absorbs keys, merges with a later one, and answers queries with an accumulator; evaluations use nothing else of
it. Values in, values out: nothing is updated in place.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys, K features of the
mapped key, V value dim, F_n monomials of order n.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from maclaurin.algebra import Accumulator, Mechanism, log_decay_after
from maclaurin.algebra.accumulator import EMPTY_LOG_SCALE
from maclaurin.algebra.grammar import parse
from maclaurin.errors import GrammarError, MethodError, StateError
from maclaurin.evaluate import storage
from maclaurin.evaluate.block import accumulate_block, logits, mean_logit
from maclaurin.evaluate.cache import Cache, Slots
from maclaurin.evaluate.legality import moment_refusal
from maclaurin.evaluate.log_denominator import followed_log_denominator, log_sum_of
from maclaurin.evaluate.moments import Moments
from maclaurin.evaluate.operands import Keys, Queries, map_visible
from maclaurin.evaluate.tensor_tree import TensorTree


@dataclass(frozen=True, eq=False)
class State(TensorTree):
    """What a mechanism keeps of its past. Make one with :meth:`empty`.

    Gradients flow through it alike by every method, but for sums over no key yet: their gradient is zero by
    ``parallel`` and a derivative of no use by the others.

    Args:
        mechanism: what the state belongs to; another mechanism refuses it.
        cache: keys kept as they are, or None.
        moments: sums over the other keys, or None.
        log_denominator: log of the sum of exp(u), ``[B, H]``, for ``cumgate``; otherwise None.
    """

    mechanism: Mechanism
    cache: Cache | Slots | None
    moments: Moments | None
    log_denominator: Tensor | None

    @staticmethod
    def empty(
        mechanism: Mechanism,
        *,
        batch_size: int,
        num_kv_heads: int,
        key_dim: int,
        value_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        key_reference: Tensor | None = None,
    ) -> State:
        """A state that has seen no key.

        Args:
            mechanism: what it is for.
            batch_size: B.
            num_kv_heads: H.
            key_dim: width of the keys before the feature map.
            value_dim: V.
            dtype: float32 or float64; half-precision inputs keep float32 states.
            device: where.
            key_reference: ``[B, H, K]``, taken from every mapped key of a centered mechanism before moments are
                formed; None or zeros: the first visible key. Changes no value, only its float32 accuracy.

        Raises:
            StateError: a key reference for a mechanism that is not centered, or of the wrong shape.
            MethodError: a finite state of an order whose moments lose too many digits.
        """
        refusal = moment_refusal(mechanism)
        if refusal:
            raise MethodError(
                f"A state of {mechanism.describe()} was asked for, but {refusal}.\n"
                "  Use method='parallel' without a state."
            )
        like = torch.zeros(batch_size, num_kv_heads, dtype=dtype, device=device)
        near, far, width = mechanism.near, mechanism.far, 0
        if far is not None:
            width = far.map.num_features(key_dim, dtype=dtype, device=device)
        _check_reference(mechanism, key_reference, (batch_size, num_kv_heads, width))
        cache = moments = None
        if near is not None:
            kept = near.map.num_features(key_dim, dtype=dtype, device=device)
            cache = _empty_cache(mechanism, like, kept, value_dim)
        if far is not None:
            reference = None if key_reference is None else key_reference.detach().to(like)
            moments = Moments.empty(mechanism, like, width, value_dim, reference)
        uses_log_denominator = mechanism.normalizer.uses_log_denominator
        return State(
            mechanism, cache, moments, torch.full_like(like, EMPTY_LOG_SCALE) if uses_log_denominator else None
        )

    @property
    def count(self) -> Tensor:
        """Number of visible keys absorbed that a query may still see, each as far as it has not decayed, ``[B, H]``."""
        count: Tensor | None = None if self.moments is None else self.moments.count
        if self.cache is None:
            assert count is not None
            return count
        entries = self.cache.entries
        kept = entries.visible.to(entries.value.dtype)[:, None]
        kept = kept if entries.log_weight is None else kept * torch.exp(entries.log_weight)
        kept = kept.sum(-1).expand(entries.key.shape[:2])
        return kept if count is None else kept + count

    @property
    def key_reference(self) -> Tensor | None:
        """What the moments of a centered mechanism are about, ``[B, H, K]``; otherwise None."""
        return None if self.moments is None else self.moments.key_reference

    @property
    def layout(self) -> tuple[int, int, int | None, int]:
        """``(B, H, K, V)``, K that of the keys that are given to it; None where moments do not tell it."""
        if self.cache is not None:
            batch, heads, _, width = self.cache.key.shape
            return batch, heads, width, self.cache.value.shape[-1]
        assert self.moments is not None
        batch, heads, _, value_dim = self.moments.numerators[0].shape
        return batch, heads, self.moments.width, value_dim

    @property
    def dtype(self) -> torch.dtype:
        """Of its sums."""
        return self.count.dtype

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.count.device

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor; for a finite state ``mechanism.state_size(K, V) * B * H * item size``, exactly."""
        return sum(each.numel() * each.element_size() for each in self.tensors())

    def absorb(self, keys: Keys) -> State:
        """The state after more keys; those not visible change nothing."""
        decay = total = None
        if keys.log_decay is not None:
            decay, total = log_decay_after(keys.log_decay), keys.log_decay.sum(-1)
        entries = Cache(keys.key, keys.value, keys.shown, decay)
        is_everything = keys.visible is None
        return self._followed(entries, None, log_sum_of(keys), total, is_everything=is_everything)

    def merge(self, other: State, log_decay: Tensor | None = None) -> State:
        """The state of the keys of this one followed by those of ``other``; associative.

        Args:
            other: what came later.
            log_decay: sum of the log decays over the keys of ``other``, ``[B, H]``; needed exactly with decay.

        Raises:
            StateError: a state of another mechanism, shape, dtype or device; the decay is missing or not wanted.
        """
        self._require_same(other)
        if (log_decay is not None) != self.mechanism.gates.decay:
            needs = "needs" if log_decay is None else "has no decay and takes no"
            raise StateError(
                f"merge: {self.mechanism.describe()} {needs} log_decay, the sum of the log decays over the later "
                "state's keys, [B, Hkv].\n  The earlier state decays by it."
            )
        entries = None if other.cache is None else other.cache.entries
        return self._followed(entries, other.moments, other.log_denominator, log_decay)

    def _followed(
        self,
        entries: Cache | None,
        moments: Moments | None,
        log_denominator: Tensor | None,
        log_decay: Tensor | None,
        *,
        is_everything: bool = False,
    ) -> State:
        """This state, decayed, followed by keys as they are, by moments, and by a log denominator."""
        cache, held = self.cache, None if self.moments is None else self.moments.decayed(log_decay)
        if entries is not None and cache is None:
            assert held is not None
            held = held.absorb(
                entries.key, entries.value, None if is_everything else entries.visible, entries.log_weight
            )
        elif entries is not None and cache is not None:
            cache, whole, gone = cache.take(entries, log_decay)
            if held is not None and gone is not None:
                key = map_visible(held.similarity.map, whole.key, ~whole.visible[:, None, :, None])
                held = held.absorb(key, whole.value, gone, whole.log_weight)
        if held is not None and moments is not None:
            held = held.merge(moments)
        log_denominator = followed_log_denominator(self.log_denominator, log_denominator, log_decay)
        return State(self.mechanism, cache, held, log_denominator)

    def read(self, queries: Queries) -> Accumulator:
        """The accumulator of queries that see every key in the state."""
        found: Accumulator | None = None
        if self.cache is not None:
            assert queries.near is not None and self.mechanism.near is not None
            entries, similarity = self.cache.entries, self.mechanism.near
            x, visible = logits(queries.near, entries.key, queries.near_scale), entries.visible[:, None, None, None]
            decay = None if entries.log_weight is None else entries.log_weight[:, :, None, None]
            center = mean_logit(x, visible, decay) if similarity.is_centered else None
            found = accumulate_block(similarity, x, entries.value, visible, center_BHGT=center, log_decay=decay)
        if self.moments is not None:
            far = self.read_moments(queries)
            found = far if found is None else found.merge(far)
        assert found is not None
        if self.log_denominator is None:
            return found
        return replace(found, log_denominator=self.log_denominator[..., None, None].expand(found.count.shape))

    def read_moments(self, queries: Queries, center: Tensor | None = None) -> Accumulator:
        """The accumulator over the keys in the moments alone, about ``center`` where others share it."""
        assert self.moments is not None and queries.far is not None
        far = self.moments.read(queries.far, queries.far_scale, center)
        return far if queries.far_log_weight is None else far.scaled(queries.far_log_weight.expand(far.count.shape))

    def rebase(self, key_reference: Tensor) -> State:
        """The same state with its moments about another reference; states compare, and merge, after this.

        Args:
            key_reference: ``[B, H, K]``.

        Raises:
            StateError: the mechanism is not centered and has no reference, or one of another shape.
        """
        mine, asked = self.key_reference, tuple(key_reference.shape)
        if mine is None or self.moments is None or tuple(mine.shape) != asked:
            has = "no key reference" if mine is None else f"a key reference {tuple(mine.shape)}, not {asked}"
            raise StateError(
                f"rebase: a state of {self.mechanism.describe()} has {has}.\n"
                "  Only centered mechanisms (taylor:N@mean) have one, of shape [B, Hkv, K]."
            )
        return replace(self, moments=self.moments.rebase(key_reference))

    def detach(self) -> State:
        """Cut the gradient."""
        return self.map_tensors(Tensor.detach)

    def to(self, device: torch.device | str) -> State:
        """The state on another device."""
        return self.map_tensors(lambda each: each.to(device))

    def reorder(self, indices: Tensor | Sequence[int]) -> State:
        """The state with its batch rows chosen by ``indices``, repeats allowed: what a beam search does.

        Args:
            indices: whole numbers ``[B']`` from 0 to B - 1.

        Raises:
            StateError: indices that are not such a list.
        """
        index = torch.as_tensor(indices, device=self.device)
        batch = self.layout[0]
        is_whole = index.dtype in (torch.int64, torch.int32)
        if index.ndim != 1 or not is_whole or bool(((index < 0) | (index >= batch)).any()):
            raise StateError(
                f"reorder: {indices!r} is no list of batch rows.\n  Give whole numbers from 0 to {batch - 1}, one for "
                "each row of the new state."
            )
        return self.map_tensors(lambda each: each.index_select(0, index))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a safetensors file: numbers and text, nothing that runs when it is read.

        The file holds either its old content or all of the new one, also after a power cut. Gradients are not kept.

        Args:
            path: of the file, in a folder that exists.

        Raises:
            StateError: the mechanism has a callable feature map, which no file can hold; the file cannot be written.

        Cost: one copy of the state in memory.

        Example:
            >>> import tempfile
            >>> from maclaurin.algebra import mechanism
            >>> state = State.empty(mechanism("elu1/sum"), batch_size=1, num_kv_heads=2, key_dim=3, value_dim=4)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     state.save(f"{folder}/prompt.safetensors")
            ...     State.load(f"{folder}/prompt.safetensors").layout
            (1, 2, 3, 4)
        """
        try:
            text = str(self.mechanism)
        except GrammarError as error:
            raise StateError(
                f"State.save: a state of {self.mechanism.describe()} cannot be saved: its feature map is a function, "
                "which has no text.\n  Use a map of the grammar, or keep the state's named_tensors() by yourself."
            ) from error
        length = 0 if self.cache is None else self.cache.num_entries
        metadata = {"mechanism": text, "sizes": json.dumps([*self.layout, length]), "dtype": str(self.dtype)}
        storage.write(path, self.named_tensors(), metadata)

    @staticmethod
    def load(path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> State:
        """The state that :meth:`save` wrote, number for number.

        Args:
            path: of the file.
            device: where to put it.

        Raises:
            StateError: no such file, not one of ours, damaged, of another version, or of a mechanism that this version
                cannot read.
        """
        tensors, metadata = storage.read(path, device)
        try:
            dtype = {str(each): each for each in (torch.float32, torch.float64)}[metadata["dtype"]]
            batch, heads, width, value_dim, length = json.loads(metadata["sizes"])
            state = State.empty(
                parse(metadata["mechanism"]),
                batch_size=batch,
                num_kv_heads=heads,
                key_dim=width or 0,  # moments of order 0 alone have none
                value_dim=value_dim,
                dtype=dtype,
                device="meta",
            )
            state = replace(state, cache=None if state.cache is None else state.cache.padded(length))
        except (KeyError, ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise StateError(
                f"State.load: the header of {os.fspath(path)} cannot be read ({error!r}).\n"
                "  It was written by a maclaurin with other mechanisms, or changed; save the state again with this one."
            ) from error
        return storage.filled(state, tensors, path)

    def _require_same(self, other: State) -> None:
        if not isinstance(other, State):
            raise StateError(f"merge: a state and a {type(other).__name__}.\n  Only states can be merged.")
        if self.mechanism != other.mechanism:
            raise StateError(
                f"merge: a state of {self.mechanism.describe()} and one of {other.mechanism.describe()}.\n"
                "  States hold different moments for different mechanisms; only those of one can be merged."
            )
        mine, theirs = (self.layout, self.dtype, self.device), (other.layout, other.dtype, other.device)
        if mine != theirs:
            raise StateError(
                f"merge: a state of [B, Hkv, K, V] = {mine[0]} in {mine[1]} on {mine[2]}, and one of {theirs[0]} in "
                f"{theirs[1]} on {theirs[2]}.\n  Merge states of one batch, heads, widths, dtype and device."
            )


def _empty_cache(mechanism: Mechanism, like: Tensor, width: int, value_dim: int) -> Cache | Slots:
    slots = 0 if mechanism.window is None else mechanism.window.num_slots
    key = like.new_zeros(*like.shape, slots, width)
    value = like.new_zeros(*like.shape, slots, value_dim)
    log_weight = like.new_zeros(*like.shape, slots) if mechanism.gates.decay else None
    if mechanism.window is not None:
        return Slots(mechanism.window, key, value, log_weight, torch.zeros_like(like))
    return Cache(key, value, torch.ones(len(like), 0, dtype=torch.bool, device=like.device), log_weight)


def _check_reference(mechanism: Mechanism, key_reference: Tensor | None, shape: tuple[int, int, int]) -> None:
    has_reference = mechanism.far is not None and mechanism.far.is_centered
    if key_reference is None or (has_reference and tuple(key_reference.shape) == shape):
        return
    remedy = f"Give it as [B, H, K] = {shape}." if has_reference else "Leave it out."
    raise StateError(
        f"key_reference {tuple(key_reference.shape)} was given to {mechanism.describe()}.\n"
        f"  Only a centered finite state (taylor:N@mean) has one, of shape [B, H, K]. {remedy}"
    )

"""Decoding: one token after another on a state that is updated in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from maclaurin.algebra import Mechanism
from maclaurin.algebra.catalogue import mechanism_of
from maclaurin.errors import ShapeError, StateError
from maclaurin.evaluate import checks
from maclaurin.evaluate.cache import Cache, owned
from maclaurin.evaluate.call import Call, Options
from maclaurin.evaluate.decode import Decoder, FusedMoments, Token
from maclaurin.evaluate.log_denominator import followed_log_denominator, log_sum_of
from maclaurin.evaluate.moments import Moments
from maclaurin.evaluate.operands import Keys, map_visible
from maclaurin.evaluate.problem import Problem
from maclaurin.evaluate.state import State

#: Learned tensors of shape ``[H]``.
_PER_HEAD = frozenset({"length_exponent", "far_log_weight"})


def stepper(
    mechanism: Mechanism | str,
    state: State,
    *,
    scale: float | None = None,
    length_exponent: Tensor | None = None,
    far_log_weight: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
) -> Stepper:
    """A function that answers one query after another, each with its key absorbed before.

    It gives what ``attend(..., method="recurrent", state=state, return_state=True)`` gives for one token, and keeps
    the state to itself: moments are multiplied and added to where they lie, the window is a ring, and a growing cache
    has room to spare, so that nothing as large as the state is copied. Runs without gradients.

    Args:
        mechanism: a :class:`Mechanism`, its text, or a catalogue name.
        state: where to start; it is copied, not changed. ``State.empty``, or what a prefill by any method returned.
        scale: of the logits, as in ``attend``.
        length_exponent: ``[H]``, for ``length:learned``.
        far_log_weight: ``[H]``, for a window before a similarity that does not share its scale.
        norm_weight: ``[V]`` or ``[H, V]``, for ``rms:weight`` and ``layer:weight``.
        norm_bias: ``[V]`` or ``[H, V]``, for ``layer:bias``.

    Raises:
        StateError: the state belongs to another mechanism.
        ConfigError, DtypeError, MechanismError, ShapeError: a scale or a learned tensor that ``attend`` would refuse.

    Cost: per step that of one query and one key; for a finite state it does not depend on the number of steps.

    Example:
        >>> from maclaurin.algebra import mechanism
        >>> state = State.empty(mechanism("elu1/sum"), batch_size=1, num_kv_heads=1, key_dim=2, value_dim=2)
        >>> step = stepper("elu1/sum", state)
        >>> query = key = torch.ones(1, 1, 1, 2)
        >>> step(query, key, torch.tensor([[[[1.0, 0.0]]]]))
        tensor([[[[1., 0.]]]])
        >>> step(query, key, torch.tensor([[[[0.0, 1.0]]]]))
        tensor([[[[0.5000, 0.5000]]]])
        >>> step.state.count
        tensor([[2.]])
    """
    learned = {
        "length_exponent": length_exponent,
        "far_log_weight": far_log_weight,
        "norm_weight": norm_weight,
        "norm_bias": norm_bias,
    }
    return Stepper(mechanism_of(mechanism), state, scale, learned)


class Stepper:
    """What :func:`stepper` returns: call it once a token.

    Args:
        mechanism: what it evaluates.
        state: where to start; copied.
        scale: of the logits.
        learned: tensors without a time, by keyword.
    """

    def __init__(
        self, mechanism: Mechanism, state: State, scale: float | None, learned: Mapping[str, Tensor | None]
    ) -> None:
        _check(mechanism, state, scale, learned)
        self.mechanism = mechanism
        self._scale, self._learned = scale, {name: each for name, each in learned.items() if each is not None}
        self._fused: FusedMoments | None = None  # the moments, where nothing else but the log denominator is kept
        with _writable_in_any_mode():
            self._cache = None if state.cache is None else state.cache.buffer()
            self._log_denominator = None if state.log_denominator is None else owned(state.log_denominator)
            if state.moments is not None and FusedMoments.serves(mechanism):
                self._fused = FusedMoments.of(state.moments)
                self._moments: Moments | None = self._fused.moments
            else:
                self._moments = None if state.moments is None else state.moments.map_tensors(owned)
        self._signature: list[object] | None = None  # of tokens that were checked and fit the state,
        self._call: Call | None = None  # the first of them,
        self._decoder: Decoder | None = None  # and what absorbs and answers them where moments are fused

    @property
    def state(self) -> State:
        """The state after every step so far, as a value: later steps do not change it. Costs a copy."""
        return State(
            self.mechanism,
            None if self._cache is None else self._cache.freeze(),
            None if self._moments is None else self._moments.map_tensors(owned),
            None if self._log_denominator is None else owned(self._log_denominator),
        )

    @torch.no_grad()
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        log_decay: Tensor | None = None,
        value_gate: Tensor | None = None,
        output_gate: Tensor | None = None,
        denominator_logit: Tensor | None = None,
    ) -> Tensor:
        """Absorb one key, answer one query; without gradients.

        Args:
            query: ``[B, H, 1, K]``.
            key: ``[B, Hkv, 1, K]``.
            value: ``[B, Hkv, 1, V]``.
            log_decay: ``[B, Hkv, 1]``, for ``+decay``.
            value_gate: ``[B, Hkv, 1]``, for ``+valuegate``.
            output_gate: ``[B, H, 1]`` or ``[B, H, 1, V]``, for ``+outgate``.
            denominator_logit: ``[B, Hkv, 1]``, for ``cumgate``.

        Returns:
            ``[B, H, 1, V]`` in the inputs' dtype.

        Raises:
            ShapeError: more or less than one token, or tensors that disagree. Here and below the state is unchanged.
            StateError: sizes or a dtype that are not those of the state.
            ConfigError, DtypeError: see ``attend``; as there, a look at ``log_decay`` waits for the device.
        """
        token = Token(query, key, value, log_decay, value_gate, output_gate, denominator_logit)
        if not torch.is_autocast_enabled(query.device.type):
            return self._step(token)
        with torch.autocast(query.device.type, enabled=False):
            return self._step(token)

    def _step(self, token: Token) -> Tensor:
        """Check what may have changed since the last token, then absorb and answer this one."""
        signature = _signature(token)
        if signature is None or signature != self._signature:
            self._accept(token, signature)
        elif token.log_decay is not None:
            assert self._call is not None
            checks.check_log_decay(token.log_decay.to(self._call.sum_dtype))
        return self._by_parts(token) if self._decoder is None else self._decoder(token)

    def _accept(self, token: Token, signature: list[object] | None) -> None:
        """Check all that ``attend`` checks, and get ready for tokens that look like this one."""
        for name, each in (("query", token.query), ("key", token.key)):
            if each.ndim == 4 and each.shape[2] != 1:
                raise ShapeError(
                    f"step: {name} {tuple(each.shape)} has {each.shape[2]} tokens on its time, dimension 2.\n"
                    "  A step takes one, [B, H, 1, K]; give a prompt to attend(..., return_state=True) first."
                )
        options = Options(scale=self._scale, state=self._view(), operands={**token.operands, **self._learned})
        call = Call.of(self.mechanism, token.query, token.key, token.value, options)
        query, key, value = (each.detach() for each in token[:3])  # what is kept holds no graph
        call = replace(call, query=query, key=key, value=value, state=None, operands={})
        decoder = None
        if self._fused is not None:
            with _writable_in_any_mode():
                decoder = Decoder(self._fused, self._log_denominator, call, self._learned)
        self._signature, self._call, self._decoder = signature, call, decoder

    def _by_parts(self, token: Token) -> Tensor:
        """A step by the same parts as ``attend``: maps, cache, moments, normalizer."""
        assert self._call is not None
        dtype, given = self._call.sum_dtype, {**token.operands, **self._learned}
        operands = {name: each.to(dtype) for name, each in given.items() if each is not None}
        call = replace(self._call, query=token.query, key=token.key, value=token.value, operands=operands)
        problem = Problem.of_call(call)
        self._absorb(problem.keys)
        out = problem.finish(self._view().read(problem.queries))
        return out.flatten(1, 2).to(problem.dtype)

    def _absorb(self, keys: Keys) -> None:
        """``State.absorb`` of one visible key, in place."""
        log_decay = None if keys.log_decay is None else keys.log_decay[..., 0]
        entry: Cache | None = Cache(
            keys.key, keys.value, keys.shown, None if keys.log_decay is None else torch.zeros_like(keys.log_decay)
        )
        if self._cache is not None:
            assert entry is not None
            entry = self._cache.push(entry, log_decay)
            if entry is not None and self._moments is not None:
                hidden = ~entry.visible[:, None, :, None]
                entry = replace(entry, key=map_visible(self._moments.similarity.map, entry.key, hidden))
        if self._moments is not None:
            assert entry is not None
            self._moments.absorb_in_place(entry.key, entry.value, entry.visible, entry.log_weight, log_decay)
        if self._log_denominator is not None:
            later = followed_log_denominator(self._log_denominator, log_sum_of(keys), log_decay)
            assert later is not None
            self._log_denominator.copy_(later)

    def _view(self) -> State:
        """The state as it lies in the buffers; the next step changes it."""
        cache = None if self._cache is None else self._cache.entries
        return State(self.mechanism, cache, self._moments, self._log_denominator)


def _signature(token: Token) -> list[object] | None:
    """What decides whether a token is checked anew; None for something that is no tensor."""
    try:
        return [each if each is None else (each.shape, each.dtype, each.device) for each in token]
    except AttributeError:
        return None


@contextmanager
def _writable_in_any_mode() -> Iterator[None]:
    """What is made here may be written to with and without inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _check(mechanism: Mechanism, state: State, scale: float | None, learned: Mapping[str, Tensor | None]) -> None:
    """What can be said before the first step."""
    if not isinstance(state, State):
        raise StateError(
            f"stepper: state is a {type(state).__name__}.\n  Give what attend returned, or State.empty for none yet."
        )
    if state.mechanism != mechanism:
        raise StateError(
            f"stepper: the state belongs to {state.mechanism.describe()}, the steps are of {mechanism.describe()}.\n"
            "  A state holds what its own mechanism needs; absorb the keys again for another one."
        )
    batch, kv_heads, key_dim, value_dim = state.layout
    checks.scales(mechanism, scale, key_dim or 1)
    tensors = {name: each for name, each in learned.items() if isinstance(each, Tensor) and each.ndim > 0}
    per_head = [each for name, each in tensors.items() if each.ndim == 2 or name in _PER_HEAD]
    heads = per_head[0].shape[0] if per_head else kv_heads  # as many query heads as the first of them says
    checks.check_operands(mechanism, learned, checks.Sizes(batch, heads, kv_heads, 1, 1, value_dim), state.count)

"""What becomes of answers that move from the dearer side to the cheaper one, for many at once (paper section 7).

The rules are those of ``core/migration.py`` and the session, in closed form: both sides decode at a constant rate, so
the source's token n comes (n - 1) / r_g after its first. Times are seconds after that first token, rates tokens per
second, money USD.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serve_app.core.cost import UnitCost
from serve_app.core.latency import LatencyProfile, LinearTtft
from serve_app.core.lengths import OutputLengths
from serve_app.core.migration import HANDOVER_QUANTILE, MigrationMode
from serve_app.core.session import DRY_MARGIN

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Values of n that are looked at together.
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class MoveRule:
    """How streams move from ``source`` to ``target``, whose tokens are cheaper.

    reader: r_c. network: t_net. remaining: expected further tokens, at index n. ahead: most tokens before the reader.
    """

    mode: MigrationMode
    reader: float
    network: float
    source: LatencyProfile
    target: LatencyProfile
    source_cost: UnitCost
    target_cost: UnitCost
    remaining: Floats
    ahead: int = 128

    def planned(self, to_prefill: Floats) -> Floats:
        """t_m as the mover expects it: exact for a device, a cautious quantile for a server."""
        ttft = self.target.ttft
        if isinstance(ttft, LinearTtft):
            return self.network + ttft.slope * to_prefill + ttft.intercept
        return np.full(to_prefill.shape, self.network + ttft.within(HANDOVER_QUANTILE[self.mode]))


@dataclass(frozen=True, slots=True)
class Moves:
    """One entry per request. at_token: tokens accepted at the trigger, 0 for a stream that stayed.

    completed: the target carried on; where not, though moved, the source did, and the target's prefill was in vain.
    source_tokens, target_tokens: generated there, surplus included. delay_num: tokens after the move that came late.
    longest_gap: seconds between two tokens as the reader sees them.
    """

    at_token: Ints
    completed: Bools
    source_tokens: Ints
    target_tokens: Ints
    target_prefill: Ints
    delay_num: Ints
    longest_gap: Floats

    @property
    def moved(self) -> Bools:
        return self.at_token > 0


def expected_remaining(outputs: Ints, max_tokens: int) -> Floats:
    """Mean residual life at n = 0 .. max_tokens, from the answers seen so far."""
    lengths = OutputLengths(np.minimum(outputs, max_tokens).tolist())
    return np.array([lengths.expected_remaining(n, max_tokens) for n in range(max_tokens + 1)])


def move(rule: MoveRule, prompts: Ints, outputs: Ints, ttft: Floats | None, parked: Floats | None = None) -> Moves:
    """Streams of ``outputs`` tokens that the source began.

    ttft: the target's actual TTFT of each move, where it is no line. parked: seconds that the target had been at the
    prompt's prefill, which it keeps, when the source's first token came.
    """
    at_token = _triggers(rule, prompts, outputs, parked)
    moved = at_token > 0
    begun = np.where(moved, (at_token - 1) / rule.source.decode_rate, 0.0)
    to_prefill = at_token + (prompts if parked is None else 0)
    if ttft is None:
        handover = _handover(rule, prompts, at_token, None if parked is None else parked + begun)
    else:
        handover = rule.network + ttft
    delivered = begun + handover
    completed = moved
    source_tokens = np.where(moved, at_token, outputs)
    if rule.mode is MigrationMode.OVERLAP:
        dry = at_token / rule.reader - DRY_MARGIN
        ends = np.maximum((outputs - 1) / rule.source.decode_rate, (outputs - 1 - rule.ahead) / rule.reader)
        completed = moved & (delivered < np.minimum(dry, ends))
        meanwhile = np.minimum(
            1 + np.floor(delivered * rule.source.decode_rate),
            1 + np.floor(delivered * rule.reader) + rule.ahead,
        ).astype(np.int64)
        source_tokens = np.where(completed, np.maximum(at_token, meanwhile), outputs)
    delay_num, longest = _as_read(rule, at_token, np.where(completed, outputs - at_token, 0), delivered)
    return Moves(
        at_token,
        completed,
        source_tokens,
        np.where(completed, outputs - at_token, 0),
        np.where(moved, to_prefill, 0),
        delay_num,
        longest,
    )


def cost(rule: MoveRule, moves: Moves) -> Floats:
    """USD for decoding, and for what the target had to prefill; the prompts' dispatch is not in it."""
    total: Floats = (
        moves.source_tokens * rule.source_cost.decode
        + moves.target_tokens * rule.target_cost.decode
        + moves.target_prefill * rule.target_cost.prefill
    )
    return total


def _triggers(rule: MoveRule, prompts: Ints, outputs: Ints, parked: Floats | None) -> Ints:
    """The first n at which the lead hides the handover and the rest of the answer is worth it; 0: never."""
    if parked is None:
        # Without a parked prefill only the prompt's length matters, so every length is looked at once.
        lengths, row = np.unique(prompts, return_inverse=True)
        longest = np.full(lengths.size, int(outputs.max(initial=0)))
        first: Ints = _first_trigger(rule, lengths, longest, None)[row]
        return np.where(first < outputs, first, 0)
    return _first_trigger(rule, prompts, outputs, parked)


def _first_trigger(rule: MoveRule, prompts: Ints, outputs: Ints, parked: Floats | None) -> Ints:
    found = np.zeros(prompts.size, dtype=np.int64)
    open_rows = np.flatnonzero(outputs > 1)
    last = min(int(outputs.max(initial=0)), rule.remaining.size)
    for start in range(1, last, _AT_ONCE):
        n = np.arange(start, min(start + _AT_ONCE, last))[:, None]
        lengths, longest = prompts[open_rows], outputs[open_rows]
        goes, hopeless = _may_go(rule, n, lengths, None if parked is None else parked[open_rows])
        goes &= n < longest
        hit = goes.any(axis=0)
        found[open_rows[hit]] = start + goes[:, hit].argmax(axis=0)
        open_rows = open_rows[~hit & ~hopeless & (longest > start + _AT_ONCE)]
        if not open_rows.size:
            break
    return found


def _may_go(rule: MoveRule, n: Ints, prompts: Ints, parked: Floats | None) -> tuple[Bools, Bools]:
    """Whether a stream may move after n tokens (n by prompt), and for which prompts it never will from here on."""
    since = (n - 1) / rule.source.decode_rate
    lead = n - np.minimum(n, 1 + np.floor(since * rule.reader))
    left = rule.remaining[n]
    if parked is None:
        to_prefill = n + prompts
        handover = rule.planned(to_prefill.astype(np.float64))
    else:
        to_prefill = np.broadcast_to(n, (n.size, prompts.size))
        handover = _with_parked(rule, prompts, to_prefill.astype(np.float64), parked + since)
    overhead = rule.target_cost.prefill * to_prefill
    if rule.mode is MigrationMode.OVERLAP:
        overhead = overhead + rule.source_cost.decode * np.minimum(left, handover * rule.source.decode_rate)
    needed = rule.reader * handover
    worth = rule.source_cost.decode - rule.target_cost.decode
    goes = (needed <= np.minimum(lead, rule.ahead)) & (worth * left > overhead)
    # Without a parked prefill the handover only grows, and the lead is bounded.
    return goes, np.broadcast_to(parked is None, prompts.shape) & (needed[-1] > rule.ahead)


def _handover(rule: MoveRule, prompts: Ints, at_token: Ints, parked: Floats | None) -> Floats:
    """t_m of a predictable target."""
    if parked is None:
        return rule.planned((prompts + at_token).astype(np.float64))
    return _with_parked(rule, prompts, at_token.astype(np.float64), parked)


def _with_parked(rule: MoveRule, prompts: Ints, tokens: Floats, parked: Floats) -> Floats:
    """The parked prefill may still be under way, and the new call pays the fixed part of a TTFT again."""
    under_way = rule.planned(prompts + tokens) - parked + rule.planned(np.zeros_like(tokens)) - rule.network
    return np.maximum(rule.planned(tokens), under_way)


def _as_read(rule: MoveRule, at_token: Ints, after: Ints, delivered: Floats) -> tuple[Ints, Floats]:
    """delay_num and the longest gap: ``after`` tokens of the target, the first one at ``delivered``."""
    late = np.where(after > 0, delivered - at_token / rule.reader, 0.0)
    catching_up = 1 / rule.reader - 1 / rule.target.decode_rate
    usual = max(1 / rule.reader, 1 / rule.source.decode_rate)
    if catching_up > 0:
        delayed = np.ceil(np.maximum(late, 0.0) / catching_up)
        longest = np.where(late > 0, 1 / rule.reader + late, usual)
    else:
        on_time = np.floor(np.maximum(-late, 0.0) / max(-catching_up, 1e-12)) + (late <= 0)
        delayed = after - np.minimum(on_time, after)
        longest = np.where(delayed > 1, 1 / rule.target.decode_rate, usual)
        longest = np.maximum(longest, np.where(late > 0, 1 / rule.reader + late, 0.0))
    return np.minimum(delayed, after).astype(np.int64), np.maximum(longest, usual)

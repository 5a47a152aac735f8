"""One request's account with the budget: reserved at admission, settled when it is known what was used."""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from serve_app.core.budget import TokenBudget
from serve_app.core.legs import LegReason
from serve_app.core.model import EndpointKind
from serve_app.core.planner import Planner
from serve_app.core.report import prefill_tokens
from serve_app.core.session import StreamSession

#: Legs that dispatch is responsible for. The paper's budget knows no others (section 3).
_DISPATCHED: Final = frozenset({LegReason.DISPATCH, LegReason.HEDGE, LegReason.RETRY})


class Charge:
    """Of a request whose prompt is estimated to have ``prompt_tokens``.

    What counts, and for which side, is fixed at admission, whatever becomes of the configuration meanwhile.
    A request that may use endpoints of one ``kinds`` only leaves dispatch nothing to decide (a privacy pin, say): it
    neither earns budget nor spends any.
    """

    def __init__(self, budget: TokenBudget, planner: Planner, prompt_tokens: int, kinds: Set[EndpointKind]) -> None:
        self._budget = budget
        self._kind = planner.constrained_kind if len(kinds) > 1 else None
        self._counts_decode = planner.counts_decode
        self._admitted = 0
        if self._kind is not None:
            self._admitted = planner.admitted_tokens(prompt_tokens)
            budget.admit(self._admitted)
        self._reserving = planner.reserved_tokens(prompt_tokens)
        self._account = budget.unreserved()
        self._closed = False

    def afford(self, delay: float) -> bool:
        """Whether the constrained side may take part ``delay`` seconds after the start; if so, that is reserved."""
        reservation = self._budget.reserve(self._reserving, hedge=delay > 0)
        if reservation is None:
            return False
        self._account = reservation
        return True

    def settle(self, session: StreamSession) -> None:
        """The first token is there: return what the race did not need, unless the constrained side still works on it.

        It decodes on where it won, and a loser that is watched may not even have said yet that it got a slot.
        """
        owner = session.winner
        if self._counts_decode and owner is not None and owner.info.kind is self._kind:
            return
        if any(leg.live and leg.info.kind is self._kind and leg.receipt is None for leg in session.legs):
            return
        self._account.settle(self._used(session))

    def close(self, session: StreamSession) -> None:
        """The stream is over. Only the first call counts."""
        self._account.settle(self._used(session))
        if not self._closed:
            self._closed = True
            self._budget.correct(self._processed(session) - self._admitted)

    def _processed(self, session: StreamSession) -> int:
        """Tokens of the request, of which the budget is a share: none if no endpoint took it."""
        if self._kind is None or all(leg.receipt is None for leg in session.legs):
            return 0
        return session.prompt_tokens + (session.buffer.accepted if self._counts_decode else 0)

    def _used(self, session: StreamSession) -> int:
        legs = [leg for leg in session.legs if leg.info.kind is self._kind]
        if self._counts_decode:
            return sum(prefill_tokens(leg, session) + leg.tokens for leg in legs)
        return sum(prefill_tokens(leg, session) for leg in legs if leg.reason in _DISPATCHED)

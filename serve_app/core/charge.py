"""One request's account with the budget: reserved at admission, settled when it is known what was used."""

from __future__ import annotations

from typing import Final

from serve_app.core.budget import TokenBudget
from serve_app.core.legs import LegReason
from serve_app.core.planner import Planner
from serve_app.core.report import prefill_tokens
from serve_app.core.session import StreamSession

#: Legs that dispatch is responsible for. The paper's budget knows no others (section 3).
_DISPATCHED: Final = frozenset({LegReason.DISPATCH, LegReason.HEDGE, LegReason.RETRY})


class Charge:
    """Of a request whose prompt is estimated to have ``prompt_tokens``.

    What counts, and for which side, is fixed at admission, whatever becomes of the configuration meanwhile.
    """

    def __init__(self, budget: TokenBudget, planner: Planner, prompt_tokens: int) -> None:
        self._budget = budget
        self._kind = planner.constrained_kind
        self._counts_decode = planner.counts_decode
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
        """The first token is there: return what the race did not need, unless the constrained side decodes on."""
        owner = session.winner
        if self._counts_decode and owner is not None and owner.info.kind is self._kind:
            return
        self._account.settle(self._used(session))

    def close(self, session: StreamSession) -> None:
        """The stream is over. Only the first call counts."""
        self._account.settle(self._used(session))
        if not self._closed:
            self._closed = True
            answer = session.buffer.accepted if self._counts_decode else 0
            self._budget.correct(session.prompt_tokens + answer - self._admitted)

    def _used(self, session: StreamSession) -> int:
        legs = [leg for leg in session.legs if leg.info.kind is self._kind]
        if self._counts_decode:
            return sum(prefill_tokens(leg, session) + leg.tokens for leg in legs)
        return sum(prefill_tokens(leg, session) for leg in legs if leg.reason in _DISPATCHED)

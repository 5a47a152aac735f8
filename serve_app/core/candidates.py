"""Which endpoint a running stream may go to: for less money when all is well, for survival when it is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from serve_app.core.errors import DiscoError, EndpointError
from serve_app.core.legs import Leg, LegOutcome
from serve_app.core.migration import MigrationDecision, Mover, StreamState, Verdict, fits
from serve_app.core.model import ContinuesBy, EndpointId, EndpointInfo
from serve_app.core.watch import UNWATCHED, Watch

#: An endpoint gets a second chance (Serve may have another replica of it), never a third.
MOST_FAILURES = 2


class Candidates(Mapping[EndpointId, EndpointInfo]):
    """The endpoints one request may use, best first. Nothing outside it is ever started.

    ``park``: this request may move as planned, so the loser of its race may keep its prefill.
    """

    def __init__(self, eligible: Sequence[EndpointInfo], mover: Mover, *, park: bool, watch: Watch = UNWATCHED) -> None:
        self._infos = {info.id: info for info in eligible}
        self._mover = mover
        self.is_sick = watch.is_sick
        self._park = park and mover.mode is not None

    def __getitem__(self, endpoint: EndpointId) -> EndpointInfo:
        return self._infos[endpoint]

    def __iter__(self) -> Iterator[EndpointId]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def moves(
        self,
        source: EndpointInfo,
        legs: Sequence[Leg],
        state: StreamState,
        *,
        barred: bool,
        parked: Mapping[EndpointId, float] | None = None,
    ) -> list[MigrationDecision]:
        """A verdict for every other endpoint; the one to act on, if any, comes first.

        ``barred``: no move is left. ``parked``: endpoints that keep this prompt's prefill, with the
        seconds since they began it.
        """
        decisions = []
        for target in self._infos.values():
            if target.id == source.id:
                continue
            decision = self._mover.consider(source, target, state, parked=(parked or {}).get(target.id))
            if decision.verdict is Verdict.GO and barred:
                decision = replace(decision, verdict=Verdict.LIMIT)
            elif decision.verdict is Verdict.GO and (failures(target.id, legs) or self.is_sick(target.id)):
                decision = replace(decision, verdict=Verdict.UNHEALTHY)
            decisions.append(decision)
        return sorted(decisions, key=lambda d: (d.verdict is not Verdict.GO, -d.gain))

    def may_park(self, loser: EndpointInfo, rivals: Sequence[EndpointId]) -> bool:
        """A planned move to ``loser`` from one of its ``rivals`` is conceivable, so its prefill is worth keeping."""
        return self._park and loser.can_park and any(self._mover.is_cheaper(loser.id, rival) for rival in rivals)

    def untried(self, legs: Sequence[Leg]) -> list[EndpointId]:
        """Those without a leg, the sick ones last."""
        tried = {leg.info.id for leg in legs}
        return sorted((name for name in self._infos if name not in tried), key=self.is_sick)

    def retry(self, failed: Leg, error: DiscoError, legs: Sequence[Leg]) -> EndpointId | None:
        """Where to start again after a failure before the first token: elsewhere, or once more at the same endpoint."""
        if untried := self.untried(legs):
            return untried[0]
        once_more = isinstance(error, EndpointError) and failures(failed.info.id, legs) < MOST_FAILURES
        return failed.info.id if once_more else None

    def rescuer(self, legs: Sequence[Leg], state: StreamState) -> EndpointInfo | None:
        """Who may carry on after a failure: fewest failures first, then whoever can hold the whole answer.

        To be sick is as bad as to have failed once.
        """
        able = [info for info in self._able(state) if failures(info.id, legs) < MOST_FAILURES]
        return min(
            able,
            key=lambda info: (failures(info.id, legs) + self.is_sick(info.id), not fits(info, state)),
            default=None,
        )

    def stand_in(self, silent: Leg, legs: Sequence[Leg], state: StreamState) -> EndpointInfo | None:
        """Who may carry on in place of a leg that is only suspected: another endpoint, without a blemish."""
        if state.open_character:
            # Half a character does not travel by text, and the silent leg may yet finish it.
            return None
        able = [info for info in self._able(state) if info.id != silent.info.id]
        sound = (info for info in able if not failures(info.id, legs) and not self.is_sick(info.id))
        return min(sound, key=lambda info: not fits(info, state), default=None)

    def _able(self, state: StreamState) -> list[EndpointInfo]:
        """Those that can continue a text of this length."""
        return [
            info
            for info in self._infos.values()
            if info.continues_by is not ContinuesBy.NO and state.prompt_tokens + state.accepted < info.context_length
        ]


def failures(endpoint: EndpointId, legs: Sequence[Leg]) -> int:
    return sum(leg.info.id == endpoint and leg.outcome is LegOutcome.FAILED for leg in legs)

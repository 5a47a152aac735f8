"""What is believed about endpoints and requests, from what was observed here and elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft
from serve_app.core.lengths import LengthDistribution, OutputLengths, exponential_quantiles
from serve_app.core.model import EndpointId
from serve_app.core.observations import ENOUGH, EndpointObservations
from serve_app.core.watch import Patience

#: Guesses before anything was seen, tokens.
PRIOR_PROMPT: Final = 60.0
PRIOR_OUTPUT: Final = 200.0


class Seen(StrEnum):
    """PROMPT: a request of ``tokens`` came. ANSWER: one ended with ``tokens``.

    FIRST_TOKEN: ``seconds`` from launch to first content token, for a prompt of ``tokens``.
    NO_TOKEN: none came in so many ``seconds``, and nobody waited any longer.
    DECODED: ``tokens`` came in the ``seconds`` after the first one, unhindered by any pace.
    SILENCE: ``seconds`` were the longest time from one item to the next within one leg.
    """

    PROMPT = "prompt"
    ANSWER = "answer"
    FIRST_TOKEN = "first_token"  # noqa: S105 - a token of text
    NO_TOKEN = "no_token"  # noqa: S105
    DECODED = "decoded"
    SILENCE = "silence"


class Observation(NamedTuple):
    """One fact. ``endpoint`` is empty where it concerns none."""

    what: Seen
    tokens: int
    seconds: float = 0.0
    endpoint: EndpointId = ""


class Estimates:
    """Sliding windows of observations, and the beliefs of the last ``refit``.

    ``news``: observations since then. Other routers' observations count as much as one's own; the window forgets the
    oldest first.
    """

    def __init__(self, priors: Mapping[EndpointId, LatencyProfile], window: int) -> None:
        self._window = window
        self._endpoints = {name: EndpointObservations(prior, window) for name, prior in priors.items()}
        self._prompts: deque[int] = deque(maxlen=window)
        self._answers: deque[int] = deque(maxlen=window)
        self._own: deque[Observation] = deque(maxlen=4 * window)
        self.refit()

    def observe(self, seen: Observation) -> None:
        self._own.append(seen)
        self._take(seen)

    def merge(self, others: Iterable[Observation]) -> None:
        """What other routers observed; of endpoints that this one does not have, nothing is kept."""
        for seen in others:
            self._take(seen)

    def drain(self) -> list[Observation]:
        """One's own observations since the last call, for others to merge; the oldest are lost if nobody asks."""
        own = list(self._own)
        self._own.clear()
        return own

    def resize(self, window: int) -> None:
        """Keep the newest ``window`` observations of each sort."""
        self._window = window
        self._prompts = deque(self._prompts, maxlen=window)
        self._answers = deque(self._answers, maxlen=window)
        self._own = deque(self._own, maxlen=4 * window)
        for endpoint in self._endpoints.values():
            endpoint.resize(window)

    def add(self, endpoint: EndpointId, prior: LatencyProfile) -> None:
        """A further endpoint. Of one that is back, what was observed counts, and not the prior."""
        if endpoint not in self._endpoints:
            seen = self._endpoints[endpoint] = EndpointObservations(prior, self._window)
            self.profiles[endpoint] = seen.profile()
            self._habits[endpoint] = seen.usual(self.profiles[endpoint])

    def forget(self, endpoint: EndpointId) -> None:
        """One that no request may use any more, nor any stream that still runs."""
        for known in (self._endpoints, self.profiles, self._habits):
            known.pop(endpoint, None)

    def refit(self) -> None:
        # Cleared first: what an estimate cannot digest now, it will not digest at once either.
        self.news = 0
        self.profiles = {name: endpoint.profile() for name, endpoint in self._endpoints.items()}
        self._habits = {name: endpoint.usual(self.profiles[name]) for name, endpoint in self._endpoints.items()}
        self.prompts = LengthDistribution.of_samples(_completed(self._prompts, PRIOR_PROMPT))
        self.answers = OutputLengths(_completed(self._answers, PRIOR_OUTPUT))

    def ttfts(self, endpoint: EndpointId) -> EmpiricalTtft:
        """F of an endpoint, whatever the prompt."""
        return self._endpoints[endpoint].ttft_distribution(self.prompts.lengths.tolist())

    def ttfts_seen(self, endpoint: EndpointId) -> int:
        """TTFTs of an endpoint in the window; a prior completes F up to ``ENOUGH``."""
        return self._endpoints[endpoint].ttfts_seen

    def seldom_later(self, endpoint: EndpointId, share: float) -> LinearTtft | None:
        """Seconds within which the endpoint answers a prompt of l with the probability ``share``; None if unknown."""
        return self._endpoints[endpoint].seldom_later(share)

    def usual(self, endpoint: EndpointId, tokens: int) -> Patience:
        """What the endpoint takes in 99 of 100 cases with ``tokens`` to prefill, as of the last refit."""
        return self._habits[endpoint].patience(tokens)

    def _take(self, seen: Observation) -> None:
        # No policy is fitted to silences.
        self.news += seen.what is not Seen.SILENCE
        match seen.what:
            case Seen.PROMPT:
                self._prompts.append(max(1, seen.tokens))
            case Seen.ANSWER:
                self._answers.append(seen.tokens)
            case Seen.FIRST_TOKEN if endpoint := self._endpoints.get(seen.endpoint):
                endpoint.first_token(seen.tokens, seen.seconds)
            case Seen.NO_TOKEN if endpoint := self._endpoints.get(seen.endpoint):
                endpoint.first_token(seen.tokens, seen.seconds, came=False)
            case Seen.DECODED if endpoint := self._endpoints.get(seen.endpoint):
                endpoint.decoded(seen.tokens, seen.seconds)
            case Seen.SILENCE if endpoint := self._endpoints.get(seen.endpoint):
                endpoint.was_silent(seen.seconds)


def _completed(seen: Collection[int], mean: float) -> list[int]:
    """Up to ENOUGH lengths, guesses stand in for those not seen yet."""
    return [*seen, *exponential_quantiles(mean, max(0, ENOUGH - len(seen)))]

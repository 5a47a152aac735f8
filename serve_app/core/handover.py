"""How much of an answer the dear side decodes before the cheap side takes over (paper section 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from serve_app.core.latency import LatencyProfile, LinearTtft
from serve_app.core.migration import HANDOVER_QUANTILE, MigrationMode, handover_seconds


class Decode(NamedTuple):
    """What counts against a budget besides prompts: the constrained side decodes ``owned`` tokens of an answer that it
    began, and answers have ``answer`` tokens."""

    owned: float
    answer: float


#: The paper's budget, which knows prompts only (section 3).
PROMPTS_ONLY: Final = Decode(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class HandoverRule:
    """``mode`` None or ``reader_rate`` (r_c, tokens per second) None: nothing moves. ``network``: t_net, seconds."""

    mode: MigrationMode | None = None
    reader_rate: float | None = None
    network: float = 0.05

    def decoded(self, source: LatencyProfile, target: LatencyProfile, prompt_tokens: float, answer: float) -> float:
        """Expected tokens that ``source`` decodes of an answer of ``answer`` tokens that it began.

        The move is triggered by the first n with n (1 - r_c / r_g) >= r_c t_m(n). In OVERLAP the source goes on until
        the target delivers. A lead that never grows enough leaves the whole answer to the source.
        """
        if self.mode is None or self.reader_rate is None:
            return answer
        quantile = HANDOVER_QUANTILE[self.mode]
        slope = target.ttft.slope if isinstance(target.ttft, LinearTtft) else 0.0
        gained_per_token = 1 - self.reader_rate / source.decode_rate - self.reader_rate * slope
        if gained_per_token <= 0:
            return answer
        at_once = handover_seconds(target, int(prompt_tokens), self.network, quantile)
        trigger = max(1.0, self.reader_rate * at_once / gained_per_token)
        surplus = 0.0
        if self.mode is MigrationMode.OVERLAP:
            surplus = source.decode_rate * (at_once + slope * trigger)
        return min(answer, trigger + surplus)


#: Answers stay where they began.
NOTHING_MOVES: Final = HandoverRule()

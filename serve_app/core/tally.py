"""What a router's streams came to since it started, and what their answers would have cost on one side alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve_app.core.cost import CostModel
from serve_app.core.model import EndpointId, EndpointInfo, EndpointKind


@dataclass(slots=True)
class Comparison:
    """Answers that either side could have given. USD.

    spent: all their legs, lost and cut ones included. alone: for each kind, the same answers from the cheapest
    endpoint of that kind which the request might have used: c_p l + c_d n, l the prompt's tokens, n the answer's.
    """

    answers: int = 0
    spent: float = 0.0
    alone: dict[EndpointKind, float] = field(default_factory=lambda: dict.fromkeys(EndpointKind, 0.0))


@dataclass(slots=True)
class Tally:
    """``cost`` in USD, by endpoint; ``wins``: first tokens; ``moves``: completed migrations and rescues."""

    streams: int = 0
    moves: int = 0
    wins: Counter[EndpointId] = field(default_factory=Counter)
    cost: dict[EndpointId, float] = field(default_factory=dict)
    comparison: Comparison = field(default_factory=Comparison)

    def add(self, report: Mapping[str, Any], eligible: Sequence[EndpointInfo], costs: CostModel) -> None:
        """A stream is over. ``report``: as ``build_report`` makes it."""
        self.streams += 1
        self.moves += sum(
            record["outcome"] == "completed" and record["reason"] != "resume" for record in report["migrations"]
        )
        if report["winner"] is not None:
            self.wins[report["winner"]] += 1
        for leg in report["legs"]:
            self.cost[leg["endpoint"]] = self.cost.get(leg["endpoint"], 0.0) + leg["cost_usd"]
        kinds = {info.kind for info in eligible}
        prompt, answer = report["prompt_tokens"], report["completion_tokens"]
        if len(kinds) < len(EndpointKind) or not answer:
            return
        self.comparison.answers += 1
        self.comparison.spent += report["cost_usd"]
        for kind in kinds:
            ways = [costs.cost(info.id, prompt, answer) for info in eligible if info.kind is kind]
            self.comparison.alone[kind] += min(ways)

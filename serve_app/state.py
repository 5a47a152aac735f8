"""What all streams share: estimates, budget, token counts. One router replica keeps it in its own process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from serve_app.core.breaker import Breakers
from serve_app.core.budget import TokenBudget
from serve_app.core.estimate import PromptEstimator
from serve_app.core.load import EndpointLoad
from serve_app.core.planner import Planner


class SharedState(Protocol):
    """Synchronous on purpose: a replica answers from its own copy, and merges with others off the hot path."""

    @property
    def planner(self) -> Planner: ...

    @property
    def budget(self) -> TokenBudget: ...

    @property
    def load(self) -> EndpointLoad: ...

    @property
    def breakers(self) -> Breakers: ...

    def estimator(self, model: str) -> PromptEstimator: ...


@dataclass
class LocalState:
    """SharedState of a single router replica."""

    planner: Planner
    budget: TokenBudget
    load: EndpointLoad
    breakers: Breakers = field(default_factory=Breakers)
    estimators: dict[str, PromptEstimator] = field(default_factory=dict)

    def estimator(self, model: str) -> PromptEstimator:
        return self.estimators.setdefault(model, PromptEstimator())

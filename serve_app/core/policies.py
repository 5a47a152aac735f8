"""The dispatch policies by name, and the schedule that each of them fits to what is believed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from serve_app.core.baselines import DEVICE_ONLY, SERVER_ONLY, stochastic
from serve_app.core.dispatch import Starter
from serve_app.core.handover import PROMPTS_ONLY, Decode
from serve_app.core.latency import LinearTtft, ServerTtft
from serve_app.core.lengths import LengthDistribution
from serve_app.core.model import EndpointKind
from serve_app.core.optimal_threshold import fit_optimal_threshold
from serve_app.core.optimal_waits import fit_optimal_waits
from serve_app.core.threshold import fit_threshold
from serve_app.core.wait_time import fit_waits


class PolicyName(StrEnum):
    """AUTO: the best one for the side whose budget is limited. JOINT: the same under a budget over all tokens.

    PAPER: the paper's own one for that side, which guarantees a longest wait but not the smallest mean.

    Those named D are for a constrained device, those named S for a constrained server; STOCH_* choose at random.
    """

    AUTO = "auto"
    JOINT = "joint"
    PAPER = "paper"
    CLOUD_ONLY = "cloud-only"
    DEVICE_ONLY = "device-only"
    STOCH_D = "stoch-d"
    STOCH_D_EXCLUSIVE = "stoch-d-exclusive"
    STOCH_S = "stoch-s"
    STOCH_S_EXCLUSIVE = "stoch-s-exclusive"
    DISCO_D = "disco-d"
    DISCO_S = "disco-s"
    DISCO_D_STAR = "disco-d*"
    DISCO_S_STAR = "disco-s*"


#: The side that a policy is made for, where prices do not matter to it.
MADE_FOR: Final[Mapping[PolicyName, EndpointKind]] = {
    PolicyName.STOCH_D: EndpointKind.DEVICE,
    PolicyName.STOCH_D_EXCLUSIVE: EndpointKind.DEVICE,
    PolicyName.STOCH_S: EndpointKind.CLOUD,
    PolicyName.STOCH_S_EXCLUSIVE: EndpointKind.CLOUD,
    PolicyName.DISCO_D: EndpointKind.DEVICE,
    PolicyName.DISCO_S: EndpointKind.CLOUD,
    PolicyName.DISCO_D_STAR: EndpointKind.DEVICE,
    PolicyName.DISCO_S_STAR: EndpointKind.CLOUD,
}

_BEST: Final = {EndpointKind.DEVICE: PolicyName.DISCO_D_STAR, EndpointKind.CLOUD: PolicyName.DISCO_S_STAR}
_PAPER: Final = {EndpointKind.DEVICE: PolicyName.DISCO_D, EndpointKind.CLOUD: PolicyName.DISCO_S}


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What a schedule is fitted to. budget is b, tail_share alpha; decode: what a joint budget counts too.

    tail_guard: the longest prompts are where the tail is, and the budget first keeps that short (disco-s*).
    """

    server: ServerTtft
    device: LinearTtft
    prompts: LengthDistribution
    budget: float
    tail_share: float = 0.05
    decode: Decode = PROMPTS_ONLY
    tail_guard: bool = True


class Fitted(NamedTuple):
    """``name`` of the policy that AUTO came to; ``rule``: what it goes by, for reports."""

    schedule: Starter
    name: str
    rule: str


def resolved(policy: PolicyName, constrained: EndpointKind) -> PolicyName:
    """What AUTO and PAPER come to where ``constrained`` is the side whose budget is limited."""
    if policy is PolicyName.AUTO:
        return _BEST[constrained]
    return _PAPER[constrained] if policy is PolicyName.PAPER else policy


def fit(policy: PolicyName, constrained: EndpointKind, beliefs: Beliefs) -> Fitted:
    """``constrained``: the side that ``beliefs.budget`` limits."""
    if policy is PolicyName.JOINT:
        fitted = _FITS[_BEST[constrained]](beliefs)
        return Fitted(fitted.schedule, policy.value, f"{fitted.rule}, decode included")
    return _FITS[resolved(policy, constrained)](beliefs)


def _disco_s(beliefs: Beliefs) -> Fitted:
    threshold = fit_threshold(beliefs.prompts, beliefs.budget)
    return Fitted(threshold, PolicyName.DISCO_S.value, f"l_th={threshold.threshold:g}")


def _disco_d_star(beliefs: Beliefs) -> Fitted:
    """Where the budget has room for it, no request is left to a server that is slower than it was ever seen to be.

    A sample of the past says nothing of that. It happens to one request in n + 1 while nothing changes, and to many as
    soon as the server gets worse.
    """
    waits = fit_optimal_waits(beliefs.server, beliefs.prompts, beliefs.device, beliefs.budget, beliefs.decode)
    if beliefs.budget * (beliefs.server.size + 1) >= 1:
        waits = waits.at_most(beliefs.server.quantile(1.0))
    return Fitted(waits, PolicyName.DISCO_D_STAR.value, "w(l)")


def _disco_s_star(beliefs: Beliefs) -> Fitted:
    known = beliefs.server, beliefs.prompts, beliefs.device
    races = fit_optimal_threshold(*known, beliefs.budget, beliefs.decode, tail_guard=beliefs.tail_guard)
    return Fitted(races, PolicyName.DISCO_S_STAR.value, "gain per token")


def _chance(name: PolicyName, *, concurrent: bool) -> Callable[[Beliefs], Fitted]:
    def assigned(beliefs: Beliefs) -> Fitted:
        return Fitted(stochastic(MADE_FOR[name], beliefs.budget, concurrent=concurrent), name.value, "chance")

    return assigned


_FITS: Final[Mapping[PolicyName, Callable[[Beliefs], Fitted]]] = {
    PolicyName.CLOUD_ONLY: lambda _: Fitted(SERVER_ONLY, PolicyName.CLOUD_ONLY.value, "the policy says so"),
    PolicyName.DEVICE_ONLY: lambda _: Fitted(DEVICE_ONLY, PolicyName.DEVICE_ONLY.value, "the policy says so"),
    PolicyName.STOCH_D: _chance(PolicyName.STOCH_D, concurrent=True),
    PolicyName.STOCH_D_EXCLUSIVE: _chance(PolicyName.STOCH_D_EXCLUSIVE, concurrent=False),
    PolicyName.STOCH_S: _chance(PolicyName.STOCH_S, concurrent=True),
    PolicyName.STOCH_S_EXCLUSIVE: _chance(PolicyName.STOCH_S_EXCLUSIVE, concurrent=False),
    PolicyName.DISCO_D: lambda b: Fitted(
        fit_waits(b.server, b.prompts, b.budget, b.tail_share), PolicyName.DISCO_D.value, "w(l)"
    ),
    PolicyName.DISCO_S: _disco_s,
    PolicyName.DISCO_D_STAR: _disco_d_star,
    PolicyName.DISCO_S_STAR: _disco_s_star,
}

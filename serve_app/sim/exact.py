"""The same replay by the production code: stream service, session and driver on virtual time, request by request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve_app.core.budget import TokenBudget
from serve_app.core.cost import CostModel, UnitCost
from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft
from serve_app.core.lengths import OutputLengths
from serve_app.core.load import Capacity, EndpointLoad
from serve_app.core.migration import MigrationMode
from serve_app.core.model import (
    DispatchPlan,
    EndpointId,
    EndpointInfo,
    EndpointKind,
    Launch,
    Sampling,
    TokenPrompt,
)
from serve_app.core.planner import Afford, Planner, PlannerConfig, Queue, no_queue
from serve_app.core.schedule import Delays
from serve_app.service import StreamService
from serve_app.settings import AppSettings, LiveSettings
from serve_app.sim.endpoints import DeviceTiming, ServerTiming, TimedEndpoint
from serve_app.sim.online import DEVICE, SERVER, Loop
from serve_app.sim.requests import Requests
from serve_app.sim.virtual_time import run_virtual
from serve_app.state import LocalState
from serve_app.streams import ClientRequest
from serve_app.telemetry import Telemetry

#: Seconds by which a delayed launch is put off, so that a token which comes at that very instant comes first: a hedge
#: is due only if T_s > w(l), and waits fitted to a trace are values of that trace.
STRICTLY_AFTER = 5e-10

#: Longest answer, if nothing else is said.
MAX_TOKENS = 512

#: Slots of each endpoint: a trace has no queue.
_SLOTS = 1_000_000

#: Seconds between one request's end and the next one's start.
_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What the production code is told besides the requests; times in seconds, rates in tokens per second.

    mode None: no planned move. handoff_ttft: the server's TTFT of a move to it, one per request.
    """

    device: LinearTtft
    server_rate: float
    device_rate: float
    server_cost: UnitCost
    device_cost: UnitCost
    handoff_ttft: NDArray[np.float64]
    mode: MigrationMode | None = None
    parking: bool = False
    reader: float = 4.8
    network: float = 0.05
    max_tokens: int = MAX_TOKENS


@dataclass(frozen=True, slots=True)
class Played:
    """One request. server_at, device_at: seconds at which the side started, None if it did not; report: as served."""

    ttft: float
    server_at: float | None
    device_at: float | None
    report: Mapping[str, Any]


class _Numbered(Planner):
    """A planner that is told which request of the trace comes next."""

    number = 0


class _Scheduled(_Numbered):
    """Plans what a schedule decided beforehand, and believes in the traces instead of in what it sees."""

    def __init__(self, requests: Requests, delays: Delays, setting: Setting, infos: Sequence[EndpointInfo]) -> None:
        profiles = {
            SERVER: LatencyProfile(EmpiricalTtft(requests.server_ttft), 1e6, setting.server_rate),
            DEVICE: LatencyProfile(setting.device, 1 / setting.device.slope, setting.device_rate),
        }
        costs = CostModel({SERVER: setting.server_cost, DEVICE: setting.device_cost})
        super().__init__(PlannerConfig(), infos, costs, profiles)
        outputs = np.minimum(requests.output_tokens, setting.max_tokens)
        self._answers = OutputLengths(outputs.tolist())
        self._delays = delays

    def expected_remaining(self, accepted: int, max_tokens: int) -> float:
        return self._answers.expected_remaining(accepted, max_tokens)

    def plan(self, *_: object, **__: object) -> DispatchPlan:
        delays = {SERVER: self._delays.server[self.number], DEVICE: self._delays.device[self.number]}
        launches = [
            Launch(endpoint, float(delay) + (STRICTLY_AFTER if delay > 0 else 0.0))
            for endpoint, delay in delays.items()
            if np.isfinite(delay)
        ]
        return DispatchPlan(tuple(sorted(launches, key=lambda launch: launch.delay)), "replay", "as scheduled")


def play(
    requests: Requests, delays: Delays, setting: Setting, progress: Callable[[int], None] = lambda _: None
) -> list[Played]:
    """Every request to its end, one after the other. ``progress`` is told how many are done."""
    endpoints = _endpoints(requests, setting)
    planner = _Scheduled(requests, delays, setting, [endpoint.info for endpoint in endpoints.values()])
    return run_virtual(_play(requests, setting, endpoints, planner, TokenBudget(1.0), progress))


class _Closed(_Numbered):
    """The loop's own planner, with the trace's random numbers. ``steps``: as ``online.Served``."""

    def __init__(self, requests: Requests, loop: Loop) -> None:
        super().__init__(*loop.beliefs())
        self._u = requests.u.tolist()
        self.steps: list[int] = []

    def plan(
        self,
        prompt_tokens: int,
        eligible: Sequence[EndpointInfo],
        now: float,
        u: float,  # noqa: ARG002 - the trace brings its own
        *,
        afford: Afford,
        share: float | None = None,
        queue: Queue = no_queue,
    ) -> DispatchPlan:
        fits = self.fits
        chosen = super().plan(
            prompt_tokens, eligible, now, self._u[self.number], afford=afford, share=share, queue=queue
        )
        if self.fits > fits:
            self.steps.append(self.number)
        return chosen


def play_loop(
    requests: Requests, loop: Loop, progress: Callable[[int], None] = lambda _: None
) -> tuple[list[Played], tuple[int, ...]]:
    """The closed loop ``online.serve``: what became of every request, and before which the controller stepped."""
    free = UnitCost(0.0, 0.0)
    setting = Setting(
        loop.device, loop.server_rate, loop.device_rate, free, free, requests.server_ttft, reader=loop.reader
    )
    endpoints = _endpoints(requests, setting)
    planner = _Closed(requests, loop)
    played = run_virtual(_play(requests, setting, endpoints, planner, TokenBudget(loop.budget), progress))
    return played, tuple(planner.steps)


async def _play(
    requests: Requests,
    setting: Setting,
    endpoints: Mapping[EndpointId, TimedEndpoint],
    planner: _Numbered,
    budget: TokenBudget,
    progress: Callable[[int], None],
) -> list[Played]:
    state = LocalState(planner, budget, EndpointLoad(dict.fromkeys(endpoints, Capacity(_SLOTS))))
    app, live = _settings(setting)
    service = StreamService(endpoints, app, live, state, Telemetry(app.telemetry, "disco-simulate"))
    loop, played = asyncio.get_running_loop(), []
    for number, length in enumerate(requests.prompt_tokens.tolist()):
        planner.number = number
        opened = loop.time()
        prompt = TokenPrompt((number,) + (0,) * (length - 1))
        stream = service.open(
            ClientRequest(f"r{number}", "disco", prompt, Sampling(setting.max_tokens), consumption_rate=setting.reader)
        )
        try:
            await stream.started()
            ttft = loop.time() - opened
            async for _ in stream:
                pass
            report = stream.outcome.report
        finally:
            await stream.aclose()
        starts = {name: [at - opened for who, at in e.started if who == number] for name, e in endpoints.items()}
        for endpoint in endpoints.values():
            endpoint.started.clear()
        played.append(Played(ttft, next(iter(starts[SERVER]), None), next(iter(starts[DEVICE]), None), report))
        await asyncio.sleep(_PAUSE)
        progress(number + 1)
    return played


def _endpoints(requests: Requests, setting: Setting) -> dict[EndpointId, TimedEndpoint]:
    outputs = np.minimum(requests.output_tokens, setting.max_tokens).tolist()
    longest = int(requests.prompt_tokens.max()) + setting.max_tokens + 1
    server = EndpointInfo(SERVER, EndpointKind.CLOUD, "trace", longest, vocabulary="trace")
    device = EndpointInfo(DEVICE, EndpointKind.DEVICE, "trace", longest, vocabulary="trace", can_park=setting.parking)
    timing = ServerTiming(requests.server_ttft.tolist(), setting.handoff_ttft.tolist(), setting.network)
    return {
        SERVER: TimedEndpoint(server, timing, setting.server_rate, outputs),
        DEVICE: TimedEndpoint(device, DeviceTiming(setting.device, setting.network), setting.device_rate, outputs),
    }


def _settings(setting: Setting) -> tuple[AppSettings, LiveSettings]:
    """No limit may end a stream early: a trace's slowest answers are part of it."""
    engines = {name: {"kind": kind, "engine": {"type": "simulated"}} for name, kind in _KINDS.items()}
    live = {
        "migration": {
            "mode": "off" if setting.mode is None else setting.mode.value,
            "network_seconds": setting.network,
        },
        "limits": {"stream_seconds": 1e6, "first_token_seconds": 1e5, "idle_seconds": 1e5, "patience": None},
    }
    return AppSettings.model_validate({"endpoints": engines}), LiveSettings.model_validate(live)


_KINDS = {SERVER: EndpointKind.CLOUD, DEVICE: EndpointKind.DEVICE}

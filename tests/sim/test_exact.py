"""The vectorised replay says what the production session does: launches, first tokens, moves."""

from __future__ import annotations

import numpy as np
import pytest

from serve_app.core.cost import UnitCost
from serve_app.core.latency import EmpiricalTtft, LatencyProfile, LinearTtft
from serve_app.core.migration import MigrationMode
from serve_app.core.schedule import NEVER, Delays
from serve_app.sim.exact import Played, Setting, play
from serve_app.sim.migration import MoveRule, Moves, expected_remaining, move
from serve_app.sim.requests import Population, Requests
from serve_app.sim.vector import Replay, replay

#: Rates without a common multiple: two tokens at one instant have no order that could be compared.
SERVER_RATE, DEVICE_RATE = 39.7, 14.9
DEVICE = LinearTtft(1 / 51.3, 0.353)
TTFTS = np.random.default_rng(3).lognormal(-0.7, 0.9, 120)
DEAR, CHEAP = UnitCost(1e-5, 3e-5), UnitCost(1e-6, 2e-6)


def population(longest_answer: int) -> Population:
    rng = np.random.default_rng(4)
    return Population(TTFTS, rng.integers(4, 90, 300), rng.integers(1, longest_answer, 300), DEVICE)


def setting(requests: Requests, **fields: object) -> Setting:
    handoffs = TTFTS[np.random.default_rng(5).integers(0, TTFTS.size, len(requests))]
    costs = {"server_cost": CHEAP, "device_cost": DEAR}
    return Setting(DEVICE, SERVER_RATE, DEVICE_RATE, handoff_ttft=handoffs, **(costs | fields))  # type: ignore[arg-type]


def mixed_delays(requests: Requests) -> Delays:
    """Plain, raced and hedged requests from either side; waits are values of the trace, as fits make them."""
    kind = (requests.u * 6).astype(int)
    wait = np.quantile(TTFTS, requests.u, method="lower")
    server = np.choose(kind, [0, 0, 0, NEVER, wait, 0])
    device = np.choose(kind, [NEVER, 0, wait, 0, 0, wait])
    return Delays(server, device)


def assert_same_start(vector: Replay, exact: list[Played], delays: Delays) -> None:
    assert np.abs([played.ttft for played in exact] - vector.ttft).max() < 1e-9
    for rank, played in enumerate(exact):
        assert (played.server_at is not None) == vector.server_started[rank]
        assert (played.device_at is not None) == vector.device_started[rank]
        if played.server_at is not None:
            assert abs(played.server_at - delays.server[rank]) < 1e-9
        if played.device_at is not None:
            assert abs(played.device_at - delays.device[rank]) < 1e-9


def test_two_thousand_requests_start_alike_and_answer_within_a_nanosecond() -> None:
    requests = population(4).draw(2000, np.random.default_rng(6))
    delays = mixed_delays(requests)
    vector = replay(requests, delays, DEVICE)
    ties = (delays.device == requests.server_ttft) & (delays.server == 0)
    assert ties.any()
    exact = play(requests, delays, setting(requests))
    assert_same_start(vector, exact, delays)


def rule(requests: Requests, used: Setting, *, server_is_dear: bool) -> MoveRule:
    assert used.mode is not None
    server = LatencyProfile(EmpiricalTtft(requests.server_ttft), 1e6, used.server_rate)
    device = LatencyProfile(DEVICE, 1 / DEVICE.slope, used.device_rate)
    source, target = (server, device) if server_is_dear else (device, server)
    remaining = expected_remaining(requests.output_tokens, used.max_tokens)
    return MoveRule(used.mode, used.reader, used.network, source, target, DEAR, CHEAP, remaining)


def assert_same_moves(moves: Moves, exact: list[Played]) -> None:
    for rank, played in enumerate(exact):
        report = played.report
        record = report["migrations"][0] if report["migrations"] else None
        assert (record["at_token"] if record else 0) == moves.at_token[rank], rank
        assert (record is not None and record["outcome"] == "completed") == moves.completed[rank], rank
        legs = report["legs"]
        assert report["delay_num"] == moves.delay_num[rank]
        winner = report["winner"]
        tokens = {name: sum(leg["tokens"] for leg in legs if leg["endpoint"] == name) for name in ("server", "device")}
        other = "device" if winner == "server" else "server"
        assert tokens[winner] == moves.source_tokens[rank]
        extra = sum(leg["tokens"] for leg in legs if leg["outcome"] == "lost")
        assert tokens[other] - extra == moves.target_tokens[rank]


@pytest.mark.parametrize("mode", list(MigrationMode))
def test_streams_that_a_dear_device_won_move_alike(mode: MigrationMode) -> None:
    requests = population(120).draw(150, np.random.default_rng(7))
    delays = Delays(np.full(150, NEVER), np.zeros(150))
    used = setting(requests, mode=mode)
    exact = play(requests, delays, used)
    moves = move(
        rule(requests, used, server_is_dear=False), requests.prompt_tokens, requests.output_tokens, used.handoff_ttft
    )
    assert moves.moved.mean() > 0.1
    assert_same_moves(moves, exact)


@pytest.mark.parametrize("mode", list(MigrationMode))
@pytest.mark.parametrize("parking", [False, True])
def test_streams_that_a_dear_server_won_move_alike(mode: MigrationMode, parking: bool) -> None:
    requests = population(120).draw(150, np.random.default_rng(8))
    delays = Delays(np.zeros(150), np.zeros(150))
    used = setting(requests, server_cost=DEAR, device_cost=CHEAP, mode=mode, parking=parking)
    exact = play(requests, delays, used)
    won = ~replay(requests, delays, DEVICE).device_won
    assert won.mean() > 0.3
    served = requests[won]
    moves = move(
        rule(requests, used, server_is_dear=True),
        served.prompt_tokens,
        served.output_tokens,
        None,
        served.server_ttft if parking else None,
    )
    assert moves.moved.mean() > 0.1
    assert_same_moves(moves, [played for played, server in zip(exact, won, strict=True) if server])

"""The invariants of a stream, over random interleavings of chunks, failures, timers, cancels and slow readers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.migration import MigrationMode
from serve_app.core.model import DispatchPlan, EndpointKind, Launch
from serve_app.core.protocol import ClientLeft, Delivered, Opened, SessionConfig, Woke
from serve_app.core.watch import ENDLESS, Patience
from tests.support.session_world import World, full_text, info, token_after

NAMES = ("cloud", "phone", "laptop")


@st.composite
def worlds(draw: st.DrawFn, *, same_text: bool) -> World:
    vocabularies = st.sampled_from(["v", "v", "w", None])
    infos = tuple(
        info(
            name,
            EndpointKind.CLOUD if name == "cloud" else EndpointKind.DEVICE,
            draw(vocabularies),
            can_park=draw(st.booleans()),
        )
        for name in NAMES[: draw(st.integers(1, 3))]
    )
    names = [i.id for i in infos]
    first = draw(st.sampled_from(names))
    others = [Launch(name, draw(st.sampled_from([0.0, 0.0, 0.3, 2.0]))) for name in names if name != first]
    launches = (Launch(first), *others[: draw(st.integers(0, len(others)))])
    config = SessionConfig(
        max_tokens=draw(st.integers(1, 60)),
        prompt_tokens=draw(st.integers(1, 100)),
        rate=draw(st.sampled_from([None, 4.8, 50.0])),
        ahead_tokens=draw(st.sampled_from([16, 64, 256])),
        max_planned=draw(st.integers(0, 2)),
        max_rescues=draw(st.integers(0, 3)),
        first_token_timeout=5.0,
        idle_timeout=1.0,
        stream_timeout=draw(st.sampled_from([20.0, 600.0])),
    )
    return World(
        infos=infos,
        plan=DispatchPlan(launches, "test", "drawn"),
        config=config,
        mode=draw(st.sampled_from([None, MigrationMode.BREAK, MigrationMode.OVERLAP])),
        salts={name: 0 if same_text else number for number, name in enumerate(names)},
        dear=frozenset(draw(st.sets(st.sampled_from(names)))),
        length=draw(st.integers(0, 50)),
        handover=draw(st.sampled_from([0.0, 0.2, 1.0])),
        patience=draw(st.sampled_from([ENDLESS, Patience(1.0, 0.3), Patience(3.0)])),
        sick=frozenset(draw(st.sets(st.sampled_from(names)))),
    )


def play(world: World, data: st.DataObject, *, failures: bool) -> None:
    """Let up to 80 random things happen, in any order that the endpoints' own promises allow."""
    world.tell(Opened())
    for _ in range(80):
        if world.close is not None:
            break
        running = world.running
        moves = ["time", "deliver", "wake"]
        moves += ["send", "send", "send", "accept"] if running else []
        moves += ["fail"] if running and failures else []
        match data.draw(st.sampled_from(moves)):
            case "time":
                world.now += data.draw(st.sampled_from([0.001, 0.05, 0.3, 1.0, 4.0]))
            case "deliver":
                world.tell(Delivered(data.draw(st.integers(0, 20))))
            case "wake":
                assert world.session.wake_at is not None
                if failures:
                    world.now = max(world.now, world.session.wake_at)
                world.tell(Woke())
            case "send":
                world.send(data.draw(st.sampled_from(running)), data.draw(st.integers(0, 4)))
            case "accept":
                world.accept(data.draw(st.sampled_from(running)))
            case "fail":
                world.fail(data.draw(st.sampled_from(running)))


@settings(max_examples=2000, deadline=None)
@given(st.data(), worlds(same_text=False))
def test_every_interleaving_keeps_the_invariants(data: st.DataObject, world: World) -> None:
    play(world, data, failures=True)
    world.tell(ClientLeft())
    assert world.close is not None
    assert not world.running


@settings(max_examples=1000, deadline=None)
@given(st.data(), worlds(same_text=True))
def test_endpoints_that_agree_give_the_text_without_any_migration(data: st.DataObject, world: World) -> None:
    play(world, data, failures=True)
    ids: tuple[int, ...] = ()
    for _ in range(min(world.length, world.config.max_tokens)):
        ids += (token_after(0, ids),)
    assert full_text(ids).startswith(world.emitted)
    if world.close is not None and world.close.error is None and world.close.finish is not None:
        assert world.emitted == full_text(ids)

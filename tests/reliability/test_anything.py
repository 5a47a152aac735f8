"""Whatever endpoints and clients do together: the text is right or the error honest, and nothing is left behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.model import ContinuesBy
from tests.reliability.test_failover import EARLY, TEXT, finishes
from tests.support.scripted import ScriptedEndpoint, words
from tests.support.scripted_service import Answer, Stack, nothing_left
from tests.support.session_stage import CLOUD, LAPTOP, PHONE
from tests.support.virtual_loop import run_virtual

waits = st.sampled_from([0.001, 0.05, 0.5, 3.0, 9.0])


@st.composite
def endpoints(draw: st.DrawFn) -> list[ScriptedEndpoint]:
    """They write the same text, and may do anything else instead of its end."""
    infos = [CLOUD, PHONE, LAPTOP][: draw(st.integers(1, 3))]
    made = []
    for info in infos:
        continues = draw(st.sampled_from([ContinuesBy.IDS, ContinuesBy.IDS, ContinuesBy.TEXT, ContinuesBy.NO]))
        vocabulary = draw(st.sampled_from(["v", "v", None]))
        script: list[Any] = words(TEXT, draw(waits), draw(waits))
        cut = draw(st.none() | st.integers(0, len(TEXT)))
        if cut is not None:
            broken = draw(waits), EARLY[draw(st.sampled_from(sorted(EARLY)))]
            script = script[:cut] + [broken] * (len(TEXT) + 1 - cut)
        changed = replace(info, continues_by=continues, vocabulary=vocabulary)
        made.append(ScriptedEndpoint(changed, script, draw(st.sampled_from([0.0, 0.2]))))
    return made


services = st.fixed_dictionaries(
    {
        "policy": st.fixed_dictionaries(
            {
                "name": st.sampled_from(["disco-d", "disco-s", "disco-d*", "disco-s*", "joint", "cloud-only", "auto"]),
                "budget": st.sampled_from([0.05, 0.5, 1.0]),
            }
        ),
        "migration": st.fixed_dictionaries(
            {"mode": st.sampled_from(["off", "break", "overlap"]), "max_rescues": st.integers(0, 3)}
        ),
        "limits": st.fixed_dictionaries({"breaker_faults": st.sampled_from([1, 5])}),
    }
)
requests = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 30),
        "stream": st.booleans(),
        "stop": st.sampled_from([None, "f", ["jk", "xyz"], "tu"]),
        "disco": st.fixed_dictionaries(
            {
                "report": st.just(True),
                "consumption_rate": st.sampled_from([None, 4.8, 50.0]),
                "delivery": st.sampled_from(["eager", "paced"]),
                "pin": st.sampled_from([None, None, "cloud_only"]),
            }
        ),
        "leave_at": st.none() | st.floats(0.0, 30.0),
        "read": st.sampled_from([(), (), (2.0, 0.0)]),
    }
)


def expected(asked: dict[str, Any]) -> tuple[str, str]:
    """The whole answer, and how it ends."""
    text = TEXT[: asked["max_tokens"]]
    stops = asked["stop"] or []
    for stop in [stops] if isinstance(stops, str) else stops:
        if stop in text:
            return text[: text.index(stop)], "stop"
    return text, "length" if asked["max_tokens"] <= len(TEXT) else "stop"


def judge(answer: Answer, asked: dict[str, Any], billed: str) -> None:
    whole, end = expected(asked)
    if answer.status != 200:
        assert answer.status == 0 or answer.error["code"], "the client left, or was told why not"
        return
    if not answer.data:
        assert answer.body, "an answer that is sent is whole"
        return
    assert whole.startswith(answer.text), "never a wrong character"
    if answer.data[-1] == "[DONE]":
        assert (answer.text, finishes(answer)) == (whole, [end])
        report = answer.report
        assert report["cost_usd"] == sum(leg["cost_usd"] for leg in report["legs"])
        assert {leg["endpoint"] for leg in report["legs"]} <= set(report["eligible"])
        assert billed != "cloud_only" or {leg["kind"] for leg in report["legs"]} == {"cloud"}
    elif "error" in answer.chunks[-1]:
        assert answer.error["code"]
        assert finishes(answer) == []
    else:
        assert asked["leave_at"] is not None, "only for a client that left may an answer just end"


@settings(max_examples=150)
@given(endpoints(), services, st.lists(requests, min_size=1, max_size=4))
def test_any_mixture_of_faults_gives_the_text_or_an_error_and_leaves_nothing(
    made: list[ScriptedEndpoint], live: dict[str, Any], asked: list[dict[str, Any]]
) -> None:
    async def main() -> None:
        stack = Stack(*made, live=live)
        async with nothing_left(stack):
            answers = await asyncio.gather(*(stack.ask(**fields) for fields in asked))
            await asyncio.sleep(1.0)
        for answer, fields in zip(answers, asked, strict=True):
            judge(answer, fields, fields["disco"]["pin"] or "")

    run_virtual(main())

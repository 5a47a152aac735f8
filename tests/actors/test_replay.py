from __future__ import annotations

import asyncio
import json
from array import array
from pathlib import Path

import pytest

from actors.engines.replay import ReplayEngine
from serve_app.core.errors import EndpointUnavailable
from serve_app.core.model import (
    FinishReason,
    GenerationRequest,
    Handoff,
    Receipt,
    Sampling,
    StreamItem,
    TextPrompt,
    TokenChunk,
)
from serve_app.engine_settings import ReplayEngineSettings
from tests.support.virtual_loop import run_virtual

ROW = {"ttft": 0.4, "gaps": [0.1, 0.3, 0.1], "tokens": ["Hel", "lo", " wörld", "!"]}


def recording(tmp_path: Path, *rows: object) -> ReplayEngine:
    path = tmp_path / "recording.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), "utf-8")
    return ReplayEngine(ReplayEngineSettings(path=str(path)))


def play(
    engine: ReplayEngine, handoff: Handoff | None = None, max_tokens: int = 100, prompt: str = "hi"
) -> list[tuple[float, StreamItem]]:
    async def main() -> list[tuple[float, StreamItem]]:
        loop = asyncio.get_running_loop()
        await engine.start()
        asked = GenerationRequest("a", TextPrompt(prompt), Sampling(max_tokens=max_tokens), handoff=handoff)
        return [(loop.time(), item) async for item in engine.generate(asked)]

    return run_virtual(main())


def test_a_recording_is_played_with_its_own_timing(tmp_path: Path) -> None:
    played = play(recording(tmp_path, ROW))
    assert played[0] == (0.0, Receipt(prompt_tokens=None))
    assert [at for at, _ in played[1:]] == [pytest.approx(at) for at in (0.4, 0.5, 0.8, 0.9)]
    chunks = [item for _, item in played if isinstance(item, TokenChunk)]
    assert [chunk.text for chunk in chunks] == ROW["tokens"]
    assert [chunk.finish for chunk in chunks] == [None, None, None, FinishReason.STOP]


def test_a_handoff_goes_on_at_its_index(tmp_path: Path) -> None:
    engine = recording(tmp_path, ROW)
    first = [item for _, item in play(engine, max_tokens=2) if isinstance(item, TokenChunk)]
    assert first[-1].finish is FinishReason.LENGTH
    ids = array("i", [chunk.token_ids[0] for chunk in first]).tobytes()
    rest = play(engine, Handoff("Hello", 2, ids))
    assert [item.text for _, item in rest if isinstance(item, TokenChunk)] == [" wörld", "!"]
    assert [at for at, _ in rest[1:]] == [pytest.approx(0.4), pytest.approx(0.5)]


def test_a_handoff_past_the_end_just_stops(tmp_path: Path) -> None:
    played = play(recording(tmp_path, ROW), Handoff("something longer", 9))
    assert played[-1][1] == TokenChunk(9, "", count=0, finish=FinishReason.STOP)


def test_a_prompt_always_meets_the_same_recording(tmp_path: Path) -> None:
    rows = [{"ttft": 0.1 * number, "gaps": [], "tokens": [f"answer {number}"]} for number in range(1, 9)]
    engine = recording(tmp_path, *rows)
    answers = {prompt: play(engine, prompt=prompt)[1] for prompt in "abcdefghijkl"}
    assert answers == {prompt: play(engine, prompt=prompt)[1] for prompt in "abcdefghijkl"}
    assert len({item for _, item in answers.values()}) > 1


def test_the_vocabulary_is_that_of_the_file(tmp_path: Path) -> None:
    one, two = recording(tmp_path, ROW), recording(tmp_path, ROW)
    play(one)
    play(two)
    assert one.info.vocabulary == two.info.vocabulary
    other = recording(tmp_path, {"ttft": 1, "gaps": [], "tokens": ["other"]})
    play(other)
    assert other.info.vocabulary != one.info.vocabulary


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{not json", "line 2"),
        ("[1, 2]", "line 2"),
        ({"gaps": [], "tokens": ["a"]}, "ttft"),
        ({"ttft": -1, "gaps": [], "tokens": ["a"]}, "not a number of seconds"),
        ({"ttft": float("nan"), "gaps": [], "tokens": ["a"]}, "not a number of seconds"),
        ({"ttft": "1", "gaps": [], "tokens": ["a"]}, "not a number of seconds"),
        ({"ttft": 1, "gaps": [], "tokens": []}, "tokens"),
        ({"ttft": 1, "gaps": [], "tokens": ["a", 2]}, "tokens"),
        ({"ttft": 1, "gaps": [1, 2], "tokens": ["a", "b"]}, "2 tokens need 1 gaps"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: object, reason: str) -> None:
    with pytest.raises(EndpointUnavailable, match="line 2") as refusal:
        play(recording(tmp_path, ROW, row))
    assert reason in refusal.value.message


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EndpointUnavailable, match=r"nowhere\.jsonl"):
        play(ReplayEngine(ReplayEngineSettings(path=str(tmp_path / "nowhere.jsonl"))))
    with pytest.raises(EndpointUnavailable, match="holds no recording"):
        play(recording(tmp_path, ""))

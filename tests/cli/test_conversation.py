"""`disco chat` without a question: what is remembered, what commands do, and what Ctrl-C ends."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from serve_app.cli.asking import ChatOptions
from serve_app.cli.conversation import COMMANDS, HELP, Dialogue, converse
from serve_app.cli.exits import BAD_INPUT, INTERRUPTED, OK, UNREACHABLE
from tests.cli.scripted_server import FOREIGN, Answer, chunk, end, event, refuse, scripted_server, stream

REPORT: dict[str, Any] = {"policy": "disco-d", "reason": "w(l)", "legs": [], "ttft_s": 0.25, "cost_usd": 0.5}


def in_turn(*answers: Answer) -> Answer:
    left = list(answers)

    async def answer(request: Any) -> Any:
        return await left.pop(0)(request)

    return answer


def typed(*lines: str | type[BaseException]) -> Callable[[str], str]:
    """What the user types; the end of the input after it."""
    left: Iterator[str | type[BaseException]] = iter(lines)

    def read(_: str) -> str:
        line = next(left, EOFError)
        if isinstance(line, str):
            return line
        raise line

    return read


def talk(answer: Answer, *lines: str | type[BaseException], **server: Any) -> tuple[int, str, list[dict[str, Any]]]:
    out = io.StringIO()
    with scripted_server(answer, **server) as scripted:
        options = ChatOptions(None, url=scripted.url)
        code = converse(options, Console(file=out, width=100, color_system=None), typed(*lines))
    return code, out.getvalue(), scripted.bodies


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_what_was_said_goes_with_the_next_question() -> None:
    answers = in_turn(
        stream(chunk("Hi ", "phone"), chunk("you", "cloud"), end(REPORT)), stream(chunk("Bye"), end(None))
    )
    code, shown, (first, second) = talk(answers, "hello", "", "  and now?  ")
    assert code == OK
    assert first["messages"] == [user("hello")]
    assert second["messages"] == [user("hello"), assistant("Hi you"), user("and now?")]
    assert "Hi  ┃phone→cloud┃ you" in shown
    assert "■ phone   ■ cloud   TTFT 0.25 s" in shown


def test_every_answer_begins_with_its_own_endpoint() -> None:
    answers = in_turn(stream(chunk("a", "phone"), end(None)), stream(chunk("b", "cloud"), end(None)))
    assert "┃" not in talk(answers, "one", "two")[1]


def test_the_report_of_the_last_answer() -> None:
    _, shown, _ = talk(stream(chunk("a", "phone"), end(REPORT)), "/report", "why?", "/report")
    before, _, after = shown.partition("0.5 USD")
    assert "there is no report" in before
    assert "disco-d: w(l)" in after


def test_a_pin_holds_until_it_is_taken_off() -> None:
    answer = stream(chunk("a", "phone"), end(None))
    _, shown, bodies = talk(answer, "/pin device_only", "x", "/pin anything", "y", "/pin off", "z")
    assert [body["disco"].get("pin") for body in bodies] == ["device_only", "device_only", None]
    assert "/pin takes device_only, cloud_only or off" in shown


def test_another_server_knows_no_pin() -> None:
    _, shown, (body,) = talk(stream(chunk("a"), end(None)), "/pin device_only", "x", models=FOREIGN)
    assert "disco" not in body
    assert "knows no pin" in shown


def test_forgetting() -> None:
    _, _, bodies = talk(stream(chunk("a", "phone"), end(None)), "x", "/new", "y")
    assert bodies[1]["messages"] == [user("y")]


def test_help_names_every_command_and_others_are_no_questions() -> None:
    _, shown, bodies = talk(stream(end(None)), "/help", "/frobnicate")
    assert all(command in HELP for command in COMMANDS)
    assert all(command in shown for command in COMMANDS)
    assert "there is no /frobnicate" in shown
    assert bodies == []


@pytest.mark.parametrize(("last", "code"), [("/quit", OK), (EOFError, OK), (KeyboardInterrupt, INTERRUPTED)])
def test_leaving(last: Any, code: int) -> None:
    found, _, bodies = talk(stream(end(None)), last, "never asked")
    assert (found, bodies) == (code, [])


def test_an_error_ends_the_answer_and_not_the_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    full = {"error": {"message": "too long", "code": "context_length_exceeded"}}
    half = stream(chunk("half", "phone"), event({"error": {"message": "it died"}}))
    code, shown, bodies = talk(in_turn(refuse(400, full), half, stream(chunk("whole"), end(None))), "a", "b", "c")
    assert code == OK
    assert "/new starts over" in shown
    assert capsys.readouterr().err == "HTTP 400: too long\nthe answer could not be completed: it died\n"
    assert bodies[2]["messages"] == [user("b"), assistant("half"), user("c")]


@pytest.mark.usefixtures("listens_to_ctrl_c")
def test_ctrl_c_cancels_the_stream_only() -> None:
    class Reader(io.StringIO):
        def write(self, text: str) -> int:
            if "half" in text:
                os.kill(os.getpid(), signal.SIGINT)
            return super().write(text)

    held, out = stream(chunk("half", "phone"), hold=True), Reader()
    with scripted_server(in_turn(held, stream(chunk("whole", "phone"), end(None)))) as scripted:
        options = ChatOptions(None, url=scripted.url)
        code = converse(options, Console(file=out, width=100, color_system=None), typed("a", "b"))
        assert scripted.left.wait(10)
    assert code == OK
    assert "cancelled" in out.getvalue()
    assert scripted.bodies[1]["messages"] == [user("a"), assistant("half"), user("b")]


def test_nobody_listens_and_bad_arguments_are_said_before_anything_is_typed() -> None:
    console = Console(file=io.StringIO())
    options = ChatOptions(None, url="http://127.0.0.1:9")
    assert converse(options, console, typed()) == UNREACHABLE
    assert converse(replace(options, url="x"), console, typed()) == BAD_INPUT


def test_a_question_without_an_answer_was_not_asked() -> None:
    dialogue = Dialogue()
    dialogue.answered("a", "", None)
    assert dialogue.ask("b") == [user("b")]


def test_on_a_real_terminal() -> None:
    """Lines are edited, commands completed, Ctrl-C at the prompt leaves."""
    with scripted_server(stream(chunk("good", "phone"), end(None))) as scripted:
        leader, follower = pty.openpty()
        command = [sys.executable, "-c", "from serve_app.cli.main import app; app()", "chat", "--url", scripted.url]
        environment = os.environ | {"TERM": "xterm", "INPUTRC": os.devnull}
        process = subprocess.Popen(
            command, stdin=follower, stdout=follower, stderr=follower, env=environment, start_new_session=True,
            preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(follower)
        try:
            screen = Screen(leader)
            screen.until("> ")
            os.write(leader, b"wgy\x1b[D\x7fh\r")
            screen.until("good")
            screen.until("> ")
            os.write(leader, b"/rep\t\r")
            screen.until("there is no report")
            screen.until("> ")
            # One that comes between readline's prompt and its waiting for keys is heard with the next key only.
            for _ in range(5):
                os.write(leader, b"\x03")
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                    break
            assert process.returncode == INTERRUPTED
        finally:
            process.kill()
            process.wait()
            os.close(leader)
    assert [body["messages"] for body in scripted.bodies] == [[user("why")]]


def _take_terminal() -> None:
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.default_int_handler)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Screen:
    """What a program wrote to its terminal; ``until`` goes on behind what it found before."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._unread = ""

    def until(self, words: str) -> None:
        deadline = time.monotonic() + 30
        while words not in self._unread:
            ready, _, _ = select.select([self._terminal], [], [], deadline - time.monotonic())
            assert ready, self._unread
            self._unread += os.read(self._terminal, 65536).decode("utf-8", "replace")
        self._unread = self._unread.partition(words)[2]

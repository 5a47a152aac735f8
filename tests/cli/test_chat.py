"""`disco chat` against a scripted server: what is shown, what is asked, how it ends."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from serve_app.cli.asking import ChatOptions
from serve_app.cli.chat import chat
from serve_app.cli.complaints import named_server
from serve_app.cli.defaults import TEMPERATURE
from serve_app.cli.exits import BAD_INPUT, FAILED, INTERRUPTED, OK, UNREACHABLE
from serve_app.cli.live_text import PALETTE
from serve_app.cli.main import app
from serve_app.client import resume
from tests.cli.scripted_server import FOREIGN, Answer, chunk, end, event, refuse, scripted_server, stream

REPORT: dict[str, Any] = {"policy": "disco-d", "reason": "the phone may be used", "legs": [], "ttft_s": 0.25}
PLAIN = ChatOptions("why?")


def page(width: int = 100) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, color_system=None), out


def ask(answer: Any, options: ChatOptions = PLAIN, **server: Any) -> tuple[int, str, list[dict[str, Any]]]:
    console, out = page()
    with scripted_server(answer, **server) as scripted:
        code = chat(replace(options, url=scripted.url), console)
    return code, out.getvalue(), scripted.bodies


# --- a good answer ----------------------------------------------------------------------------------------------


def test_text_seam_legend_and_report_in_order() -> None:
    code, shown, _ = ask(
        stream(chunk("Hello", "phone"), chunk(" there", "phone"), chunk(", you.", "cloud"), end(REPORT))
    )
    assert code == OK
    first, legend, *rest = shown.splitlines()
    assert first == "Hello there ┃phone→cloud┃ , you."
    assert legend == "■ phone   ■ cloud"
    assert "disco-d: the phone may be used" in rest[0]
    assert any(line.split() == ["TTFT", "0.25", "s"] for line in rest)


def test_a_stream_may_come_back_and_keeps_its_colours() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system="truecolor")
    pieces = (chunk("a", "phone"), chunk("b", "cloud"), chunk("c", "phone"))
    with scripted_server(stream(*pieces, end(None))) as scripted:
        assert chat(ChatOptions("x", url=scripted.url), console) == OK
    phone, cloud = (f"\x1b[38;2;{';'.join(str(int(c[i : i + 2], 16)) for i in (1, 3, 5))}m" for c in PALETTE[:2])
    shown = out.getvalue()
    assert f"{phone}a\x1b[0m" in shown
    assert f"{cloud}b\x1b[0m" in shown
    assert f"{phone}c\x1b[0m" in shown
    assert shown.count("phone→cloud") == shown.count("cloud→phone") == 1


def test_text_is_printed_as_it_comes() -> None:
    """The seam of frames runs through characters; blank lines, trailing blanks and long lines stay as they are."""
    whole = chunk("  grün 🦜 \n\n", "phone") + chunk("x" * 300 + "  ", "phone") + chunk("\tend\n", "phone") + end(None)
    code, shown, _ = ask(stream(*(whole[i : i + 1] for i in range(len(whole)))))
    assert code == OK
    assert shown.startswith("  grün 🦜 \n\n" + "x" * 300 + "  ")
    assert shown.splitlines()[2].endswith("end")
    assert shown.splitlines()[3] == "■ phone"


def test_no_report_when_none_is_wanted_or_given() -> None:
    for report, options in ((REPORT, replace(PLAIN, report=False)), (None, PLAIN)):
        code, shown, _ = ask(stream(chunk("hi", "phone"), end(report)), options)
        assert (code, shown) == (OK, "hi\n■ phone\n")


def test_a_server_that_names_no_endpoint() -> None:
    assert ask(stream(chunk("hi"), chunk(" you"), end(None)))[:2] == (OK, "hi you\n")


def test_events_of_other_shapes_are_no_text() -> None:
    odd = [{"choices": []}, {"choices": [{"delta": None}]}, {"choices": [{"delta": {"content": 7}}], "disco": [1]}, {}]
    assert ask(stream(*map(event, odd), chunk("hi"), end(None)))[:2] == (OK, "hi\n")


# --- what a terminal must not be told ---------------------------------------------------------------------------


def test_text_is_neither_markup_nor_an_escape_nor_an_emoji_code() -> None:
    hostile = "\x1b]0;title\x07[red]a[/red] :smile: \x1b[2J\x9b31m\x08\r\x7f[/] \ud83d"
    code, shown, _ = ask(
        stream(chunk(hostile, "ph\x1b[1mone"), chunk("b", "[b]"), end(REPORT | {"reason": "\x1b[5m[b]x"}))
    )
    assert code == OK
    lines = shown.splitlines()
    assert lines[0] == "]0;title[red]a[/red] :smile: [2J31m[/] \N{REPLACEMENT CHARACTER} ┃ph[1mone→[b]┃ b"
    assert lines[1] == "■ ph[1mone   ■ [b]"
    assert "[5m[b]x" in lines[2]
    assert not set(shown) & {chr(c) for c in (*range(10), *range(11, 32), *range(127, 160))}


def test_an_error_message_is_no_escape_either(capsys: pytest.CaptureFixture[str]) -> None:
    ask(refuse(400, {"error": {"message": "\x1b[2J[red]no[/red]", "param": None}}))
    assert capsys.readouterr().err == "HTTP 400: [2J[red]no[/red]\n"


# --- what is asked ----------------------------------------------------------------------------------------------


def test_the_least_that_is_asked() -> None:
    _, _, (body,) = ask(stream(end(None)))
    assert body == {
        "model": "disco",
        "messages": [{"role": "user", "content": "why?"}],
        "temperature": TEMPERATURE,
        "max_tokens": 256,
        "stream": True,
        "disco": {"report": True},
    }


def test_every_wish_is_passed_on() -> None:
    wishes = replace(PLAIN, model="other", max_tokens=7, pin="device_only", rate=3.5, delivery="paced")
    _, _, (body,) = ask(stream(end(None)), wishes)
    assert (body["model"], body["max_tokens"]) == ("other", 7)
    assert body["disco"] == {"report": True, "pin": "device_only", "consumption_rate": 3.5, "delivery": "paced"}


# --- any other server -------------------------------------------------------------------------------------------


def test_another_server_is_asked_in_openais_words_only() -> None:
    _, _, (body,) = ask(stream(end(None)), models=FOREIGN)
    question = {"role": "user", "content": "why?"}
    assert body == {"model": "gpt", "messages": [question], "max_tokens": 256, "stream": True}
    _, _, (body,) = ask(stream(end(None)), replace(PLAIN, temperature=1.5), models=FOREIGN)
    assert body["temperature"] == 1.5


@pytest.mark.parametrize("wish", [{"pin": "device_only"}, {"rate": 3.0}, {"delivery": "paced"}])
def test_another_server_cannot_be_asked_for_what_it_does_not_know(
    wish: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, bodies = ask(stream(end(None)), replace(PLAIN, **wish), models=FOREIGN)
    assert (code, bodies) == (BAD_INPUT, [])
    assert "is no DiSCo-Serve" in capsys.readouterr().err


def test_a_named_model_needs_no_list() -> None:
    code, shown, (body,) = ask(stream(chunk("hi"), end(None)), replace(PLAIN, model="x"), models="what")
    assert (code, shown, body["model"]) == (OK, "hi\n", "x")


def test_the_newer_name_of_the_limit_is_used_where_the_older_one_is_refused() -> None:
    no = refuse(400, {"error": {"message": "Use 'max_completion_tokens' instead.", "param": "max_tokens"}})
    code, _, (first, second) = ask(in_turn(no, stream(end(None))), models=FOREIGN)
    assert code == OK
    assert "max_completion_tokens" not in first
    assert (second["max_completion_tokens"], "max_tokens" in second) == (256, False)
    assert ask(no, models=FOREIGN)[0] == BAD_INPUT


@pytest.mark.usefixtures("impatient")
def test_another_server_is_not_asked_to_go_on() -> None:
    code, shown, bodies = ask(breaks(chunk("half")), models=FOREIGN)
    assert (code, shown, len(bodies)) == (FAILED, "half\n", 1)


@pytest.mark.parametrize("suffix", ["/", "/v1", "/v1/"])
def test_the_url_of_the_api_is_taken_too(suffix: str) -> None:
    console, out = page()
    with scripted_server(stream(chunk("hi"), end(None))) as scripted:
        assert chat(replace(PLAIN, url=scripted.url + suffix), console) == OK
    assert out.getvalue() == "hi\n"


def test_no_proxy_is_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert ask(stream(chunk("hi"), end(None)))[0] == OK


# --- JSON -------------------------------------------------------------------------------------------------------


def test_json_is_the_only_thing_on_stdout_and_exact() -> None:
    text = "a\x1b[2J\ud83d [red]\n\t" + "x" * 200
    code, shown, _ = ask(stream(chunk(text, "phone"), chunk("b", "cloud"), end(REPORT)), replace(PLAIN, as_json=True))
    assert code == OK
    assert json.loads(shown) == {"text": text + "b", "report": REPORT}
    assert "\x1b" not in shown


def test_json_fails_without_a_word_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    broken = stream(chunk("half", "phone"), event({"error": {"message": "gone"}}))
    assert ask(broken, replace(PLAIN, as_json=True))[:2] == (FAILED, "")
    assert "gone" in capsys.readouterr().err


# --- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "code", "words"),
    [
        (400, {"error": {"message": "too many", "param": "max_tokens"}}, BAD_INPUT, "HTTP 400: too many (max_tokens)"),
        (400, {"error": {"message": "stop: too long", "param": "stop"}}, BAD_INPUT, "HTTP 400: stop: too long"),
        (404, {"error": {"message": "no model of that name"}}, BAD_INPUT, "HTTP 404: no model of that name"),
        (429, {"error": {"message": "full", "param": None}}, BAD_INPUT, "HTTP 429: full"),
        (404, "<html>nothing</html>", BAD_INPUT, "HTTP 404: this is no answer of the API"),
        (400, {"error": "a string"}, BAD_INPUT, "HTTP 400: this is no answer of the API"),
        (502, {"error": {"message": "it died", "param": None}}, FAILED, "HTTP 502: it died"),
        (503, "", FAILED, "HTTP 503: this is no answer of the API"),
        (307, "", FAILED, "HTTP 307: this is no answer of the API"),
    ],
)
def test_http_errors(status: int, body: Any, code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(refuse(status, body))[:2] == (code, "")
    assert capsys.readouterr().err == words + "\n"


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([event({"error": {"message": "the phone died", "param": None}})], "could not be completed: the phone died"),
        ([b"data: {\n\n"], "no JSON object"),
        ([event([1])], "no JSON object"),
    ],
)
def test_errors_after_text(pieces: list[bytes], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = ask(stream(chunk("half", "phone"), *pieces))
    assert (code, shown) == (FAILED, "half\n")
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        console, out = page()
        assert chat(replace(PLAIN, url=url), console) == UNREACHABLE
    (line,) = capsys.readouterr().err.splitlines()
    assert url in line
    assert "Connect call failed" in line
    assert "`disco up`" in line
    assert out.getvalue() == ""


@pytest.mark.parametrize("url", ["http://a:b@127.0.0.1:8000", "http://127.0.0.1:8000?a=b", "http://127.0.0.1:8000/#x"])
def test_what_no_api_has_in_its_url(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat(replace(PLAIN, url=url), page()[0]) == BAD_INPUT
    assert url not in capsys.readouterr().err


@pytest.mark.parametrize("models", [{"data": []}, {}, [], {"data": [{}]}, "x"])
def test_a_server_without_models(models: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(stream(end(None)), models=models)[0] == FAILED
    assert "--model" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "", "ftp://127.0.0.1", "http://", "http://127.0.0.1:x", "http://[::1"]
)
def test_what_is_no_url(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat(replace(PLAIN, url=url), page()[0]) == BAD_INPUT
    assert capsys.readouterr().err == "--url: must be like http://127.0.0.1:8000\n"


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_a_question_of_nothing_is_none(prompt: str) -> None:
    result = CliRunner().invoke(app, ["chat", prompt, "--url", "http://127.0.0.1:9"])
    assert (result.exit_code, result.stderr) == (BAD_INPUT, "PROMPT: is empty; give a question, or none to converse\n")


@pytest.mark.usefixtures("listens_to_ctrl_c")
def test_ctrl_c_closes_the_stream() -> None:
    console, _ = page()
    answer = stream(chunk("half", "phone"), hold=True, then=lambda: os.kill(os.getpid(), signal.SIGINT))
    with scripted_server(answer) as scripted:
        assert chat(replace(PLAIN, url=scripted.url), console) == INTERRUPTED
        assert scripted.left.wait(10)


# --- connections that break -------------------------------------------------------------------------------------


def counted(text: str, shown: int) -> bytes:
    """A chunk that says how many tokens are shown with it."""
    return f"id: {shown}\n".encode() + chunk(text, "phone")


def breaks(*pieces: bytes) -> Answer:
    async def answer(request: Any) -> Any:
        await stream(*pieces)(request)
        request.transport.abort()

    return answer


def in_turn(*answers: Answer) -> Answer:
    """Each for one request; the last for all that follow."""
    left = list(answers)

    async def answer(request: Any) -> Any:
        return await (left.pop(0) if len(left) > 1 else left[0])(request)

    return answer


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "PAUSES", (0.0, 0.0))


@pytest.mark.usefixtures("impatient")
def test_a_broken_answer_is_taken_up_where_it_stopped() -> None:
    answers = in_turn(breaks(counted("one two", 3)), breaks(counted(" three", 2)), stream(chunk("!"), end(REPORT)))
    code, shown, (first, second, third) = ask(answers, replace(PLAIN, as_json=True, max_tokens=50))
    assert code == OK
    assert json.loads(shown) == {"text": "one two three!", "report": REPORT, "resumed": 2}
    question = {"role": "user", "content": "why?"}
    assert (first["messages"], first["max_tokens"]) == ([question], 50)
    for body, text, left in ((second, "one two", 47), (third, "one two three", 45)):
        assert body == first | {
            "messages": [question, {"role": "assistant", "content": text}],
            "max_tokens": left,
            "continue_final_message": True,
        }


@pytest.mark.usefixtures("impatient")
def test_the_reader_is_told_that_an_answer_was_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = ask(in_turn(stream(counted("half", 1)), stream(counted(" whole", 1), end(None))))
    assert (code, shown) == (OK, "half whole\n■ phone\n")
    assert "the connection broke once" in capsys.readouterr().err


@pytest.mark.usefixtures("impatient")
def test_where_nothing_was_shown_the_question_is_asked_again() -> None:
    code, _, bodies = ask(in_turn(breaks(), refuse(503, ""), stream(chunk("hi"), end(None))))
    assert code == OK
    assert bodies[0] == bodies[1] == bodies[2]


@pytest.mark.usefixtures("impatient")
def test_nothing_is_asked_for_when_only_the_end_is_missing() -> None:
    code, shown, bodies = ask(breaks(counted("all of it", 7)), replace(PLAIN, max_tokens=7))
    assert (code, shown, len(bodies)) == (OK, "all of it\n■ phone\n", 1)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", [breaks, stream])
def test_a_connection_that_breaks_every_time(how: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, bodies = ask(in_turn(how(chunk("half", "phone")), how()))
    assert (code, shown, len(bodies)) == (FAILED, "half\n", 3)
    (line,) = capsys.readouterr().err.splitlines()
    assert line in {
        "the connection broke before the answer was complete",
        "the connection ended before the answer was complete",
    }


# --- keys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "sent"), [(None, None), ("sk-disco-x", "Bearer sk-disco-x")])
def test_the_key_goes_with_every_request(key: str | None, sent: str | None) -> None:
    console, _ = page()
    with scripted_server(stream(chunk("Hi", "phone"), end(REPORT))) as scripted:
        assert chat(replace(PLAIN, url=scripted.url, key=key), console) == OK
    assert scripted.keys == [sent, sent]


def test_the_key_of_another_variable(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = replace(PLAIN, key_env="THE_KEY")
    monkeypatch.delenv("THE_KEY", raising=False)
    assert ask(stream(end(None)), options)[0] == BAD_INPUT
    assert "--key-env: the environment variable THE_KEY is not set" in capsys.readouterr().err
    monkeypatch.setenv("THE_KEY", "sk-other")
    with scripted_server(stream(end(None))) as scripted:
        assert chat(replace(options, url=scripted.url), page()[0]) == OK
    assert scripted.keys == ["Bearer sk-other"] * 2


def test_who_needs_a_key_is_told_where_to_put_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(refuse(401, {"error": {"message": "no key"}}))[0] == BAD_INPUT
    assert "--key-env" in capsys.readouterr().err


def test_a_key_that_travels_in_clear_is_not_sent_unnoticed(capsys: pytest.CaptureFixture[str]) -> None:
    named_server("http://box.lan:8000", "sk-x", None, "--url")
    assert "the key travels to box.lan in clear" in capsys.readouterr().err
    for url, key in (("https://box.lan", "sk-x"), ("http://127.0.0.1:8000", "sk-x"), ("http://box.lan", None)):
        named_server(url, key, None, "--url")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("key", ["a\nb", "schlüssel"])
def test_what_can_be_no_key_is_not_sent_and_not_shown(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = replace(PLAIN, key=key)
    assert ask(stream(end(REPORT)), options)[0] == BAD_INPUT
    assert "--key" in capsys.readouterr().err
    assert key not in repr(options)

"""`disco chat` without a question: a conversation, whose history goes with every question."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from serve_app.cli.asking import Asker, ChatOptions
from serve_app.cli.chat import tell_resumed
from serve_app.cli.complaints import BadArgument, complain
from serve_app.cli.exits import INTERRUPTED, OK
from serve_app.cli.live_text import LiveText
from serve_app.cli.report_view import render, summary
from serve_app.client.errors import CallFailed
from serve_app.client.resume import Shown
from serve_app.core.model import Pin

HELP: Final = """\
/report            what happened to the last answer
/pin device_only   keep the next answers on one kind of endpoint; or cloud_only, or off
/new               forget the conversation
/help              this
/quit              leave; so does Ctrl-D, and Ctrl-C at the prompt
Anything else is a question. Ctrl-C cancels the answer that is being written; a second one leaves."""

COMMANDS: Final = ("/report", "/pin", "/new", "/help", "/quit")

#: Asks for a line: EOFError at the end of the input, KeyboardInterrupt for Ctrl-C.
ReadLine = Callable[[str], str]


@dataclass
class Dialogue:
    """What was said. A question whose answer never began is as if it had not been asked."""

    messages: list[dict[str, str]] = field(default_factory=list)
    report: Mapping[str, Any] | None = None

    def ask(self, question: str) -> list[dict[str, str]]:
        return [*self.messages, {"role": "user", "content": question}]

    def answered(self, question: str, answer: str, report: Mapping[str, Any] | None) -> None:
        """Also where the answer was broken off: the next question may be about what was seen."""
        self.report = report
        if answer:
            self.messages = [*self.ask(question), {"role": "assistant", "content": answer}]

    def forget(self) -> None:
        self.messages, self.report = [], None


def converse(options: ChatOptions, console: Console, read_line: ReadLine | None = None) -> int:
    """Until the user leaves; the exit code. ``read_line``: None edits lines as the terminal's user is used to."""
    with asyncio.Runner() as runner:
        try:
            asker = runner.run(Asker.connect(options))
        except (CallFailed, BadArgument) as failure:
            return complain(failure)
        except KeyboardInterrupt:
            return INTERRUPTED
        try:
            return _Conversation(runner, asker, options, console).run(read_line or _editor())
        finally:
            runner.run(asker.close())


class _Conversation:
    def __init__(self, runner: asyncio.Runner, asker: Asker, options: ChatOptions, console: Console) -> None:
        self._runner = runner
        self._asker = asker
        self._options = options
        self._console = console
        self._live = LiveText(console)
        self._dialogue = Dialogue()
        self._over: int | None = None

    def run(self, read_line: ReadLine) -> int:
        self._say(f"{self._asker.model} at {self._options.url}; /help says what else can be typed")
        while self._over is None:
            try:
                line = read_line("> ").strip()
            except EOFError:
                self._console.print()
                return OK
            except KeyboardInterrupt:
                self._console.print()
                return INTERRUPTED
            if line.startswith("/"):
                self._obey(*line.partition(" ")[::2])
            elif line:
                self._ask(line)
        return self._over

    def _obey(self, command: str, argument: str) -> None:
        match command:
            case "/report" if self._dialogue.report is None:
                self._say("there is no report: nothing was answered yet, or the server gives none")
            case "/report":
                self._console.print(render(self._dialogue.report or {}))
            case "/pin":
                self._pin(argument.strip())
            case "/new":
                self._dialogue.forget()
                self._say("the conversation is forgotten")
            case "/help":
                self._say(HELP)
            case "/quit":
                self._over = OK
            case _:
                self._say(f"there is no {command}; /help lists what there is")

    def _pin(self, kind: str) -> None:
        if not self._asker.ours:
            self._say("this server is no DiSCo-Serve and knows no pin")
        elif kind == "off":
            self._asker.wishes.pop("pin", None)
            self._say("the next answers may come from anywhere")
        elif kind in list(Pin):
            self._asker.wishes["pin"] = kind
            self._say(f"the next answers are pinned: {kind}")
        else:
            self._say(f"/pin takes {', '.join(Pin)} or off")

    def _ask(self, question: str) -> None:
        shown, ended, report = Shown(), False, None

        async def ask() -> Mapping[str, Any] | None:
            nonlocal ended
            try:
                return await self._asker.ask(self._dialogue.ask(question), shown, self._live.write)
            finally:
                ended = True

        self._live.begin()
        try:
            report = self._runner.run(ask())
        except KeyboardInterrupt:
            self._live.end_line()
            if not ended:
                # The second one came while the stream was being closed.
                self._over = INTERRUPTED
            self._say("cancelled")
        except CallFailed as failure:
            self._live.end_line()
            complain(failure)
            if failure.code == "context_length_exceeded":
                self._say("/new starts over with an empty history")
        else:
            self._live.end_line()
            tell_resumed(shown)
        self._dialogue.answered(question, shown.text, report)
        if report is not None:
            self._console.print(Text("   ").join(filter(None, (self._live.legend(), summary(report)))))

    def _say(self, text: str) -> None:
        self._console.print(Text(text, "dim"), soft_wrap=True)


def _editor() -> ReadLine:
    """`input`, with history, editing and completion of commands where the platform has readline."""
    with suppress(ImportError):
        import readline

        def complete(text: str, state: int) -> str | None:
            fitting = [command for command in COMMANDS if command.startswith(text)]
            return fitting[state] if state < len(fitting) else None

        readline.set_completer(complete)
        readline.set_completer_delims(" ")
        # What editline, macOS's stand-in for readline, calls the same key.
        editline = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if editline else "tab: complete")
    return input

"""`disco chat` with a question: its answer live, and what became of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from serve_app.cli.asking import Asker, ChatOptions, Write
from serve_app.cli.complaints import BadArgument, complain, warn
from serve_app.cli.exits import INTERRUPTED, OK
from serve_app.cli.live_text import LiveText
from serve_app.cli.report_view import render
from serve_app.client.errors import CallFailed
from serve_app.client.resume import Shown


def chat(options: ChatOptions, console: Console) -> int:
    """Print the answer to ``console`` and complaints to stderr; the exit code."""
    live, shown = LiveText(console), Shown()

    def write(text: str, endpoint: str) -> None:
        if not options.as_json:
            live.write(text, endpoint)

    try:
        report = asyncio.run(_ask(options, shown, write))
    except KeyboardInterrupt:
        live.end_line()
        return INTERRUPTED
    except (CallFailed, BadArgument) as failure:
        live.end_line()
        return complain(failure)
    if options.as_json:
        resumed = {"resumed": shown.resumed} if shown.resumed else {}
        # Escapes for everything but ASCII: exact, and no terminal obeys it.
        console.out(json.dumps({"text": shown.text, "report": report} | resumed), highlight=False)
        return OK
    live.end_line()
    if legend := live.legend():
        console.print(legend)
    tell_resumed(shown)
    if options.report and report is not None:
        console.print(render(report))
    return OK


async def _ask(options: ChatOptions, shown: Shown, write: Write) -> Mapping[str, Any] | None:
    asker = await Asker.connect(options)
    try:
        return await asker.ask([{"role": "user", "content": options.prompt or ""}], shown, write)
    finally:
        await asker.close()


def tell_resumed(shown: Shown) -> None:
    if shown.resumed:
        times = "once" if shown.resumed == 1 else f"{shown.resumed} times"
        warn(
            f"the connection broke {times}; the answer went on from what was shown, and the report is of its last part"
        )

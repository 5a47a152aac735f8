"""The service's own process: fetch the models, start, wait until it answers, say how to use it, stop without a trace.

    python -m serve_app.cli.up CONFIG [PORT]

It stops when its standard input ends; see ``supervisor``.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from rich.console import Console
from rich.markup import escape

from actors.engines.models import FetchError, fetch
from serve_app.cli import ready
from serve_app.cli.check import complain, doubts
from serve_app.cli.configfile import BadConfiguration, Configuration, load
from serve_app.cli.defaults import TEMPERATURE
from serve_app.cli.engines import missing_models, missing_packages
from serve_app.cli.exits import BAD_INPUT, FAILED, OK, UNFIT
from serve_app.cli.launch import LaunchFailed, application_name, deployment_failure, prepare, running
from serve_app.cli.preflight import check_port
from serve_app.cli.signals import Stopped, stop_by_signal, stop_with_parent

#: Seconds between two looks at the service while it starts, and between two lines where there is no terminal.
POLL = 0.25
QUIET = 10.0

#: Seconds. The service is ready with its first warm endpoint; the others get this much longer before it is announced.
GRACE = 10.0

#: The command that belongs to the environment in which this runs.
PROGRAM = Path(sys.executable).with_name("disco")

#: Seconds. Loading a large model from a slow disk takes minutes.
START_LIMIT = 600.0


def up(configuration: Configuration, console: Console, *, supervised: bool = False) -> int:
    """Run until a signal. The exit code is OK when that ended it and the service was up or still starting.

    ``supervised``: the end of standard input is as good as a signal.
    """
    port = check_port(configuration.host, configuration.port)
    if not port.ok:
        message = f"[red]{escape(port.name)}[/]: {escape(port.detail)}\n  remedy: {escape(port.remedy)}"
        console.print(message, highlight=False, soft_wrap=True)
        return UNFIT
    if missing := missing_packages(configuration.app):
        for package in missing:
            console.print(
                f"[red]the {package.engine} engine needs {package.name}[/]\n  remedy: {escape(package.remedy)}",
                highlight=False,
                soft_wrap=True,
            )
        return UNFIT
    for doubt in doubts(configuration):
        console.print(f"[yellow]warning:[/] {escape(doubt)}", highlight=False, soft_wrap=True)
    try:
        with stop_by_signal():
            if supervised:
                stop_with_parent()
            if not _fetch_models(configuration, console):
                return FAILED
            _serve(configuration, console)
    except Stopped:
        console.print("stopped")
        return OK
    except LaunchFailed as error:
        console.print(f"[red]the service did not start[/]\n{escape(error.message)}", highlight=False, soft_wrap=True)
        if error.logs is not None:
            console.print(f"Ray's logs were kept: {error.logs}; remove that directory when you have seen them")
        return FAILED
    return FAILED


def _fetch_models(configuration: Configuration, console: Console) -> bool:
    for model in missing_models(configuration.app):
        try:
            fetch(model.name, lambda line: console.print(f"  {escape(line)}", highlight=False))
        except FetchError as error:
            console.print(f"[red]the model could not be fetched[/]\n  {escape(str(error))}")
            return False
    return True


def _serve(configuration: Configuration, console: Console) -> None:
    """Does not return, but is ended by ``Stopped`` or ``LaunchFailed``."""
    began = time.monotonic()
    url = ready.base_url(configuration.host, configuration.port)
    application = application_name(configuration)
    with console.status("starting Ray Serve") as status:
        try:
            with running(configuration):
                show = status.update if console.is_terminal else _lines(console)
                state = wait_until_ready(lambda: ready.ask(url), lambda: deployment_failure(application), show)
                status.stop()
                announce(configuration, url, state, time.monotonic() - began, console)
                try:
                    threading.Event().wait()
                finally:
                    console.print("\nstopping")
        finally:
            status.stop()


def _lines(console: Console) -> Callable[[str], None]:
    """Without a terminal: a line when the state changes, and now and then."""
    last = ("", -QUIET)

    def show(text: str) -> None:
        nonlocal last
        state = text.rpartition(" (")[0]
        now = time.monotonic()
        if state != last[0] or now - last[1] >= QUIET:
            last = (state, now)
            console.print(f"  {text}", highlight=False)

    return show


def wait_until_ready(
    ask: Callable[[], ready.Readiness | None],
    failure: Callable[[], str | None],
    show: Callable[[str], None],
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> ready.Readiness:
    """Until every endpoint is warm, or one is and the others' grace is over. Raises ``LaunchFailed``."""
    began = now()
    usable: float | None = None
    while True:
        state = ask()
        elapsed = now() - began
        if state is not None and state.ready:
            usable = now() if usable is None else usable
            if not state.waiting or now() - usable >= GRACE:
                return state
        reason = failure()
        if reason is not None:
            raise LaunchFailed(reason)
        missing = "the application" if state is None else _waiting(state)
        if elapsed >= START_LIMIT:
            raise LaunchFailed(f"not ready after {elapsed:.0f} s; missing: {missing}")
        show(f"waiting for {escape(missing)} ({elapsed:.0f} s)")
        sleep(POLL)


def _waiting(state: ready.Readiness) -> str:
    return ", ".join(f"{name} ({reason})" if reason else name for name, reason in state.waiting.items())


def announce(configuration: Configuration, url: str, state: ready.Readiness, elapsed: float, console: Console) -> None:
    model = next(iter(configuration.app.models))
    console.print(f"[green]ready[/] after {elapsed:.0f} s at [bold]{url}[/]  (Ctrl-C stops it)", highlight=False)
    for name, reason in state.waiting.items():
        console.print(f"  [yellow]not ready yet:[/] {escape(name)}: {escape(reason)}", highlight=False)
    access = configuration.app.access
    if access.page:
        console.print(f"The page is at [bold]{url}/[/]. Or try it from another terminal:", highlight=False)
    else:
        console.print("Try it, from another terminal:", highlight=False)
    console.out(curl(url, model, keyed=access.keyed), highlight=False)
    console.out(f'or: {disco()} chat --url {url} "Why is the sky blue?"', highlight=False)


def disco(program: Path = PROGRAM) -> str:
    """How to call `disco` from any directory. Its plain name does only where the PATH has this very one."""
    found = shutil.which("disco")
    if not program.exists() or (found is not None and program.samefile(found)):
        return "disco"
    return shlex.quote(str(program))


def curl(url: str, model: str, *, keyed: bool = False) -> str:
    """A command that streams, ready to be pasted. ``keyed``: the key is in DISCO_API_KEY, where `disco chat` looks."""
    question = {"role": "user", "content": "Why is the sky blue?"}
    body = {
        "model": model,
        "stream": True,
        "max_tokens": 64,
        "temperature": TEMPERATURE,
        "disco": {"report": True},
        "messages": [question],
    }
    data = shlex.quote(json.dumps(body))
    key = ' -H "Authorization: Bearer $DISCO_API_KEY"' if keyed else ""
    return f"curl -N {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d {data}"


def main(arguments: Sequence[str]) -> int:
    code = _main(arguments)
    _end_the_rest_of_the_group()
    return code


def _end_the_rest_of_the_group() -> None:
    """What a start that was broken off may have left. The supervisor would see to it, if it is still there."""
    own = os.getpid()
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if process.pid != own and os.getpgid(process.pid) == own:
                process.kill()


def _main(arguments: Sequence[str]) -> int:
    # Ray reads its switches when it is imported, which reading a configuration already does.
    try:
        prepare()
    except LaunchFailed as error:
        Console(stderr=True).print(error.message, style="red", markup=False, highlight=False, soft_wrap=True)
        return UNFIT
    name, *port = arguments
    try:
        configuration = load(name, int(port[0]) if port else None)
    except BadConfiguration as error:
        complain(error)
        return BAD_INPUT
    return up(configuration, Console(), supervised=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

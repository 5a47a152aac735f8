"""`disco`: the commands, and nothing but their arguments."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from json import dumps
from pathlib import Path
from typing import Annotated, Final, Optional

import typer
from rich.markup import escape

from serve_app.cli.bench_command import bench
from serve_app.cli.chat_command import chat
from serve_app.cli.config_command import config
from serve_app.cli.convert import convert
from serve_app.cli.device_command import device
from serve_app.cli.exits import BAD_INPUT, FAILED
from serve_app.cli.keys import keys
from serve_app.cli.options import finite
from serve_app.cli.profile import profile
from serve_app.cli.screen import screen
from serve_app.cli.supervisor import supervise
from serve_app.cli.top_command import top

RUN: Final = "Run a service"
USE: Final = "Use a service, this one or any with OpenAI's API"
FORESEE: Final = "Know beforehand what it would do"

app = typer.Typer(
    name="disco",
    help="One LLM text stream from a cloud and a device endpoint: raced, budgeted and migrated mid-stream.",
    epilog="Exit codes: 0 success, 1 it failed, 2 bad arguments or input, 3 this machine is not fit, "
    "4 the service cannot be reached, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
models = typer.Typer(help="Models that disco knows.", no_args_is_help=True)
app.add_typer(config, name="config", rich_help_panel=RUN)
app.add_typer(models, name="model", rich_help_panel=RUN)
app.add_typer(keys, name="key", rich_help_panel=RUN)
app.add_typer(device, name="device", rich_help_panel=RUN)

JsonOption = Annotated[bool, typer.Option("--json", help="For scripts.")]
ConfigArgument = Annotated[str, typer.Argument(help="A file, or one of disco, simulated, openai, vllm, k8s.")]


@app.command(rich_help_panel=RUN)
def up(
    config: ConfigArgument = "disco",
    port: Annotated[Optional[int], typer.Option(min=1, max=65535, help="Instead of the file's port.")] = None,  # noqa: UP045 - typer reads it
) -> None:
    """Start the service on this machine, wait until it is ready, stop it without a trace on Ctrl-C."""
    # Its own process is safe from what happens to be importable here, as `disco` itself is.
    service = [sys.executable, "-P", "-m", "serve_app.cli.up", config]
    raise typer.Exit(supervise(service if port is None else [*service, str(port)]))


@app.command(rich_help_panel=RUN)
def check(config: ConfigArgument = "disco", json: JsonOption = False) -> None:
    """Judge a configuration before anything starts, and say what it would do."""
    from serve_app.cli.check import complain, describe, doubts, facts
    from serve_app.cli.complaints import warn
    from serve_app.cli.configfile import BadConfiguration, load

    try:
        configuration = load(config, runs_here=False)
    except BadConfiguration as error:
        if json:
            typer.echo(dumps({"configuration": config, "problems": error.problems, "warnings": [], "facts": []}))
        else:
            complain(error)
        raise typer.Exit(BAD_INPUT) from None
    if json:
        found = {"problems": [], "warnings": doubts(configuration), "facts": facts(configuration)}
        typer.echo(dumps({"configuration": config} | found))
    else:
        screen().print(describe(configuration))
        for doubt in doubts(configuration):
            warn(f"warning: {doubt}")


app.command(rich_help_panel=USE)(chat)
app.command(rich_help_panel=USE)(top)
app.command(rich_help_panel=USE)(bench)


@app.command(rich_help_panel=FORESEE)
def simulate(
    service: Annotated[str, typer.Option(help="A shipped profile, or a CSV with ttft_s.")] = "gpt-4-turbo-iad",
    device: Annotated[
        str, typer.Option(help="A shipped profile, or a CSV with prompt_tokens, ttft_s, tbt_s.")
    ] = "s23-gemma3-1b-q4",
    prompts: Annotated[
        str, typer.Option(help="alpaca, sharegpt, or a CSV with prompt_tokens, output_tokens.")
    ] = "alpaca",
    budget: Annotated[
        Optional[list[float]], typer.Option(callback=finite, help="b, the share of prompt tokens; may be repeated.")  # noqa: UP045
    ] = None,
    regime: Annotated[
        Optional[list[str]], typer.Option(help="device-constrained or server-constrained; both if not given.")  # noqa: UP045
    ] = None,
    arrivals: Annotated[
        Optional[str], typer.Option(help="poisson, azure, or a CSV with arrival_s: queue at the device.")  # noqa: UP045
    ] = None,
    gap: Annotated[Optional[float], typer.Option(callback=finite, help="Mean seconds between arrivals.")] = None,  # noqa: UP045
    requests: Annotated[int, typer.Option(min=1, max=100_000_000, help="Requests per policy.")] = 100_000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    exact: Annotated[bool, typer.Option("--exact", help="Replay up to 2000 by the production code too.")] = False,
    suite: Annotated[Optional[str], typer.Option(help="paper: the paper's evaluation.")] = None,  # noqa: UP045
    data: Annotated[Optional[Path], typer.Option(help="Folder with the public traces, for --suite.")] = None,  # noqa: UP045
    splits: Annotated[int, typer.Option(min=1, help="Seeded halvings of each trace, for --suite.")] = 20,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, for --suite.")] = 2,
    json: Annotated[Optional[Path], typer.Option(help="Write all figures to this file.")] = None,  # noqa: UP045
    plots: Annotated[Optional[Path], typer.Option(help="Write PNG and SVG plots into this folder.")] = None,  # noqa: UP045
) -> None:
    """What would each policy do for these services, devices and prompts? Nothing is started, nobody is asked."""
    from serve_app.cli.simulate import BUDGETS, SimulateOptions
    from serve_app.cli.simulate import simulate as run

    options = SimulateOptions(
        service=service,
        device=device,
        prompts=prompts,
        arrivals=arrivals,
        gap=gap,
        regimes=tuple(regime or ()),
        budgets=tuple(dict.fromkeys(budget or BUDGETS)),
        requests=requests,
        seed=seed,
        exact=exact,
        suite=suite,
        data=data,
        splits=splits,
        jobs=jobs,
        json_file=json,
        plots=plots,
    )
    raise typer.Exit(run(options, screen()))


@app.command(rich_help_panel=FORESEE)
def traces(
    folder: Annotated[Optional[Path], typer.Argument(help="A folder to check.")] = None,  # noqa: UP045 - typer reads it
) -> None:
    """Where the public measurements are that the simulator can use; or whether a folder holds them."""
    from serve_app.cli.traces import traces as run

    raise typer.Exit(run(folder, screen()))


@models.command("list")
def list_models(json: JsonOption = False) -> None:
    """Known models, and whether they are in the cache."""
    from actors.engines.models import KNOWN, resolve

    paths: dict[str, str | None] = {}
    for name in KNOWN:
        try:
            paths[name] = str(resolve(name))
        except FileNotFoundError:
            paths[name] = None
    if json:
        listed = [
            {"name": name, "licence": known.licence, "megabytes": known.megabytes, "path": paths[name]}
            for name, known in KNOWN.items()
        ]
        typer.echo(dumps(listed))
        return
    console = screen()
    for name, known in KNOWN.items():
        state = paths[name] or f"not fetched, {known.megabytes} MB"
        console.print(f"{name}  ({known.licence})  {escape(state)}", highlight=False, soft_wrap=True)


@models.command()
def fetch(names: Annotated[list[str], typer.Argument(help="Known models; see `disco model list`.")]) -> None:
    """Bring models into the cache and verify them."""
    from actors.engines.models import FetchError
    from actors.engines.models import fetch as bring

    console = screen()
    for name in names:
        try:
            bring(name, lambda line: console.print(escape(line), highlight=False, soft_wrap=True))
        except ValueError as error:
            console.print(escape(str(error)), style="red")
            raise typer.Exit(BAD_INPUT) from None
        except FetchError as error:
            console.print(escape(str(error)), style="red")
            raise typer.Exit(FAILED) from None


models.command()(convert)
app.command(rich_help_panel=RUN)(profile)


@app.command()
def version(json: JsonOption = False) -> None:
    """The versions that matter in a bug report."""
    found: dict[str, str | None] = {}
    for package in ("disco-serve", "ray", "llama-cpp-python"):
        try:
            found[package] = installed_version(package)
        except PackageNotFoundError:
            found[package] = None
    if json:
        typer.echo(dumps(found | {"python": platform.python_version(), "platform": platform.platform()}))
        return
    console = screen()
    for package, number in found.items():
        console.print(f"{package} {number or 'not installed'}", highlight=False)
    console.print(f"Python {platform.python_version()} on {platform.platform()}", highlight=False)

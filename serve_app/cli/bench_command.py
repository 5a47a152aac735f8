"""`disco bench`: its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serve_app.cli.options import finite
from serve_app.cli.screen import screen


def bench(
    urls: Annotated[
        list[str] | None, typer.Argument(help="Servers to compare. http://127.0.0.1:8000 if none is given.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Once for all servers, or once for each; else the first one served.")
    ] = None,
    key_env: Annotated[
        list[str] | None,
        typer.Option(help="Variable that holds the key: once for all, or once for each; - for none.", metavar="NAME"),
    ] = None,
    arrivals: Annotated[str, typer.Option(help="poisson, azure, or a CSV with arrival_s.")] = "poisson",
    gap: Annotated[
        float | None,
        typer.Option(callback=finite, help="Mean seconds between requests; 1, or a CSV's own if not given."),
    ] = None,
    requests: Annotated[int, typer.Option(help="How many, to each server.")] = 100,
    duration: Annotated[
        float | None, typer.Option(callback=finite, help="Seconds after which nothing more is sent.")
    ] = None,
    lengths: Annotated[
        str, typer.Option(help="alpaca, sharegpt, or a CSV with prompt_tokens, output_tokens.")
    ] = "alpaca",
    prompt: Annotated[str | None, typer.Option(help="One question for all, instead of made ones.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="The longest answer.")] = 256,
    rate: Annotated[
        float | None,
        typer.Option(callback=finite, min=0.5, max=200, help="Tokens per second that the reader reads; 4.8 for QoE."),
    ] = None,
    expected_ttft: Annotated[
        float, typer.Option(callback=finite, min=0, help="Seconds that the reader waits gladly, for QoE.")
    ] = 1.0,
    inflight: Annotated[int, typer.Option(min=1, max=20_000, help="Requests under way at once, per server.")] = 1000,
    timeout: Annotated[
        float, typer.Option(callback=finite, min=0.1, help="Seconds from when a request is due.")
    ] = 120.0,
    warm_up: Annotated[bool, typer.Option(help="Ask each server for one token first, which does not count.")] = True,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    json: Annotated[
        str | None, typer.Option(help="Write all figures to this file; - for standard output.", metavar="FILE")
    ] = None,
    rows: Annotated[Path | None, typer.Option(help="Write a CSV with a line for each request.", metavar="FILE")] = None,
    plots: Annotated[Path | None, typer.Option(help="Write PNG and SVG plots into this folder.")] = None,
) -> None:
    """Load one server, or several side by side, and see what their clients saw. Any server with OpenAI's API will do.

    An open loop: requests go out when they are due, whatever became of earlier ones, and all times count from then.
    Ctrl-C ends the run and prints what was measured. Real servers with prices send real bills.
    """
    from serve_app.bench.run import Limits
    from serve_app.bench.workload import Wish
    from serve_app.cli.bench import BenchOptions
    from serve_app.cli.bench import bench as run

    options = BenchOptions(
        urls=tuple(urls or ["http://127.0.0.1:8000"]),
        models=tuple(model or ()),
        key_envs=tuple(key_env or ()),
        wish=Wish(arrivals, gap, requests, duration, lengths, prompt, max_tokens, seed),
        limits=Limits(timeout, inflight),
        rate=rate,
        expected_ttft=expected_ttft,
        warm_up=warm_up,
        json_file=json,
        rows=rows,
        plots=plots,
    )
    raise typer.Exit(run(options, screen()))

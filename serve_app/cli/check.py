"""`disco check`: what a configuration would do, without starting anything."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from actors.threads import available_cores, llama_settings, threads_per_engine
from serve_app.cli import ready
from serve_app.cli.configfile import Configuration, is_loopback
from serve_app.cli.engines import describe_engine, missing_models
from serve_app.cli.launch import ray_cpus
from serve_app.core.cost import regime_of
from serve_app.core.model import EndpointKind
from serve_app.priors import cost_model
from serve_app.settings import EndpointPrice, Regime, ShapedEngineSettings


def summary(configuration: Configuration, cores: int | None = None) -> RenderableType:
    """``cores`` None: those of this machine."""
    cores = available_cores() if cores is None else cores
    parts: list[RenderableType] = [
        Text(f"{configuration.source}: valid", style="green"),
        _endpoints(configuration),
        _prices(configuration),
        Text("\n".join([*_behaviour(configuration), *_machine(configuration, cores)])),
    ]
    parts += [Text(f"note: {note}", style="yellow") for note in notes(configuration, cores)]
    return Group(*parts)


def show(configuration: Configuration, console: Console) -> None:
    console.print(summary(configuration))


def _endpoints(configuration: Configuration) -> Table:
    table = _table("endpoints", "endpoint", "kind", "engine", "imitates", "slots", "queue", "replicas")
    for name, endpoint in configuration.app.endpoints.items():
        placement = endpoint.placement
        most = placement.max_replicas or placement.replicas
        table.add_row(
            name,
            endpoint.kind.value,
            Text(describe_engine(endpoint.engine)),
            endpoint.engine.profile if isinstance(endpoint.engine, ShapedEngineSettings) else "-",
            str(endpoint.slots),
            str(endpoint.queue),
            str(placement.replicas) if most == placement.replicas else f"{placement.replicas} to {most}",
        )
    return table


def _prices(configuration: Configuration) -> Table:
    live = configuration.live
    notional = ", notional" if live.prices.notional else ""
    table = _table(f"prices, USD per million tokens{notional}", "endpoint", "prompt", "answer", "source")
    costs = cost_model(configuration.app, live)
    for name in configuration.app.endpoints:
        unit = costs.unit[name]
        source = live.prices.endpoints.get(name, EndpointPrice()).source or "-"
        table.add_row(name, f"{unit.prefill * 1e6:g}", f"{unit.decode * 1e6:g}", Text(source))
    return table


def _table(title: str, *columns: str) -> Table:
    """Folds what does not fit: a name that is cut short cannot be copied."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _behaviour(configuration: Configuration) -> list[str]:
    app, live = configuration.app, configuration.live
    served = [f"{name} ({', '.join(model.endpoints or tuple(app.endpoints))})" for name, model in app.models.items()]
    rate = live.reader.consumption_rate
    reader = "of unknown speed" if rate is None else f"of {rate:g} tokens per second"
    return [
        f"models: {', '.join(served)}",
        f"policy: {live.policy.name}, budget {live.policy.budget:g} of the prompt tokens",
        f"regime: {regime(configuration)}",
        f"migration: {live.migration.mode}, {live.reader.delivery} delivery to a reader {reader}",
    ]


def regime(configuration: Configuration) -> str:
    """Which side the budget limits, and why."""
    live = configuration.live
    if live.regime is not Regime.AUTO:
        return f"{live.regime.value}, as set"
    names = configuration.app.endpoints
    unit = cost_model(configuration.app, live).unit
    sides = {
        kind: [unit[name] for name in names if names[name].kind is kind]
        for kind in (EndpointKind.DEVICE, EndpointKind.CLOUD)
    }
    if not all(sides.values()):
        return "none, all endpoints are of one kind"
    device, cloud = (
        min(sides[kind], key=lambda cost: cost.decode) for kind in (EndpointKind.DEVICE, EndpointKind.CLOUD)
    )
    ratio = device.decode / cloud.decode if cloud.decode else float("inf")
    compared = f"a token of answer costs {ratio:.3g} times as much on the device as in the cloud"
    return f"{regime_of(device, cloud).value}, by prices: {compared}"


def _machine(configuration: Configuration, cores: int) -> list[str]:
    app = configuration.app
    reach = "this machine only" if is_loopback(configuration.host) else "the network, without a key"
    lines = [f"listens on: {ready.base_url(configuration.host, configuration.port)} ({reach})"]
    shared = threads_per_engine(app.endpoints.values(), cores)
    threads = {name: llama_settings(endpoint) for name, endpoint in app.endpoints.items()}
    split = [f"{name} {engine.threads or shared}" for name, engine in threads.items() if engine is not None]
    if split:
        lines.append(f"llama.cpp threads, of {cores} cores: {', '.join(split)}")
    lines.append(f"Ray's CPU bookkeeping: {ray_cpus(app)}")
    return lines


def notes(configuration: Configuration, cores: int) -> list[str]:
    """What is allowed, but may surprise."""
    app = configuration.app
    found = [
        f"the model {model.name} is not in the cache; `disco up` fetches it ({model.megabytes} MB), "
        f"or `disco model fetch {model.name}` now"
        for model in missing_models(app)
    ]
    for name, endpoint in app.endpoints.items():
        if endpoint.placement.label_selector or endpoint.placement.num_gpus:
            found.append(
                f"endpoints.{name}.placement asks for labels or GPUs; `disco up` starts one plain node, where this "
                "endpoint may wait for ever: deploy to a cluster that has them with `serve deploy`"
            )
    local = [llama_settings(endpoint) for endpoint in app.endpoints.values()]
    asked = sum(engine.threads or 0 for engine in local if engine is not None)
    if asked > cores:
        found.append(f"engine.threads add up to {asked} on {cores} cores; engines that share a core are far slower")
    return found

"""`disco check`: what a sound configuration would do, and what is wrong with any other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from actors.threads import available_cores, cpu_engine, threads_per_engine
from serve_app.access_settings import KeySettings
from serve_app.cli.configfile import BadConfiguration, Configuration
from serve_app.cli.engines import describe_engine, engine_notes, missing_models, missing_packages
from serve_app.core.cost import CostModel, Regime, regime_of
from serve_app.core.model import EndpointKind
from serve_app.core.policies import PolicyName
from serve_app.engine_settings import ShapedEngineSettings
from serve_app.keys import configured_keys, keys_file_is_elsewhere
from serve_app.priors import cost_model, prior_profile
from serve_app.reach import without_effect
from serve_app.settings import AppSettings, EndpointSettings, RegimeSetting, RouterSettings

#: Prompt for which an endpoint's expected TTFT is shown, tokens.
TYPICAL_PROMPT = 60


def complain(error: BadConfiguration) -> None:
    console = Console(stderr=True)
    console.print(f"[red]{escape(error.source)} cannot be used[/]", highlight=False, soft_wrap=True)
    for problem in error.problems:
        console.print(f"  {escape(problem)}", highlight=False, soft_wrap=True)


def doubts(configuration: Configuration) -> list[str]:
    """What is sound and can have no effect, a line each."""
    app, states = configuration.app, configuration.live.prices.devices
    return [
        *without_effect({} if keys_file_is_elsewhere(app) else configured_keys(app), app),
        *(
            f"prices.devices.{name}: without effect, as it is a cloud; only a device's state moves its price"
            for name in states
            if app.endpoints[name].kind is EndpointKind.CLOUD
        ),
    ]


def facts(configuration: Configuration) -> list[tuple[str, str]]:
    """What each is about, and then what holds for it; an empty name goes on with the one before."""
    return [
        *_endpoints(configuration),
        ("listens on", f"{configuration.host}:{configuration.port}"),
        *zip(("router", ""), _router(configuration.app.router), strict=False),
        *_access(configuration.app),
        *_devices(configuration.app),
        *(("model", f"{name}: {', '.join(_served_by(configuration, name))}") for name in configuration.app.models),
        ("dispatch", _dispatch(configuration)),
        (
            "migration",
            f"{configuration.live.migration.mode}, at most {configuration.live.migration.max_planned} planned",
        ),
        ("reader", _reader(configuration)),
        *(
            (
                "model file",
                f"{m.name}: not here yet, {m.megabytes} MB; `disco up` fetches it, or `disco model fetch {m.name}`",
            )
            for m in missing_models(configuration.app)
        ),
        *(
            ("package", f"{p.name} is not installed here, and the {p.engine} engine needs it: {p.remedy}")
            for p in missing_packages(configuration.app)
        ),
    ]


def describe(configuration: Configuration) -> RenderableType:
    """Nothing is cut, however narrow the terminal."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(overflow="fold", min_width=10, max_width=24)
    grid.add_column(overflow="fold")
    for name, fact in facts(configuration):
        grid.add_row(Text(name), Text(fact))
    return grid


def regime(configuration: Configuration, costs: CostModel) -> tuple[Regime, str] | None:
    """Whose prompt tokens the budget limits, and why; None with one kind of endpoint only."""
    setting = configuration.live.regime
    if setting is not RegimeSetting.AUTO:
        return Regime(setting.value), "as configured"
    cheapest = {
        kind: min(
            (costs.unit[name] for name, e in configuration.app.endpoints.items() if e.kind is kind),
            key=lambda unit: unit.decode,
            default=None,
        )
        for kind in EndpointKind
    }
    device, cloud = cheapest[EndpointKind.DEVICE], cheapest[EndpointKind.CLOUD]
    if device is None or cloud is None:
        return None
    return regime_of(device, cloud), "by prices"


def _endpoints(configuration: Configuration) -> Iterator[tuple[str, str]]:
    app, costs = configuration.app, cost_model(configuration.app, configuration.live)
    shared = threads_per_engine(app.endpoints.values(), available_cores())
    for name, endpoint in app.endpoints.items():
        unit, ttft = costs.unit[name], prior_profile(endpoint.engine).expected_ttft(TYPICAL_PROMPT)
        yield name, f"{endpoint.kind.value} endpoint, {_engine(endpoint, shared)}"
        yield from (("", note) for note in engine_notes(endpoint.engine))
        yield "", f"slots: {endpoint.slots}, and {endpoint.queue} may wait"
        yield from (("", f"on nodes with {labels}") for labels in _labels(endpoint.placement.label_selector))
        yield "", f"first token after {ttft:.2f} s (expected for a prompt of {TYPICAL_PROMPT} tokens)"
        yield "", f"USD per million tokens: {unit.prefill * 1e6:.4g} in, {unit.decode * 1e6:.4g} out"


def _router(router: RouterSettings) -> Iterator[str]:
    if router.replicas > 1:
        most = "" if router.max_per_node is None else f", at most {router.max_per_node} on a node"
        yield f"{router.replicas} replicas{most}"
    yield from (f"on nodes with {labels}" for labels in _labels(router.label_selector))


def _labels(selector: Mapping[str, str]) -> Iterator[str]:
    if selector:
        yield " and ".join(f"{label}: {value}" for label, value in selector.items())


def _engine(endpoint: EndpointSettings, shared: int) -> str:
    parts = [describe_engine(endpoint.engine)]
    engine = cpu_engine(endpoint)
    if engine is not None:
        parts.append(f"threads: {engine.threads or shared}")
    if isinstance(endpoint.engine, ShapedEngineSettings):
        parts.append(f"imitates {endpoint.engine.profile}")
    return ", ".join(parts)


def _devices(app: AppSettings) -> Iterator[tuple[str, str]]:
    if app.devices.allow:
        yield "devices", f"may be registered at addresses in {', '.join(app.devices.allow)}"


def _access(app: AppSettings) -> Iterator[tuple[str, str]]:
    if not app.access.keyed:
        yield "access", "everybody who can reach it" if app.access.open else "this machine only, without a key"
        return
    yield "access", "with an API key only"
    elsewhere = keys_file_is_elsewhere(app)
    if elsewhere:
        yield "", f"{app.access.keys_file} is not on this machine; the routers read it when they start"
    for name, settings in (app.access.keys if elsewhere else configured_keys(app)).items():
        yield f"key {name}", ", ".join(_allowed(settings))


def _allowed(settings: KeySettings) -> Iterator[str]:
    doors = {"api": "the API", "metrics": "/metrics only", "operator": "/disco only", "device": "reports of devices"}
    yield doors[settings.scope]
    if settings.pin is not None:
        yield settings.pin.value
    if settings.endpoints:
        yield f"only {' and '.join(settings.endpoints)}"
    limits = (
        (settings.streams, "streams at once"),
        (settings.requests_per_minute, "requests per minute"),
        (settings.usd_per_day, "USD per day"),
        (settings.usd, "USD altogether"),
    )
    yield from (f"{limit:g} {what}" for limit, what in limits if limit is not None)


def _served_by(configuration: Configuration, model: str) -> tuple[str, ...]:
    return configuration.app.models[model].endpoints or tuple(configuration.app.endpoints)


def _dispatch(configuration: Configuration) -> str:
    policy = configuration.live.policy
    if policy.name in (PolicyName.CLOUD_ONLY, PolicyName.DEVICE_ONLY):
        side = "cloud" if policy.name is PolicyName.CLOUD_ONLY else "device"
        return f"{policy.name.value}: every answer starts on a {side}; a pin, not this, keeps it there"
    chosen = regime(configuration, cost_model(configuration.app, configuration.live))
    if chosen is None:
        return "endpoints of one kind only: the fastest serves, and the next one helps when it is unusually late"
    which, why = chosen
    side = "device" if which is Regime.DEVICE_CONSTRAINED else "cloud"
    notional = "; prices are notional" if configuration.live.prices.notional else ""
    may = "process {} of all tokens" if policy.name is PolicyName.JOINT else "prefill {} of all prompt tokens"
    allowed = may.format(f"{policy.budget:.0%}")
    return f"{policy.name.value}, {which.value} ({why}{notional}): the {side} may {allowed}"


def _reader(configuration: Configuration) -> str:
    reader = configuration.live.reader
    rate = "unknown speed" if reader.consumption_rate is None else f"{reader.consumption_rate:g} tokens per second"
    return f"{rate}, {reader.delivery} delivery, at most {reader.ahead_tokens} tokens ahead"

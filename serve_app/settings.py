"""The configuration: one frozen pydantic tree. ``AppSettings`` is the YAML's ``args`` (a change restarts replicas),
``LiveSettings`` the router's ``user_config`` (a change cuts no stream). Nothing else in this project reads settings.

Units: seconds, tokens, tokens per second, joules, USD. Every model forbids unknown keys and hides rejected input.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from serve_app.access_settings import AccessSettings
from serve_app.core.model import EndpointKind
from serve_app.core.policies import PolicyName
from serve_app.device_settings import DevicesSettings
from serve_app.engine_settings import EngineSettings
from serve_app.fields import WEB_ADDRESS, Amount, Name, Rate, Seconds, Selector, Settings, Share, Whole

# --- endpoints --------------------------------------------------------------------------------------------------


class PlacementSettings(Settings):
    """Where the endpoint's replicas run: Ray's resources and label selectors."""

    num_cpus: Amount = Field(default=0.5, description="CPUs that Ray sets aside for each replica.")
    num_gpus: Amount = Field(default=0.0, description="GPUs that Ray sets aside for each replica.")
    label_selector: Selector = Field(
        default_factory=dict, description="Labels of the nodes that may host it, such as {cpu-arch: arm64}."
    )
    replicas: Whole = Field(default=1, ge=1, description="Copies of the endpoint.")
    max_replicas: Whole | None = Field(
        default=None, ge=1, description="Above `replicas`: Serve starts up to this many under load."
    )

    @property
    def most_replicas(self) -> int:
        return self.max_replicas or self.replicas

    @model_validator(mode="after")
    def _ordered(self) -> PlacementSettings:
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError("max_replicas must be at least replicas")
        return self


class EndpointSettings(Settings):
    """A place that can stream text."""

    kind: EndpointKind = Field(
        strict=False, description="What its tokens cost: `cloud` money, `device` energy; see docs/costs.md."
    )
    engine: EngineSettings = Field(description="What generates its tokens; chosen by `type`.")
    slots: Whole = Field(default=1, ge=1, le=1024, description="Concurrent streams per replica.")
    queue: Whole = Field(default=16, ge=0, le=4096, description="Requests a replica lets wait for a slot.")
    placement: PlacementSettings = Field(default=PlacementSettings(), description="Where its replicas run.")
    owners: tuple[str, ...] = Field(
        default=(), strict=False, description="Names of the API keys that alone may use it; empty: everybody may."
    )


class ModelSettings(Settings):
    """One served name."""

    endpoints: tuple[Name, ...] = Field(default=(), strict=False, description="The ones that may serve it; empty: all.")


class TelemetrySettings(Settings):
    """Traces, by OpenTelemetry's protocol."""

    otlp_endpoint: str | None = Field(
        default=None,
        pattern=WEB_ADDRESS,
        description="Where spans go, such as http://127.0.0.1:4318; null: nowhere.",
    )
    protocol: Literal["http", "grpc"] = Field(default="http", description="How they go there.")
    sampling: Share = Field(
        default=1.0, description="Share of the requests that are traced if the client says nothing."
    )
    ray_metrics: bool = Field(default=False, description="Show the metrics at Ray's ports, too, to everybody there.")


class RouterSettings(Settings):
    """The deployment that clients talk to."""

    replicas: Whole = Field(default=1, ge=1, description="Copies of the router, each with a budget of its own.")
    num_cpus: Amount = Field(default=0.1, description="CPUs that Ray sets aside for each replica.")
    label_selector: Selector = Field(
        default_factory=dict, description="Labels of the nodes that may host replicas, and what they meet at."
    )
    max_per_node: Whole | None = Field(
        default=None, ge=1, le=100, description="Replicas on one node at most; 1 spreads them over nodes."
    )
    max_streams: Whole = Field(default=256, ge=1, le=100_000, description="Concurrent streams per router replica.")
    seed: Whole = Field(default=0, description="Seed of the randomised dispatch decisions.")


class AppSettings(Settings):
    """``args`` of the application."""

    endpoints: dict[Name, EndpointSettings] = Field(min_length=1, description="By name.")
    models: dict[Annotated[str, Field(min_length=1)], ModelSettings] = Field(
        default_factory=lambda: {"disco": ModelSettings()},
        min_length=1,
        description="By the name that clients ask for.",
    )
    access: AccessSettings = Field(default=AccessSettings(), description="Who may use the router, and how much.")
    devices: DevicesSettings = Field(default=DevicesSettings(), description="Which devices may join at run time.")
    telemetry: TelemetrySettings = Field(default=TelemetrySettings(), description="Where traces go.")
    router: RouterSettings = Field(default=RouterSettings(), description="How many routers there are, and where.")
    drain_seconds: Seconds = Field(
        default=5.0,
        description="Seconds for which a replica that is told to stop lets its streams go on. On a cluster, where "
        "nobody waits for it, as long as limits.stream_seconds.",
    )

    @model_validator(mode="after")
    def _names_exist(self) -> AppSettings:
        for model, settings in self.models.items():
            for endpoint in settings.endpoints:
                if endpoint not in self.endpoints:
                    raise ValueError(
                        f"models.{model}.endpoints: no endpoint named {endpoint!r}; known: {', '.join(self.endpoints)}"
                    )
        return self

    @model_validator(mode="after")
    def _owners_have_keys(self) -> AppSettings:
        for name, endpoint in self.endpoints.items():
            if endpoint.owners and not self.access.keyed:
                raise ValueError(f"endpoints.{name}.owners: names API keys, and there are none; add access.keys")
        if self.devices.allow and not self.access.keyed:
            raise ValueError(
                "devices.allow: devices are registered by a key with `scope: operator` for the keys that own them; "
                "add access.keys, or remove devices.allow"
            )
        return self

    @property
    def devices_have_owners(self) -> bool:
        """So that a device of one's own is not any device."""
        return bool(self.devices.allow) or any(endpoint.owners for endpoint in self.endpoints.values())


# --- live settings ----------------------------------------------------------------------------------------------


class RegimeSetting(StrEnum):
    """Whose use the budget limits (paper section 2). AUTO decides by prices."""

    AUTO = "auto"
    DEVICE_CONSTRAINED = "device-constrained"
    SERVER_CONSTRAINED = "server-constrained"


class PolicySettings(Settings):
    """Dispatch. ``budget`` is the paper's b, ``tail_share`` its alpha."""

    name: PolicyName = Field(
        default=PolicyName.AUTO, strict=False, description="Rule by which the budget is spent; see docs/policies.md."
    )
    budget: Share = Field(
        default=0.5,
        description="Share of prompt tokens the constrained side may prefill; with `joint`, its share of all tokens.",
    )
    tail_share: Share = Field(
        default=0.05, description="alpha: share of all requests, the slowest, whose hedge the budget pays for first."
    )
    refit_seconds: Seconds = Field(default=10.0, description="Longest age of a fit while observations arrive, seconds.")
    window: Whole = Field(default=500, ge=20, le=100_000, description="Observations per endpoint kept for fitting.")


class MigrationSettings(Settings):
    """Moving a running answer: for less money, or because its endpoint failed."""

    mode: Literal["overlap", "break", "off"] = Field(
        default="overlap",
        description="Of planned moves. `break`: the source stops when the move begins; `overlap`: it goes on until the "
        "target delivers; `off`: there are none. Rescues are not planned.",
    )
    max_planned: Whole = Field(default=1, ge=0, le=8, description="Planned moves per answer.")
    max_rescues: Whole = Field(default=2, ge=0, le=8, description="Retries and rescues per answer.")
    network_seconds: Amount = Field(default=0.05, description="t_net: one handoff's time on the wire.")


class ReaderSettings(Settings):
    """How the answer is read."""

    consumption_rate: Rate | None = Field(
        default=4.8, description="r_c: tokens per second that the reader reads; null: unknown, so no planned move."
    )
    delivery: Literal["eager", "paced"] = Field(
        default="eager", description="Tokens at once, or at the reader's speed, whatever the request says."
    )
    slack: Seconds = Field(default=1.0, description="Seconds of reading that may be batched into one message.")
    ahead_tokens: Whole = Field(
        default=256, ge=16, le=65_536, description="Most tokens that are generated beyond what was delivered."
    )


class EndpointPrice(Settings):
    """What an endpoint's tokens cost: money and energy."""

    input_usd_per_mtok: Amount = Field(default=0.0, description="USD per million prefilled tokens.")
    output_usd_per_mtok: Amount = Field(default=0.0, description="USD per million decoded tokens.")
    prefill_joules_per_token: Amount | None = Field(
        default=None, description="Joules per prefilled token, measured; null: by `parameters_billion`."
    )
    decode_joules_per_token: Amount | None = Field(
        default=None, description="Joules per decoded token, measured; null: by `parameters_billion`."
    )
    parameters_billion: Amount = Field(
        default=0.0,
        description="Size of a device's model, 1e9 parameters: 0.1 J per token for each, where nothing is measured.",
    )
    bill_on_cancel: Literal["used", "nothing"] = Field(
        default="used", description="What a cancelled leg costs: the tokens that ran, or nothing."
    )
    source: str = Field(default="", description="Where the figures come from; shown beside costs.")


class DeviceSettings(Settings):
    """What is known of a device's state; it moves what a joule of it is worth."""

    battery: Share | None = Field(default=None, description="Charge, 0 to 1.")
    charging: bool | None = Field(default=None, description="Whether it is plugged in; null: unknown.")
    temperature_celsius: float | None = Field(
        default=None, ge=-50, le=150, description="Degrees Celsius; above 40 a joule is dearer."
    )


class PriceSettings(Settings):
    """What tokens cost, and what a joule is worth (lambda); see docs/costs.md."""

    usd_per_megajoule: Amount = Field(
        default=0.05,
        description="lambda: USD per 1e6 joules of a full battery, and of a device whose state is unknown.",
    )
    mains_usd_per_megajoule: Amount = Field(
        default=0.05, description="USD per 1e6 joules of a device that is charging: 0.18 USD/kWh."
    )
    devices: dict[Name, DeviceSettings] = Field(default_factory=dict, description="State of devices, by endpoint.")
    notional: bool = Field(default=False, description="True: nobody is billed these prices; every surface says so.")
    endpoints: dict[Name, EndpointPrice] = Field(default_factory=dict, description="Prices, by endpoint.")


class LimitSettings(Settings):
    """What a request may take, and when an endpoint counts as failed."""

    default_max_tokens: Whole = Field(default=512, ge=1, description="Longest answer where the request does not say.")
    max_tokens: Whole = Field(default=8192, ge=1, description="Longest answer that a request may ask for.")
    body_bytes: Whole = Field(default=1_000_000, ge=1024, description="Largest body of a request, bytes.")
    body_seconds: Seconds = Field(
        default=30.0, description="Longest time that a request's body may take to arrive, seconds."
    )
    stream_seconds: Seconds = Field(default=600.0, description="Longest life of one stream, seconds.")
    first_token_seconds: Seconds = Field(
        default=30.0, description="Seconds after which an endpoint without a first token has failed."
    )
    idle_seconds: Seconds = Field(
        default=5.0, description="Seconds of silence beyond the slack after which a running leg has failed."
    )
    patience: float | None = Field(
        default=3.0,
        ge=1,
        le=1000,
        description="A leg silent for this many times what its endpoint takes in 99 of 100 cases gets another beside "
        "it; null: none does before it has failed.",
    )
    breaker_faults: Whole = Field(
        default=5, ge=1, le=1000, description="Faults among twice as many answers that bar an endpoint for a while."
    )
    breaker_seconds: Seconds = Field(
        default=30.0, description="Longest time until a barred endpoint is tried again, seconds."
    )


class LiveSettings(Settings):
    """``user_config`` of the router deployment."""

    regime: RegimeSetting = Field(
        default=RegimeSetting.AUTO,
        strict=False,
        description="The side whose use the budget limits. `auto`: the dearer one.",
    )
    policy: PolicySettings = Field(default=PolicySettings(), description="Where answers start.")
    migration: MigrationSettings = Field(default=MigrationSettings(), description="How running answers move.")
    reader: ReaderSettings = Field(default=ReaderSettings(), description="How answers are read.")
    prices: PriceSettings = Field(default=PriceSettings(), description="What tokens cost.")
    limits: LimitSettings = Field(default=LimitSettings(), description="What a request may take.")

    def check_against(self, app: AppSettings) -> None:
        """Raise ValueError where a price or a device's state names an endpoint that does not exist."""
        for where, names in (("endpoints", self.prices.endpoints), ("devices", self.prices.devices)):
            for name in names:
                if name not in app.endpoints:
                    known = ", ".join(app.endpoints)
                    raise ValueError(f"prices.{where}: no endpoint named {name!r}; known: {known}")

"""The configuration: one frozen pydantic tree. ``AppSettings`` is the YAML's ``args`` (a change restarts replicas),
``LiveSettings`` the router's ``user_config`` (a change cuts no stream). Nothing else in this project reads settings.

Units: seconds, tokens, tokens per second, joules, USD. Every model forbids unknown keys and hides rejected input.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from serve_app.access_settings import AccessSettings
from serve_app.core.model import EndpointKind
from serve_app.core.policies import PolicyName
from serve_app.engine_settings import EngineSettings
from serve_app.fields import Amount, Name, Rate, Seconds, Settings, Share

# --- endpoints --------------------------------------------------------------------------------------------------


class PlacementSettings(Settings):
    """Where the endpoint's replicas run: Ray's resources and label selectors."""

    num_cpus: Amount = 0.5
    num_gpus: Amount = 0.0
    label_selector: dict[str, str] = Field(default_factory=dict, description="For instance {cpu-arch: arm64}.")
    replicas: int = Field(default=1, ge=1)
    max_replicas: int | None = Field(default=None, ge=1, description="Above ``replicas``: autoscale up to this.")

    @model_validator(mode="after")
    def _ordered(self) -> PlacementSettings:
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError("max_replicas must be at least replicas")
        return self


class EndpointSettings(Settings):
    kind: EndpointKind
    engine: EngineSettings
    slots: int = Field(default=1, ge=1, le=1024, description="Concurrent streams per replica.")
    queue: int = Field(default=16, ge=0, le=4096, description="Requests a replica lets wait for a slot.")
    placement: PlacementSettings = PlacementSettings()

    @property
    def most_streams(self) -> int:
        """Concurrent streams over all the replicas that it may have."""
        return self.slots * (self.placement.max_replicas or self.placement.replicas)


class ModelSettings(Settings):
    """One served name. Without endpoints, every configured endpoint may serve it."""

    endpoints: tuple[Name, ...] = ()


class TelemetrySettings(Settings):
    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^/\s]+(/\S*)?$",
        description="For instance http://127.0.0.1:4318; None exports nothing.",
    )
    protocol: Literal["http", "grpc"] = "http"
    sampling: Share = 1.0


class RouterSettings(Settings):
    replicas: int = Field(default=1, ge=1)
    num_cpus: Amount = 0.1
    label_selector: dict[str, str] = Field(
        default_factory=dict, description="Labels of the nodes that may host replicas, and what they meet at."
    )
    max_per_node: int | None = Field(
        default=None, ge=1, le=100, description="Replicas on one node at most; 1 spreads them over nodes."
    )
    max_streams: int = Field(default=256, ge=1, le=100_000, description="Concurrent streams per router replica.")
    seed: int = Field(default=0, description="Seed of the randomised dispatch decisions.")


class AppSettings(Settings):
    """``args`` of the application."""

    endpoints: dict[Name, EndpointSettings] = Field(min_length=1)
    models: dict[Annotated[str, Field(min_length=1)], ModelSettings] = Field(
        default_factory=lambda: {"disco": ModelSettings()}, min_length=1
    )
    access: AccessSettings = AccessSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    router: RouterSettings = RouterSettings()
    drain_seconds: Seconds = Field(
        default=5.0,
        description="How long a replica that is told to stop lets its streams go on. On a cluster, where nobody waits "
        "for it, as long as limits.stream_seconds.",
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


# --- live settings ----------------------------------------------------------------------------------------------


class RegimeSetting(StrEnum):
    """Whose use the budget limits (paper section 2). AUTO decides by prices."""

    AUTO = "auto"
    DEVICE_CONSTRAINED = "device-constrained"
    SERVER_CONSTRAINED = "server-constrained"


class PolicySettings(Settings):
    """Dispatch. ``budget`` is the paper's b, ``tail_share`` its alpha."""

    name: PolicyName = Field(default=PolicyName.AUTO, description="See docs/policies.md.")
    budget: Share = Field(
        default=0.5,
        description="Share of prompt tokens the constrained side may prefill; with `joint`, its share of all tokens.",
    )
    tail_share: Share = Field(
        default=0.05, description="alpha: share of all requests, the slowest, whose hedge the budget pays for first."
    )
    refit_seconds: Seconds = Field(default=10.0, description="Longest age of a fit while observations arrive.")
    window: int = Field(default=500, ge=20, le=100_000, description="Observations per endpoint kept for fitting.")


class MigrationSettings(Settings):
    mode: Literal["overlap", "break", "off"] = "overlap"
    max_planned: int = Field(default=1, ge=0, le=8)
    max_rescues: int = Field(default=2, ge=0, le=8)
    network_seconds: Amount = Field(default=0.05, description="t_net: one handoff's time on the wire.")


class ReaderSettings(Settings):
    """The reader's model. ``ahead_tokens`` is the most that is generated beyond what was delivered."""

    consumption_rate: Rate | None = Field(default=4.8, description="r_c, tokens per second; null: unknown.")
    delivery: Literal["eager", "paced"] = "eager"
    slack: Seconds = Field(default=1.0, description="Seconds of reading that may be batched into one message.")
    ahead_tokens: int = Field(default=256, ge=16, le=65_536)


class EndpointPrice(Settings):
    """What an endpoint's tokens cost: money (USD per million tokens) and energy (joules per token)."""

    input_usd_per_mtok: Amount = 0.0
    output_usd_per_mtok: Amount = 0.0
    prefill_joules_per_token: Amount | None = Field(default=None, description="Measured; else by parameters_billion.")
    decode_joules_per_token: Amount | None = None
    parameters_billion: Amount = Field(
        default=0.0,
        description="Size of a device's model: 0.1 J per token and 1e9 parameters, where nothing is measured.",
    )
    bill_on_cancel: Literal["used", "nothing"] = Field(
        default="used", description="What a cancelled leg costs: the tokens that ran, or nothing."
    )
    source: str = Field(default="", description="Where the figures come from; shown beside costs.")


class DeviceSettings(Settings):
    """What is known of a device's state; it moves what a joule of it is worth."""

    battery: Share | None = Field(default=None, description="Charge, 0 to 1.")
    charging: bool | None = None
    temperature_celsius: float | None = Field(default=None, ge=-50, le=150, allow_inf_nan=False)


class PriceSettings(Settings):
    """``usd_per_megajoule`` is the paper's lambda, the exchange rate between energy and money, in USD per 1e6 J."""

    usd_per_megajoule: Amount = Field(default=0.05, description="Of a full battery, and where the state is unknown.")
    mains_usd_per_megajoule: Amount = Field(default=0.05, description="Of a device that is charging: 0.18 USD/kWh.")
    devices: dict[Name, DeviceSettings] = Field(default_factory=dict)
    notional: bool = Field(default=False, description="True: nobody is billed these prices; every surface says so.")
    endpoints: dict[Name, EndpointPrice] = Field(default_factory=dict)


class LimitSettings(Settings):
    default_max_tokens: int = Field(default=512, ge=1)
    max_tokens: int = Field(default=8192, ge=1)
    body_bytes: int = Field(default=1_000_000, ge=1024)
    body_seconds: Seconds = Field(default=30.0, description="Longest time that a request's body may take to arrive.")
    stream_seconds: Seconds = Field(default=600.0, description="Longest life of one stream.")
    first_token_seconds: Seconds = Field(default=30.0, description="An endpoint without a token by then has failed.")
    idle_seconds: Seconds = Field(
        default=5.0, description="A running leg silent for this long beyond the slack failed."
    )
    patience: float | None = Field(
        default=3.0,
        ge=1,
        le=1000,
        description="A leg silent for this many times what its endpoint takes in 99 of 100 cases gets another beside "
        "it; null: none does before it has failed.",
    )
    breaker_faults: int = Field(
        default=5, ge=1, le=1000, description="Faults among twice as many answers that bar an endpoint for a while."
    )
    breaker_seconds: Seconds = Field(default=30.0, description="Longest time until a barred endpoint is tried again.")


class LiveSettings(Settings):
    """``user_config`` of the router deployment."""

    regime: RegimeSetting = RegimeSetting.AUTO
    policy: PolicySettings = PolicySettings()
    migration: MigrationSettings = MigrationSettings()
    reader: ReaderSettings = ReaderSettings()
    prices: PriceSettings = PriceSettings()
    limits: LimitSettings = LimitSettings()

    def check_against(self, app: AppSettings) -> None:
        """Raise ValueError where a price or a device's state names an endpoint that does not exist."""
        for where, names in (("endpoints", self.prices.endpoints), ("devices", self.prices.devices)):
            for name in names:
                if name not in app.endpoints:
                    known = ", ".join(app.endpoints)
                    raise ValueError(f"prices.{where}: no endpoint named {name!r}; known: {known}")


def explain(error: Exception, document: object = None) -> list[str]:
    """One line per problem of a pydantic ValidationError: the field's path, what is wrong; never the rejected value.

    ``document``: what was validated. With it, paths leave out the names of union members that pydantic inserts.
    """
    details: Any = getattr(error, "errors", None)
    if details is None:
        return [str(error)]
    lines = []
    for item in details(include_input=False, include_url=False):
        path = ".".join(_path(item["loc"], document, whole=item["type"] == "value_error"))
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "unknown key; check the spelling or remove it"
        elif item["type"] == "union_tag_invalid":
            # Pydantic's own message quotes the value.
            message = f"type: must be one of {item['ctx']['expected_tags']}"
        lines.append(f"{path}: {message}" if path else message)
    return lines


def _path(loc: tuple[int | str, ...], document: object, *, whole: bool) -> list[str]:
    """``whole``: the error is about all of a value, so that the last part may be a union member's name."""
    parts = []
    for rank, part in enumerate(loc):
        inside = document
        if isinstance(document, dict):
            inside = document.get(part)
        elif isinstance(document, list | tuple) and isinstance(part, int) and part < len(document):
            inside = document[part]
        is_tag = isinstance(document, dict) and part not in document and (whole or rank + 1 < len(loc))
        if not is_tag:
            parts.append(str(part))
            document = inside
    return parts

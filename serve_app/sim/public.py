"""Loaders for public measurements. Their files are not part of this project; ``disco traces`` says where they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serve_app.sim.tables import BadInput, read_bare_csv, read_csv, read_json_array, read_json_lines
from serve_app.sim.traces import ArrivalTrace, Device, LengthTrace, ServiceTrace, decode_rate

#: Chunks below which a stream says nothing about its decode rate.
_FEW_CHUNKS = 10

LLMPERF_COLUMNS = ("framework", "model_size", "ttft_s", "inter_token_latency_s", "error_code")
LATENCYLAB_FIELDS = ("endpoint", "success", "ttft_s", "chunk_gaps_s")
THEFASTEST_COLUMNS = ("region", "model", "ttft_s", "tps", "num_tokens")
POCKETPAL_COLUMNS = ("device", "model", "quant", "backend", "prefill_tok_s", "decode_tok_s")
LENGTH_COLUMNS = ("prompt_tokens", "response_tokens")
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
SERVEGEN_COLUMNS = ("start_s", "rate", "cv", "family", "shape", "scale")


def llmperf(path: Path) -> list[ServiceTrace]:
    """ray-project/llmperf-leaderboard: one service per framework and model size; failed requests have an error code."""
    if path.suffix == ".json":
        return [_llmperf_original(path)]
    services = []
    for (framework, size), rows in read_csv(path, LLMPERF_COLUMNS).group("framework", "model_size").items():
        table = rows.without(lambda row: row["error_code"] != "")
        rate = decode_rate(path, table.numbers("inter_token_latency_s"))
        name = f"{framework}-{size}"
        services.append(ServiceTrace(name, table.numbers("ttft_s"), rate, "llmperf", table.dropped))
    return services


def latencylab(path: Path) -> list[ServiceTrace]:
    """ScaleVoice/LatencyLab: prompts of 250 to 4250 characters; a chunk is about a token."""
    ttfts: dict[str, list[float]] = {}
    gaps: dict[str, list[float]] = {}
    failed: dict[str, int] = {}
    for line, row in read_json_lines(path, LATENCYLAB_FIELDS):
        name = str(row["endpoint"])
        if not row["success"]:
            failed[name] = failed.get(name, 0) + 1
            continue
        ttfts.setdefault(name, []).append(_seconds(path, f"line {line}", "ttft_s", row["ttft_s"]))
        if len(row["chunk_gaps_s"]) > _FEW_CHUNKS:
            gaps.setdefault(name, []).append(float(np.mean(row["chunk_gaps_s"])))
    return [
        ServiceTrace(
            name.lower().replace("_", "-"),
            np.array(values),
            decode_rate(path, np.array(gaps[name])),
            "latencylab",
            failed.get(name, 0),
        )
        for name, values in ttfts.items()
    ]


def thefastest(path: Path) -> list[ServiceTrace]:
    """fixie-ai/thefastest.ai: one service per model, its regions together. Best of 3 tries: tails are optimistic."""
    services = []
    for (model,), rows in read_csv(path, THEFASTEST_COLUMNS).group("model").items():
        table = rows.without(lambda row: row["ttft_s"] == "" or row["num_tokens"] in ("", "0"))
        rate = float(np.median(table.numbers("tps")))
        services.append(ServiceTrace(model.split("/")[-1], table.numbers("ttft_s"), rate, "thefastest", table.dropped))
    return services


def pocketpal(path: Path, intercept: float) -> list[Device]:
    """a-ghorbani/pocketpal-ai: llama.cpp on phones. ``intercept``, seconds, was not measured there."""
    table = read_csv(path, POCKETPAL_COLUMNS)
    prefill = table.numbers("prefill_tok_s", least=1e-3)
    decode = table.numbers("decode_tok_s", least=1e-3)
    names = zip(*(table.cells[name] for name in POCKETPAL_COLUMNS[:4]), strict=True)
    return [
        Device("/".join(name), float(prefill[row]), float(decode[row]), intercept + 1 / float(decode[row]), "pocketpal")
        for row, name in enumerate(names)
    ]


def lengths(path: Path, name: str) -> LengthTrace:
    """Alpaca's or ShareGPT's prompts and responses, as lengths in tokens."""
    table = read_csv(path, LENGTH_COLUMNS)
    return LengthTrace(name, table.counts("prompt_tokens", least=1), table.counts("response_tokens"), name)


def azure(path: Path) -> tuple[ArrivalTrace, LengthTrace]:
    """Azure/AzurePublicDataset, LLM inference 2023: when requests came, and how long they were."""
    table = read_csv(path, AZURE_COLUMNS)
    try:
        times = [datetime.fromisoformat(cell[:26]).replace(tzinfo=UTC).timestamp() for cell in table.cells["TIMESTAMP"]]
    except ValueError:
        raise BadInput(f"{path}: column TIMESTAMP holds something else than dates; download it again") from None
    arrivals = np.sort(np.array(times))
    prompts, outputs = table.counts("ContextTokens", least=1), table.counts("GeneratedTokens")
    return ArrivalTrace("azure", arrivals - arrivals[0], "azure"), LengthTrace("azure", prompts, outputs, "azure")


@dataclass(frozen=True, slots=True)
class ClientRates:
    """One ServeGen client: per window its start (s), requests per second, and the gaps' distribution.

    family: Gamma or Weibull with shape and scale, empty for a window without requests.
    """

    name: str
    start: NDArray[np.float64]
    rate: NDArray[np.float64]
    family: tuple[str, ...]
    shape: NDArray[np.float64]
    scale: NDArray[np.float64]


def servegen(directory: Path) -> list[ClientRates]:
    """alibaba/ServeGen: every ``chunk-*-trace.csv`` in ``directory`` is a client."""
    files = sorted(directory.glob("chunk-*-trace.csv"))
    if not files:
        raise BadInput(f"{directory}: holds no chunk-*-trace.csv; give the folder of ServeGen's client traces")
    return [client_rates(path) for path in files]


def client_rates(path: Path) -> ClientRates:
    """One client's windows. Raises ``BadInput``."""
    table = read_bare_csv(path, SERVEGEN_COLUMNS)
    families = tuple(table.cells["family"])
    if unknown := set(families) - {"", "Gamma", "Weibull"}:
        raise BadInput(f"{path}: column 4 (family) has {len(unknown)} unknown name(s); Gamma and Weibull are known")
    name = path.name.removesuffix("-trace.csv")
    return ClientRates(
        name, table.numbers("start_s"), table.numbers("rate"), families, table.numbers("shape"), table.numbers("scale")
    )


def _llmperf_original(path: Path) -> ServiceTrace:
    rows = read_json_array(path, ("error_code", "ttft_s", "inter_token_latency_s"))
    good = [row for row in rows if row["error_code"] is None]
    if not good:
        raise BadInput(f"{path}: all {len(rows)} requests failed; give a trace with answers in it")
    ttft = np.array([_seconds(path, f"item {rank}", "ttft_s", row["ttft_s"]) for rank, row in enumerate(good)])
    gaps = np.array([_seconds(path, "an item", "inter_token_latency_s", row["inter_token_latency_s"]) for row in good])
    return ServiceTrace(path.stem.replace("_", "-"), ttft, decode_rate(path, gaps), "llmperf", len(rows) - len(good))


def _seconds(path: Path, where: str, field: str, value: object) -> float:
    if isinstance(value, int | float) and 0 <= value < np.inf:
        return float(value)
    raise BadInput(f"{path}: {where}: {field} is no number of seconds; mend or remove the row")


@dataclass(frozen=True, slots=True)
class PublicTraces:
    """Everything that a folder with the public files holds."""

    services: list[ServiceTrace]
    prompts: list[LengthTrace]
    arrivals: list[ArrivalTrace]
    clients: list[ClientRates]


def load_folder(folder: Path) -> PublicTraces:
    """Every known file in ``folder``; those that are not there are left out. Raises ``BadInput`` if none is."""
    if not folder.is_dir():
        raise BadInput(f"{folder}: is no folder; `disco traces` says what to put in one")
    services: list[ServiceTrace] = []
    loaders: dict[str, Callable[[Path], list[ServiceTrace]]] = {
        "llmperf_2023_individual.csv": llmperf,
        "latencylab_2024_ttft_tbt.jsonl": latencylab,
        "thefastest_2024.csv": thefastest,
    }
    for name, load in loaders.items():
        if (path := folder / name).is_file():
            services += load(path)
    prompts = [
        lengths(path, name)
        for name, file in (("alpaca", "alpaca_en_demo_lengths.csv"), ("sharegpt", "sharegpt_first_turn_lengths.csv"))
        if (path := folder / file).is_file()
    ]
    arrivals = []
    if (path := folder / "azure_llm_2023_conv.csv").is_file():
        arrivals.append(azure(path)[0])
    clients = servegen(folder / "servegen_m_small") if (folder / "servegen_m_small").is_dir() else []
    if not services or not prompts:
        raise BadInput(f"{folder}: holds no known traces; `disco traces` lists the files and their columns")
    return PublicTraces(services, prompts, arrivals, clients)

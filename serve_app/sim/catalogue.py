"""Where the public measurements are that the evaluation uses, and whether a copy of them is the one that was used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Final

from serve_app.sim import public
from serve_app.sim.tables import BadInput
from serve_app.sim.traces import ServiceTrace


@dataclass(frozen=True, slots=True)
class Source:
    """``file``: name that the loaders look for. sha256 and rows: of the copy that the project's figures come from.

    extract: None where the file is the project's own; else what to make of the original.
    """

    file: str
    url: str
    licence: str
    columns: tuple[str, ...]
    rows: int
    sha256: str
    extract: str | None
    load: Callable[[Path], int]


def _services(load: Callable[[Path], list[ServiceTrace]]) -> Callable[[Path], int]:
    return lambda path: sum(service.ttft.size + service.dropped for service in load(path))


def _lengths(path: Path) -> int:
    return public.lengths(path, path.stem).prompt_tokens.size


_LENGTHS_OF: Final = "one row per conversation: cl100k tokens of the first prompt and of its answer"

SOURCES: Final = (
    Source(
        "llmperf_2023_individual.csv",
        "https://github.com/ray-project/llmperf-leaderboard",
        "Apache-2.0",
        public.LLMPERF_COLUMNS,
        745,
        "32cb416b7ede563c8a5d74127e023dd76efab28ba9909d6d64a2b49a7e1b5814",
        "one row per request of raw_data/individual/*.json, whose file names give framework and model size",
        _services(public.llmperf),
    ),
    Source(
        "latencylab_2024_ttft_tbt.jsonl",
        "https://github.com/ScaleVoice/LatencyLab",
        "MIT",
        public.LATENCYLAB_FIELDS,
        204,
        "91c01773fa0e8bc2a0a9f29a1d9ab68b27ecfe3c649287491ed167f8eff872c4",
        "one JSON object per measured request: seconds to the first chunk, and between the later ones",
        _services(public.latencylab),
    ),
    Source(
        "thefastest_2024.csv",
        "https://github.com/fixie-ai/thefastest.ai",
        "MIT",
        public.THEFASTEST_COLUMNS,
        760,
        "e15f84122df61d070bec638519859f2ac12a1ecfaaa392c6997a4fc6a883ce3a",
        "one row per region, model and day of the published measurements: TTFT in seconds, tokens per second",
        _services(public.thefastest),
    ),
    Source(
        "pocketpal_phone_profiles.csv",
        "https://github.com/a-ghorbani/pocketpal-ai",
        "MIT",
        public.POCKETPAL_COLUMNS,
        297,
        "5dcc00395b42919071acd60744e52611291276c8d6316c3ce7dc66e9afdf199c",
        "one row per phone, model, quantisation and backend: prefill and decode rate in tokens per second",
        lambda path: len(public.pocketpal(path, 0.0)),
    ),
    Source(
        "alpaca_en_demo_lengths.csv",
        "https://github.com/tatsu-lab/stanford_alpaca",
        "CC-BY-NC-4.0 (the texts; lengths only are used)",
        public.LENGTH_COLUMNS,
        999,
        "3421c7d685870b57991b195ee5b59b1dc54aca35d07fc0980d2cddd8c388a649",
        _LENGTHS_OF,
        _lengths,
    ),
    Source(
        "sharegpt_first_turn_lengths.csv",
        "https://sharegpt.com",
        "unclear (the texts; lengths only are used)",
        public.LENGTH_COLUMNS,
        17_332,
        "714b590a42f0f643afc68af5e5f7944c26113e845707cff3b8442606b3844b0e",
        _LENGTHS_OF,
        _lengths,
    ),
    Source(
        "azure_llm_2023_conv.csv",
        "https://github.com/Azure/AzurePublicDataset/blob/master/AzureLLMInferenceDataset2023.md",
        "CC-BY-4.0",
        public.AZURE_COLUMNS,
        19_366,
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        None,
        lambda path: public.azure(path)[1].prompt_tokens.size,
    ),
)


@dataclass(frozen=True, slots=True)
class Clients:
    """ServeGen's clients: a folder of traces without a header."""

    folder: str
    url: str
    licence: str
    sha256: dict[str, str]


SERVEGEN: Final = Clients(
    "servegen_m_small",
    "https://github.com/alibaba/ServeGen",
    "Apache-2.0",
    {
        "chunk-16-trace.csv": "847697979aa48a5d4f20ad80bd42de7e440819570358d81dccbc8c643b16086b",
        "chunk-2-trace.csv": "642abb6ed02fe861bbe8a3d2e6b8abcc5d1c11049030fdf5856389616e3a330b",
        "chunk-39-trace.csv": "8f1a93d4b33792889ee014b6f408c2c4e00676fa7be6a47089d03b1713e8f90a",
        "chunk-7-trace.csv": "787480c7b1ff1f8058ddf7d239bca7dcb5d053aa5151288ccf66f067f41771f5",
    },
)


class State(StrEnum):
    """SAME: byte for byte what the project's figures come from. USABLE: well formed, other content or rows."""

    SAME = "the same"
    USABLE = "usable, not the same"
    ABSENT = "not there"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Checked:
    """``said``: rows found, or what is wrong and what to do."""

    file: str
    state: State
    said: str


def check_folder(folder: Path) -> list[Checked]:
    """Judge every known file in ``folder``. Raises ``BadInput`` if it is no folder."""
    if not folder.is_dir():
        raise BadInput(f"{folder}: is no folder; give the one that holds the files listed by `disco traces`")
    return [_check(folder, source) for source in SOURCES] + _check_clients(folder / SERVEGEN.folder)


def _check(folder: Path, source: Source) -> Checked:
    path = folder / source.file
    if not path.is_file():
        return Checked(source.file, State.ABSENT, source.url)
    try:
        rows = source.load(path)
    except BadInput as broken:
        return Checked(source.file, State.BROKEN, str(broken))
    same = _digest(path) == source.sha256
    counted = f"{rows} rows" if rows == source.rows else f"{rows} rows instead of {source.rows}"
    return Checked(source.file, State.SAME if same else State.USABLE, counted)


def _check_clients(folder: Path) -> list[Checked]:
    found = []
    for file, digest in SERVEGEN.sha256.items():
        path, name = folder / file, f"{SERVEGEN.folder}/{file}"
        if not path.is_file():
            found.append(Checked(name, State.ABSENT, SERVEGEN.url))
            continue
        try:
            rows = public.client_rates(path).rate.size
        except BadInput as broken:
            found.append(Checked(name, State.BROKEN, str(broken)))
            continue
        found.append(Checked(name, State.SAME if _digest(path) == digest else State.USABLE, f"{rows} windows"))
    return found


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()

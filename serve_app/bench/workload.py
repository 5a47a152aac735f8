"""What a load test asks, and when: arrivals that were drawn or measured, prompts and answers of measured lengths."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serve_app.sim import shipped
from serve_app.sim.arrivals import poisson, rescaled
from serve_app.sim.tables import BadInput, read_csv
from serve_app.sim.traces import LengthTrace

POISSON: Final = "poisson"

#: Mean seconds between requests where neither the user nor a log says more.
GAP: Final = 1.0

#: Requests in one run: what is planned of each takes 24 bytes.
MOST: Final = 1_000_000

#: Each is one token in most vocabularies.
_WORDS: Final = (
    "time", "house", "water", "music", "river", "light", "road", "garden", "winter", "paper", "story", "window",
    "friend", "morning", "city", "market", "forest", "letter", "island", "bridge", "summer", "table", "voice", "stone",
)  # fmt: skip
_OPENING: Final = "Tell a long story in which these words occur:"
#: Tokens of the opening, the number before it, and what a chat template adds, about.
_OVERHEAD: Final = 24


@dataclass(frozen=True, slots=True)
class Request:
    """``at``: seconds after the run's beginning at which it is due."""

    number: int
    at: float
    prompt: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for. ``gap``: mean seconds between requests; None keeps a log's own.

    duration: seconds after which nothing more is sent. prompt: the text of every question, None for made ones of the
    lengths that ``lengths`` names.
    """

    arrivals: str = POISSON
    gap: float | None = None
    requests: int = 100
    duration: float | None = None
    lengths: str = "alpaca"
    prompt: str | None = None
    max_tokens: int = 256
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """``at``: seconds, ascending from 0; tokens of each prompt, about, and at most of each answer."""

    at: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    source: str
    prompt: str | None
    seed: int

    def __len__(self) -> int:
        return self.at.size

    @property
    def mean_gap(self) -> float:
        """Seconds."""
        return float(self.at[-1]) / max(1, len(self) - 1)

    def requests(self) -> Iterator[Request]:
        """The same ones every time."""
        for number, at in enumerate(self.at):
            prompt = self.prompt or _prompt(number, int(self.prompt_tokens[number]), self.seed)
            yield Request(number, float(at), prompt, int(self.output_tokens[number]))


def plan(wish: Wish) -> Workload:
    """Raises ``BadInput``, whose message names the option or the file and column."""
    if not 1 <= wish.requests <= MOST:
        raise BadInput(f"--requests: must be a number from 1 to {MOST}")
    if wish.prompt is not None and not wish.prompt.strip():
        raise BadInput("--prompt: must not be empty; leave it out for made questions")
    for option, value in (("--gap", wish.gap), ("--duration", wish.duration)):
        if value is not None and not 0 < value < math.inf:
            raise BadInput(f"{option}: must be a positive number of seconds")
    rng = np.random.default_rng(wish.seed)
    at, own, source = _arrivals(wish, rng)
    lengths = own or shipped.prompts(wish.lengths, "--lengths")
    if wish.duration is not None:
        at = at[at <= wish.duration]
    rows = np.arange(at.size) % lengths.prompt_tokens.size
    if own is None:
        rows = rng.integers(0, lengths.prompt_tokens.size, at.size)
    return Workload(
        at,
        lengths.prompt_tokens[rows],
        np.clip(lengths.output_tokens[rows], 1, wish.max_tokens),
        f"{source}; prompts: {'your own' if wish.prompt else lengths.name}, answers up to {wish.max_tokens} tokens",
        wish.prompt,
        wish.seed,
    )


def _arrivals(wish: Wish, rng: np.random.Generator) -> tuple[NDArray[np.float64], LengthTrace | None, str]:
    """When, with the lengths that came with it, and in words."""
    gap = wish.gap or GAP
    if wish.arrivals == POISSON:
        return _from_zero(poisson(wish.requests, gap, rng)), None, f"Poisson arrivals, one per {gap:g} s on average"
    if wish.arrivals in shipped.arrival_names():
        pattern = shipped.arrivals(wish.arrivals).arrivals
        return _from_zero(rescaled(pattern, wish.requests, gap)), None, f"{wish.arrivals}, one per {gap:g} s on average"
    path = Path(wish.arrivals).expanduser()
    if not path.is_file():
        known = ", ".join((POISSON, *shipped.arrival_names()))
        raise BadInput(f"--arrivals: no pattern and no file is named {wish.arrivals}; patterns: {known}")
    at, own = _log(path)
    at = at[: wish.requests]
    if wish.gap is not None and at.size > 1 and at[-1] > 0:
        at = at * (wish.gap * (at.size - 1) / at[-1])
    return at, own, f"{path.name}" + (f", one per {wish.gap:g} s on average" if wish.gap is not None else " as it came")


def _log(path: Path) -> tuple[NDArray[np.float64], LengthTrace | None]:
    """Column ``arrival_s``, and ``prompt_tokens`` with ``output_tokens`` where both are there."""
    table = read_csv(path, ["arrival_s"], ["prompt_tokens", "output_tokens"])
    times = table.numbers("arrival_s", least=-np.inf)
    if (np.diff(times) < 0).any():
        raise BadInput(f"{path}: column arrival_s goes back in time; sort the rows by it")
    if not {"prompt_tokens", "output_tokens"} <= set(table.cells):
        return times - times[0], None
    prompts, outputs = table.counts("prompt_tokens", least=1), table.counts("output_tokens")
    return times - times[0], LengthTrace(path.name, prompts, outputs, str(path))


def _from_zero(times: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted: NDArray[np.float64] = times - times[0]
    return shifted


def _prompt(number: int, tokens: int, seed: int) -> str:
    """A question that no cache has seen: its beginning is its number."""
    dice = random.Random(f"{seed} {number}")
    words = " ".join(dice.choices(_WORDS, k=max(1, tokens - _OVERHEAD)))
    return f"{seed}.{number}. {_OPENING} {words}"

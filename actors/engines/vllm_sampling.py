"""A request's sampling as vLLM's parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from serve_app.core.errors import Unsupported
from serve_app.core.model import Sampling


def vllm_sampling(
    sampling: Sampling, accepted: Sequence[int], max_tokens: int, end_of_generation: Iterable[int]
) -> dict[str, Any]:
    """Arguments of vLLM's ``SamplingParams``. ``accepted``: the answer's tokens so far, which vLLM takes for prompt.

    vLLM counts penalties over the tokens that it generated itself. A frequency penalty on earlier ones is a bias that
    never changes, so it is added as such. A presence penalty is due once, whoever generated the token: on a
    continuation that cannot be said to vLLM, and it is refused. vLLM samples no colder than at 0.01.
    """
    if accepted and sampling.presence_penalty != 0:
        raise Unsupported(
            "presence_penalty: vLLM cannot count it over tokens that another endpoint chose; use frequency_penalty",
            "presence_penalty",
        )
    return {
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        # vLLM's generator takes no negative seed; OpenAI's is any 64-bit integer.
        "seed": None if sampling.seed is None else sampling.seed % 2**63,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": _bias(sampling.frequency_penalty, accepted),
        "stop_token_ids": sorted(end_of_generation),
        "detokenize": False,
    }


def _bias(frequency_penalty: float, accepted: Sequence[int]) -> dict[int, float] | None:
    if frequency_penalty == 0 or not accepted:
        return None
    return {token: -frequency_penalty * count for token, count in Counter(accepted).items()}

from __future__ import annotations

import pytest

from actors.engines.vllm_sampling import vllm_sampling
from serve_app.core.errors import Unsupported
from serve_app.core.model import Sampling


def test_every_field_is_said_or_follows_from_the_engine() -> None:
    sampling = Sampling(50, temperature=0.7, top_p=0.9, seed=5, presence_penalty=0.5, frequency_penalty=-0.5)
    assert vllm_sampling(sampling, (), 40, {2, 0}) == {
        "max_tokens": 40,
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 5,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": None,
        "stop_token_ids": [0, 2],
        "detokenize": False,
    }


@pytest.mark.parametrize(("seed", "said"), [(None, None), (0, 0), (-1, 2**63 - 1), (-(2**63), 0)])
def test_any_seed_fits(seed: int | None, said: int | None) -> None:
    assert vllm_sampling(Sampling(1, seed=seed), (), 1, ())["seed"] == said


def test_earlier_tokens_are_penalised_as_often_as_they_came() -> None:
    arguments = vllm_sampling(Sampling(9, frequency_penalty=0.5), [7, 8, 7, 7], 9, ())
    assert arguments["logit_bias"] == {7: -1.5, 8: -0.5}
    assert arguments["frequency_penalty"] == 0.5


def test_a_presence_penalty_on_a_continuation_is_refused_by_name() -> None:
    assert vllm_sampling(Sampling(9, presence_penalty=1.0), (), 9, ())["presence_penalty"] == 1.0
    with pytest.raises(Unsupported, match="presence_penalty") as refused:
        vllm_sampling(Sampling(9, presence_penalty=1.0), [7], 9, ())
    assert refused.value.param == "presence_penalty"

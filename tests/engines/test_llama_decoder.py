"""The agreement between the reader of a stream and the decode thread, interleaved by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from actors.engines.llama_decoder import Decoder, Job
from actors.engines.llama_sampler import Sampler
from serve_app.core.model import Sampling

AHEAD = 4


class RacingJob(Job):
    """While ``sent`` is read, the decode thread sends one more token, before or after the value is seen."""

    thread_first = True
    thread_sleeps = False

    @property
    def sent(self) -> int:
        seen = AHEAD if self.thread_first else AHEAD - 1
        self.thread_sleeps = AHEAD - self.taken >= AHEAD
        return seen

    @sent.setter
    def sent(self, value: int) -> None: ...


def decoder() -> Decoder:
    api = SimpleNamespace(
        llama_get_memory=lambda context: None,
        llama_get_model=lambda context: None,
        llama_model_get_vocab=lambda model: None,
        llama_vocab_n_tokens=lambda vocab: 10,
        llama_batch_init=lambda *sizes: None,
    )
    return Decoder(api, None, slots=1, n_batch=1, context_length=64, end_of_generation=frozenset())


@pytest.mark.parametrize("thread_first", [True, False])
def test_a_thread_that_reaches_its_bound_while_a_token_is_taken_does_not_sleep_on(thread_first: bool):
    job = RacingJob([1], Sampler(Sampling(max_tokens=9)), 9, may_reuse=False, park=0.0, emit=lambda output: None)
    job.thread_first = thread_first
    subject = decoder()
    subject.take(job)
    assert not job.thread_sleeps or not subject._inbox.empty()


@pytest.mark.parametrize(("sent", "wakes"), [(AHEAD, True), (AHEAD - 1, False), (1, False)])
def test_only_a_thread_at_its_bound_is_woken(sent: int, wakes: bool):
    job = Job([1], Sampler(Sampling(max_tokens=9)), 9, may_reuse=False, park=0.0, emit=lambda output: None, sent=sent)
    subject = decoder()
    subject.take(job)
    assert subject._inbox.empty() is not wakes

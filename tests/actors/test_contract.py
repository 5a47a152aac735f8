from __future__ import annotations

import pytest

from actors.contract import StreamContract
from serve_app.core.errors import EndpointFault
from serve_app.core.model import FinishReason, Receipt, StreamItem, TokenChunk

RECEIPT = Receipt(prompt_tokens=3)


def check(items: list[StreamItem], next_index: int = 0) -> StreamContract:
    contract = StreamContract(next_index)
    for item in items:
        contract.check(item)
    return contract


def test_a_sound_stream_passes() -> None:
    contract = check(
        [
            RECEIPT,
            TokenChunk(4, "a", (1,)),
            TokenChunk(5, "", (2,), open_tokens=1),
            TokenChunk(6, "", count=0, open_tokens=1),
            TokenChunk(6, "bc", (3, 4), count=2),
            TokenChunk(8, "", count=0, finish=FinishReason.STOP),
        ],
        next_index=4,
    )
    contract.close()
    assert contract.next_index == 8


@pytest.mark.parametrize(
    "items",
    [
        pytest.param([TokenChunk(0, "a")], id="no receipt"),
        pytest.param([RECEIPT, RECEIPT], id="two receipts"),
        pytest.param([RECEIPT, TokenChunk(1, "a")], id="gap"),
        pytest.param([RECEIPT, TokenChunk(0, "a"), TokenChunk(0, "a")], id="repetition"),
        pytest.param([RECEIPT, TokenChunk(0, "a", (1, 2))], id="more ids than tokens"),
        pytest.param([RECEIPT, TokenChunk(0, "a", count=0)], id="text without a token"),
        pytest.param([RECEIPT, TokenChunk(0, "a", count=-1)], id="negative count"),
    ],
)
def test_every_breach_is_a_fault(items: list[StreamItem]) -> None:
    with pytest.raises(EndpointFault):
        check(items)


def test_an_end_without_a_reason_is_a_fault() -> None:
    with pytest.raises(EndpointFault):
        check([RECEIPT, TokenChunk(0, "a")]).close()

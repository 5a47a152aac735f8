from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.contract import StreamContract
from actors.engines.openai_http_answer import Answer, Seam, WholeCharacters
from actors.engines.openai_http_chunks import Piece, ServerUsage
from serve_app.core.errors import EndpointFault
from serve_app.core.model import FinishReason, Receipt, TokenChunk

TEXTS = st.text(st.sampled_from("ab é漢👩\U0001f467"), max_size=12)


def utf16_units(text: str) -> list[str]:
    """What JSON's escapes can cut a text into."""
    raw = text.encode("utf-16-le")
    return [raw[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(raw), 2)]


def pieces_of(parts: list[str], cuts: list[bool]) -> list[str]:
    found = [""]
    for part, cut in zip(parts, cuts, strict=True):
        if cut:
            found.append("")
        found[-1] += part
    return found


@given(TEXTS, st.data())
def test_characters_come_out_whole_however_they_were_cut(text: str, data: st.DataObject) -> None:
    units = utf16_units(text)
    whole = WholeCharacters()
    out = []
    for piece in pieces_of(units, data.draw(st.lists(st.booleans(), min_size=len(units), max_size=len(units)))):
        out.append(whole.feed(piece))
        assert not any("\ud800" <= character <= "\udfff" for character in out[-1])
    assert whole.flush() == ""
    assert "".join(out) == text


@given(st.text(st.characters(categories=["Cs", "Ll", "So"]), max_size=8), st.integers(0, 8))
def test_no_half_of_a_character_gets_through(text: str, cut: int) -> None:
    whole = WholeCharacters()
    out = whole.feed(text[:cut]) + whole.feed(text[cut:]) + whole.flush()
    out.encode()


@given(TEXTS, st.text(st.sampled_from(" \n"), max_size=4), st.integers(0, 4), st.data())
def test_repeated_space_is_left_out_and_nothing_else(
    text: str, unsent: str, repeated: int, data: st.DataObject
) -> None:
    sent = unsent[:repeated] + text
    cuts = data.draw(st.lists(st.booleans(), min_size=len(sent), max_size=len(sent)))
    seam = Seam(unsent)
    out = "".join(seam.feed(piece) for piece in pieces_of(list(sent), cuts))
    assert out == Seam(unsent).feed(sent)
    assert sent.endswith(out)
    left_out = sent[: len(sent) - len(out)]
    assert unsent.startswith(left_out)
    assert left_out == unsent or not out or out[0] != unsent[len(left_out)]


PIECES = st.lists(
    st.builds(
        Piece,
        text=st.text(st.sampled_from(["a", "é", "\ud83d", "\ude00"]), max_size=2),
        reasoning=st.booleans(),
        usage=st.none() | st.builds(ServerUsage, st.none() | st.integers(0, 9), st.none() | st.integers(0, 40)),
    ),
    max_size=12,
)


@given(PIECES, st.integers(1, 12), st.integers(0, 5), st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
def test_whatever_comes_the_contract_holds_and_no_text_is_lost(
    pieces: list[Piece], max_tokens: int, index: int, finish: FinishReason
) -> None:
    answer, contract = Answer(index, max_tokens, exact=False), StreamContract(index)
    contract.check(Receipt(None))
    fed = [answer.feed(piece) for piece in [*pieces, Piece(finish=finish)]]
    chunks = [chunk for chunk in fed if chunk is not None] + [answer.end()]
    for chunk in chunks:
        contract.check(chunk)
    contract.close()
    counts = [chunk.count for chunk in chunks]
    assert sum(counts) <= max_tokens
    assert all(chunk.count for chunk in chunks if chunk.text)
    whole = WholeCharacters()
    assert "".join(chunk.text for chunk in chunks) == "".join(whole.feed(p.text) for p in pieces) + whole.flush()
    totals = [p.usage.completion_tokens or 0 for p in pieces if p.usage]
    assert sum(counts) >= min(max_tokens, max([sum(bool(p.text) for p in pieces) and 1, *totals]))


def test_ids_and_text_have_to_come_together() -> None:
    with pytest.raises(EndpointFault, match="without its token ids"):
        Answer(0, 5, exact=True).feed(Piece("a"))


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (Piece("", (2,), finish=FinishReason.STOP), ()),
        (Piece("b", (1, 2), finish=FinishReason.STOP), (1,)),
        (Piece("b", (1,), finish=FinishReason.STOP), (1,)),
        (Piece("", (), finish=FinishReason.STOP), ()),
        (Piece("b", (1,), finish=FinishReason.LENGTH), (1,)),
    ],
)
def test_the_token_that_ends_an_answer_is_none_of_it(last: Piece, expected: tuple[int, ...]) -> None:
    answer = Answer(0, 5, exact=True)
    first = answer.feed(Piece("a", (0,)))
    second = answer.feed(last)
    assert first is not None
    assert (second.token_ids if second else ()) == expected
    assert answer.end() == TokenChunk(1 + len(expected), "", count=0, finish=last.finish)

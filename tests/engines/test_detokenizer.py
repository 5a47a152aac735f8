"""Any bytes, cut into any tokens and handed over anywhere, come out as the same text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from actors.engines.detokenizer import Detokenizer
from serve_app.core.buffer import TokenBuffer
from serve_app.core.model import TokenChunk


class Pieces:
    """A vocabulary whose id is the piece's place in the text."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def piece(self, token: int) -> bytes:
        return self._pieces[token]


@st.composite
def cut_up(draw: st.DrawFn, data: st.SearchStrategy[bytes]) -> tuple[bytes, list[bytes], int]:
    """Bytes, the pieces they were cut into, some of them empty as control tokens are, and how many come first."""
    whole = draw(data)
    places = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    pieces = [whole[start:end] for start, end in pairwise([0, *places, len(whole)])]
    return whole, pieces, draw(st.integers(0, len(pieces)))


TEXT = st.text().map(str.encode)
BROKEN = st.lists(st.sampled_from([b"\xf0\x9f", b"\x99\x82", b"\xe2", b" ", "é".encode(), b"\xff"])).map(b"".join)


def accept(buffer: TokenBuffer, detokenizer: Detokenizer, tokens: range, start: int) -> None:
    for index, token in enumerate(tokens, start):
        text = detokenizer.push(token)
        buffer.accept(TokenChunk(index, text, (token,), open_tokens=detokenizer.open_tokens), "v", 0.0)


@given(cut_up(TEXT | BROKEN))
def test_by_ids_the_seam_is_invisible(case: tuple[bytes, list[bytes], int]) -> None:
    _, pieces, cut = case
    vocabulary, buffer = Pieces(pieces), TokenBuffer(None)
    accept(buffer, Detokenizer(vocabulary), range(cut), 0)
    ids = buffer.handoff("v").token_ids if cut else ()
    assert ids == tuple(range(cut))
    rest = Detokenizer(vocabulary, ids)
    assert rest.open_tokens == buffer.open_tokens
    accept(buffer, rest, range(cut, len(pieces)), cut)
    one = Detokenizer(vocabulary)
    assert buffer.handoff(None).text == "".join(map(one.push, range(len(pieces))))


@given(cut_up(TEXT))
def test_by_text_the_rest_begins_where_the_last_whole_character_ended(case: tuple[bytes, list[bytes], int]) -> None:
    whole, pieces, cut = case
    buffer = TokenBuffer(None)
    accept(buffer, Detokenizer(Pieces(pieces)), range(cut), 0)
    handoff = buffer.handoff(None)
    buffer.roll_back()
    assert buffer.accepted == handoff.next_index
    spelt = b"".join(pieces[:cut])
    written = handoff.text.encode()
    assert spelt.startswith(written)
    assert len(spelt) - len(written) < 4
    rest = whole[len(written) :]
    accept(buffer, Detokenizer(Pieces([rest])), range(1), handoff.next_index)
    assert buffer.handoff(None).text.encode() == whole


@given(cut_up(TEXT))
def test_tokens_are_open_from_the_first_byte_on_that_is_not_shown(case: tuple[bytes, list[bytes], int]) -> None:
    _, pieces, _ = case
    detokenizer, shown = Detokenizer(Pieces(pieces)), 0
    for last in range(len(pieces)):
        shown += len(detokenizer.push(last).encode())
        first_open = last + 1 - detokenizer.open_tokens
        assert len(b"".join(pieces[:first_open])) <= shown
        assert detokenizer.open_tokens == 0 or len(b"".join(pieces[: first_open + 1])) > shown


@given(cut_up(TEXT))
def test_ids_that_outlive_a_roll_back_spell_the_text(case: tuple[bytes, list[bytes], int]) -> None:
    _, pieces, cut = case
    vocabulary, buffer = Pieces(pieces), TokenBuffer(None)
    accept(buffer, Detokenizer(vocabulary), range(cut), 0)
    buffer.roll_back()
    handoff = buffer.handoff("v")
    if handoff.token_ids:
        assert b"".join(map(vocabulary.piece, handoff.token_ids)).decode() == handoff.text

"""From the pieces of a server's stream to this project's chunks: whole characters, indices without gap, one finish."""

from __future__ import annotations

from typing import Final

from actors.engines.openai_http_chunks import Piece
from serve_app.core.errors import EndpointFault
from serve_app.core.model import FinishReason, TokenChunk

#: Pieces beyond ``max_tokens`` that are put down to a token sent in several pieces, before the server is cut off.
_PATIENCE: Final = 16


class WholeCharacters:
    """Joins the halves of characters beyond U+FFFF that a server cut between two events; half of one is U+FFFD."""

    def __init__(self) -> None:
        self._held = ""

    @property
    def pending(self) -> bool:
        return bool(self._held)

    def feed(self, text: str) -> str:
        text = self._held + text
        cut = len(text) - 1 if text and "\ud800" <= text[-1] <= "\udbff" else len(text)
        self._held = text[cut:]
        return _paired(text[:cut])

    def flush(self) -> str:
        rest, self._held = self._held, ""
        return _paired(rest)


class Seam:
    """White space that ended the answer so far and was not sent: what the server repeats of it is left out."""

    def __init__(self, unsent: str) -> None:
        self._left = unsent

    def feed(self, text: str) -> str:
        same = 0
        while same < min(len(text), len(self._left)) and text[same] == self._left[same]:
            same += 1
        # The first character that differs ends the repetition.
        self._left = self._left[same:] if same == len(text) else ""
        return text[same:]


class Answer:
    """``max_tokens`` bounds the leg. ``exact``: pieces bring token ids, so that counts are not a guess.

    Without ids a piece with text counts as one token, or as the server's running usage says. The last allowed token is
    kept until the server ends the answer, for a token may come in two pieces and no text may be lost. Tokens of which
    only the final usage tells, such as reasoning, are counted at the end.
    """

    def __init__(self, index: int, max_tokens: int, *, exact: bool, share_ids: bool = True, unsent: str = "") -> None:
        self.started = False
        self.finish: FinishReason | None = None
        self.prompt_tokens: int | None = None
        self._index = index
        self._left = max_tokens
        self._exact = exact
        self._share_ids = share_ids
        self._characters = WholeCharacters()
        self._seam = Seam(unsent)
        self._open = 0
        self._kept = ""
        self._beyond = 0
        self._counted = 0
        self._total = 0

    @property
    def overrun(self) -> bool:
        """The server goes on and on beyond ``max_tokens``."""
        return self._beyond > _PATIENCE

    def feed(self, piece: Piece) -> TokenChunk | None:
        """None where the piece brings no token that may go out yet. Raises ``EndpointFault``."""
        self.started = self.started or piece.generated
        self.finish = piece.finish or self.finish
        if piece.usage is not None:
            self._total = max(self._total, piece.usage.completion_tokens or 0)
            self.prompt_tokens = piece.usage.prompt_tokens or self.prompt_tokens
        if self._exact:
            return self._by_ids(piece)
        return self._by_text(piece) if piece.text else None

    def end(self) -> TokenChunk:
        """The last chunk. Raises ``EndpointFault`` where the server did not say why it stopped."""
        if self.finish is None and self.overrun:
            self.finish = FinishReason.LENGTH
        if self.finish is None:
            what = "in the middle of the answer" if self.started else "before the first token"
            raise EndpointFault(f"the server's stream ended {what}, without a finish_reason")
        text = self._kept + self._seam.feed(self._characters.flush())
        count = 0 if self._exact else min(self._left, max(self._total - self._counted, 1 if text else 0))
        return TokenChunk(self._index, text if count else "", count=count, open_tokens=0, finish=self.finish)

    def _by_ids(self, piece: Piece) -> TokenChunk | None:
        ids = piece.token_ids or ()
        if piece.text and not ids:
            raise EndpointFault("the server sent text without its token ids")
        if piece.finish is FinishReason.STOP and (len(ids) > 1 or not piece.text):
            # The last one ended the answer and is none of it. A token with text is no such token.
            ids = ids[:-1]
        if not ids:
            return None
        self._open = 0 if piece.text else self._open + len(ids)
        text = self._characters.feed(piece.text)
        return self._chunk(text, len(ids), ids if self._share_ids else ())

    def _by_text(self, piece: Piece) -> TokenChunk | None:
        count = max(1, self._total - self._counted)
        text = self._seam.feed(self._characters.feed(piece.text))
        if count >= self._left:
            self._kept += text
            self._beyond += 1
            return None
        self._open = 1 if self._characters.pending else 0
        return self._chunk(text, count, ())

    def _chunk(self, text: str, count: int, ids: tuple[int, ...]) -> TokenChunk:
        chunk = TokenChunk(self._index, text, ids, count, self._open)
        self._index += count
        self._left -= count
        self._counted += count
        return chunk


def _paired(text: str) -> str:
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

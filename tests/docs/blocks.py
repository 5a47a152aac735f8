"""What the documents say that can be tried: fenced blocks, commands in them, commands in the text, and links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)\s*\n(?P<text>.*?)^(?P=indent)```\s*$", re.DOTALL | re.MULTILINE
)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*?) *#*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """``words``: without variables in front and redirections behind. ``text``: the line it stands in."""

    where: str
    words: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.where} {' '.join(self.words)[:50]}"


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks() -> list[Block]:
    found = []
    for path in pages():
        text, name = path.read_text("utf-8"), path.relative_to(ROOT).as_posix()
        for match in _FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(name, line, match["language"], match["text"]))
    return found


def prose(path: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", path.read_text("utf-8"))


def commands(block: Block) -> Iterator[Command]:
    """Of a shell's block; of a session, what follows a prompt."""
    for line in _lines(re.sub(r"\\\n\s*", " ", block.text), session=block.language == "console"):
        for words in _split(line):
            yield Command(str(block), words, line)


def _lines(text: str, *, session: bool) -> Iterator[str]:
    """Logical ones: a quotation goes on over the ends of lines."""
    begun = ""
    for line in text.splitlines():
        if not begun and session and not line.startswith("$ "):
            continue
        begun = f"{begun}\n{line}" if begun else line.removeprefix("$ ") if session else line
        try:
            shlex.split(begun, comments=True)
        except ValueError:
            continue
        yield begun
        begun = ""
    assert not begun, f"a quotation is not closed: {begun}"


def _split(line: str) -> Iterator[tuple[str, ...]]:
    """The simple commands of a line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set(";|&()"):
            if simple := tuple(_simple(words)):
                yield simple
            words = []
        else:
            words.append(word)


def _simple(words: Sequence[str]) -> Iterator[str]:
    begun, skip = False, False
    for word in words:
        if skip:
            skip = False
        elif set(word) <= set("<>"):
            skip = True
        elif begun or not re.fullmatch(r"[A-Z_][A-Z0-9_]*=.*", word):
            begun = True
            yield word


def mentioned(path: Path, program: str) -> list[tuple[str, ...]]:
    """Commands of ``program`` in a page's text."""
    spans = (match[1] for match in _CODE.finditer(prose(path)))
    return [tuple(span.split()) for span in spans if span.startswith(f"{program} ")]


def links(path: Path) -> list[str]:
    return [match[1] for match in _LINK.finditer(prose(path))]


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings, doubles numbered."""
    found: dict[str, int] = {}
    for match in _HEADING.finditer(prose(path)):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1])
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        count = found.get(slug)
        found[slug] = 0 if count is None else count + 1
        if count is not None:
            found[f"{slug}-{count + 1}"] = 0
    return set(found)

"""The trained context from the header of a GGUF file, and what is no such header."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.engines.gguf import beyond_training, trained_context
from tests.support.gguf import ARCHITECTURE, ARRAY, STRING, UINT32, context, header, pair, text

#: One value of every type, as a tokenizer's keys have them.
OTHERS = (
    pair("general.name", STRING, text("a model")),
    *(pair(f"scalar.{kind}", kind, bytes(size)) for kind, size in enumerate((1, 1, 2, 2, 4, 4, 4, 1))),
    *(pair(f"scalar.{kind}", kind, bytes(8)) for kind in (10, 11, 12)),
    pair("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, 3) + text("a") + text("é") + text("")),
    pair("tokenizer.ggml.scores", ARRAY, struct.pack("<IQ3f", 6, 3, 1, 2, 3)),
    pair("tokenizer.ggml.merges", ARRAY, struct.pack("<IQ", STRING, 0)),
)


def read(path: Path, data: bytes) -> int | None:
    path.write_bytes(data)
    return trained_context(path)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "pairs",
    [
        (ARCHITECTURE, context(8192)),
        (context(8192), ARCHITECTURE),
        (*OTHERS, ARCHITECTURE, *OTHERS, context(8192), *OTHERS),
        (ARCHITECTURE, context(77, "clip"), context(8192)),
    ],
)
def test_the_architectures_own_context_is_found_wherever_it_stands(
    pairs: tuple[bytes, ...], version: int, tmp_path: Path
) -> None:
    assert read(tmp_path / "m.gguf", header(*pairs, version=version) + b"tensors") == 8192


@pytest.mark.parametrize(
    "pairs",
    [(), OTHERS, (ARCHITECTURE,), (context(5),), (ARCHITECTURE, pair("llama.context_length", STRING, text("5")))],
)
def test_a_header_that_does_not_say(pairs: tuple[bytes, ...], tmp_path: Path) -> None:
    assert read(tmp_path / "m.gguf", header(*pairs)) is None


BROKEN = {
    "nothing": b"",
    "another format": b"PK\x03\x04" + bytes(100),
    "a version of the future": header(ARCHITECTURE, context(5), version=9),
    "cut off": header(ARCHITECTURE, context(5))[:-3],
    "an endless name": header(struct.pack("<Q", 2**63) + b"x"),
    "an endless value": header(pair("a", STRING, struct.pack("<Q", 2**64 - 1)), ARCHITECTURE, context(5)),
    "an endless array": header(pair("a", ARRAY, struct.pack("<IQ", UINT32, 2**64 - 1)), ARCHITECTURE, context(5)),
    "an unknown type": header(pair("a", 99, b""), ARCHITECTURE, context(5)),
    "arrays of arrays": header(pair("a", ARRAY, struct.pack("<IQ", ARRAY, 2**60)), ARCHITECTURE, context(5)),
    "a name that is no text": header(pair("general.architecture", STRING, struct.pack("<Q", 1) + b"\xff")),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_what_is_no_such_file_is_named_with_the_remedy(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"engine\.model: broken\.gguf cannot be read .* give the path"):
        read(tmp_path / "broken.gguf", data)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(min_size=1, max_size=12), place=st.integers(0, 200))
def test_no_damage_does_worse_than_that(noise: bytes, place: int, tmp_path: Path) -> None:
    whole = header(*OTHERS, ARCHITECTURE, context(8192))
    place %= len(whole)
    try:
        found = read(tmp_path / "m.gguf", whole[:place] + noise + whole[place + len(noise) :])
    except ValueError:
        return
    assert found is None or isinstance(found, int)


@pytest.mark.parametrize(("asked", "fits"), [(64, True), (8192, True), (8193, False), (99_999_999, False)])
def test_more_than_the_training_is_told_with_the_remedy(asked: int, fits: bool) -> None:
    problem = beyond_training(asked, 8192)
    assert (problem is None) is fits
    if problem is not None:
        assert problem.startswith("engine.context_length: ")
        assert problem.endswith("set at most 8192")

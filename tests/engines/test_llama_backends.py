"""llama.cpp built for one processor, and built for many."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from actors.engines.llama_cpp import load_backends


class Ggml:
    """``inside``: backends that were linked in."""

    def __init__(self, inside: int) -> None:
        self.inside = inside
        self.loaded: list[bytes | None] = []
        self.ggml_backend_reg_count = self.Count(self)

    class Count:
        restype: Any = ctypes.c_int

        def __init__(self, ggml: Ggml) -> None:
            self._ggml = ggml

        def __call__(self) -> int:
            assert self.restype is ctypes.c_size_t
            return self._ggml.inside

    def ggml_backend_load_all_from_path(self, folder: ctypes.c_char_p) -> None:
        self.loaded.append(folder.value)


@pytest.mark.parametrize(("inside", "loaded"), [(0, [b"/opt/lib"]), (1, []), (2, [])])
def test_only_a_build_without_a_backend_looks_for_one_and_only_beside_the_library(
    inside: int, loaded: list[bytes]
) -> None:
    ggml = Ggml(inside)
    load_backends(ggml, Path("/opt/lib"))
    assert ggml.loaded == loaded


def test_the_installed_library_has_these_functions() -> None:
    pytest.importorskip("llama_cpp", reason="the extra `llama` is not installed")
    from llama_cpp import _ggml

    load_backends(_ggml.libggml, Path(_ggml.libggml_base_path))
    assert _ggml.libggml.ggml_backend_reg_count() > 0
    assert _ggml.libggml.ggml_backend_load_all_from_path

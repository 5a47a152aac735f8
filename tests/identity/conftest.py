from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-cuts", action="store_true", help="every cut 1..64 of five prompts (about half an hour)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    everything = metafunc.config.getoption("--all-cuts", default=False)
    if "cut" in metafunc.fixturenames:
        metafunc.parametrize("cut", range(1, 65) if everything else (1, 2, 3, 7, 12, 20, 33, 48))
    if "prompt_name" in metafunc.fixturenames:
        names = ("story", "emoji", "cjk", "accents", "list") if everything else ("story", "emoji")
        metafunc.parametrize("prompt_name", names)

"""A headless Chromium, and pages in it that must neither complain nor ask anybody else for anything."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Request

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REMEDY = "install one, for instance with `apt-get install chromium` or `.venv/bin/playwright install chromium`"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", type=Path, help="the folder that the pictures for the documents are written to")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here: run `make test-browser`")
    with playwright.sync_playwright() as running:
        found = next((path for path in map(shutil.which, NAMES) if path), None)
        if found is None and not Path(running.chromium.executable_path).exists():
            pytest.skip(f"no Chromium here: {REMEDY}")
        # Chromium's own sandbox does not work for root, nor in most containers.
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Seen:
    """What a page complained of, and whom it asked."""

    complaints: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def bodies(self, path: str) -> list[Any]:
        return [request.post_data_json for request in self.requests if request.url.endswith(path)]


@dataclass
class Visit:
    page: Page
    context: BrowserContext
    seen: Seen


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Callable[..., Visit]]:
    """Opens a URL in a context of its own. ``expected``: parts of complaints that belong to the test."""
    checks: list[tuple[Visit, str, tuple[str, ...]]] = []
    with ExitStack() as contexts:

        def open_page(url: str, *, expected: tuple[str, ...] = (), **options: Any) -> Visit:
            context = chromium.new_context(**options)
            contexts.callback(context.close)
            page, seen = context.new_page(), Seen()
            page.on("console", lambda m: seen.complaints.append(m.text) if m.type in {"error", "warning"} else None)
            page.on("pageerror", lambda error: seen.complaints.append(str(error)))
            page.on("request", lambda request: seen.requests.append(request))
            opened = Visit(page, context, seen)
            checks.append((opened, url, expected))
            page.goto(url)
            return opened

        yield open_page
        for opened, url, expected in checks:
            origin = url.partition("#")[0].rstrip("/")
            assert all(request.url.startswith(origin) for request in opened.seen.requests)
            assert not [text for text in opened.seen.complaints if not any(part in text for part in expected)]


def until(condition: Callable[[], bool], patience: float = 30.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.05)

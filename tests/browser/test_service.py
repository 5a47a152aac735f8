"""The page of a whole service: `disco up`, Ray Serve, its proxy."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import Visit
from tests.browser.support import ask, finished, written
from tests.cli.processes import DISCO, started, wait_until_ready

pytestmark = [pytest.mark.browser, pytest.mark.ray]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.timeout(300)
def test_the_page_of_disco_up(visit: Callable[..., Visit]) -> None:
    from playwright.sync_api import expect

    port = free_port()
    with started("-c", DISCO, "up", "simulated", "--port", str(port)) as process:
        wait_until_ready(process)
        page = visit(f"http://127.0.0.1:{port}/").page
        expect(page.locator("#state")).to_have_text("cloudphone")
        ask(page, tokens=120)
        expect(page.locator("#timeline .prefill")).to_have_count(2)
        finished(page)
        assert written(page)
        expect(page.locator("#report .leg").first).to_be_visible()
        page.get_by_role("link", name="Live").click()
        expect(page.locator("#endpoints tbody tr")).to_have_count(2)
        page.get_by_label("Budget b").fill("0.7")
        page.get_by_role("button", name="Apply").click()
        expect(page.locator("#policy-state")).to_have_text("In force for new requests.")
        policy: dict[str, Any] = page.request.get(f"http://127.0.0.1:{port}/disco/policy").json()
        assert policy["policy"]["budget"] == 0.7
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0

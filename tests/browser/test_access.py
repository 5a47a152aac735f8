"""Keys, the live view, the keyboard, narrow screens, and what axe says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from serve_app.keys import new_key, sha256_of
from tests.browser.conftest import Visit, until
from tests.browser.support import ARGS, LIVE, ask, finished, written
from tests.support.local_http import local_http

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

Open = Callable[..., Visit]
ALICE, OPERATOR = new_key(), new_key()
KEYS = {
    "alice": {"sha256": sha256_of(ALICE.encode())},
    "operator": {"sha256": sha256_of(OPERATOR.encode()), "scope": "operator"},
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with local_http(ARGS, LIVE) as url:
        yield url


@pytest.fixture
def keyed() -> Iterator[str]:
    with local_http(ARGS | {"access": {"keys": KEYS}}, LIVE) as url:
        yield url


def expect(thing: Any) -> Any:
    from playwright.sync_api import expect

    return expect(thing)


def test_with_keys_it_asks_for_one_and_forgets_it_with_the_tab(keyed: str, visit: Open) -> None:
    opened = visit(keyed, expected=("401 (Unauthorized)",))
    page = opened.page
    expect(page.get_by_role("alert")).to_contain_text("an API key is needed")
    field = page.locator("#key")
    expect(field).to_be_focused()
    field.fill("sk-disco-wrong")
    field.press("Tab")
    expect(page.get_by_role("alert")).to_contain_text("not known here")
    field.fill(ALICE)
    field.press("Tab")
    expect(page.get_by_label("Model")).to_have_value("disco")
    expect(page.get_by_role("alert")).to_have_count(0)
    ask(page, tokens=4)
    finished(page)
    assert written(page)
    stored = page.evaluate("() => [JSON.stringify(localStorage), document.cookie, location.href]")
    assert not any(ALICE in place for place in stored)
    again = opened.context.new_page()
    again.goto(keyed)
    expect(again.locator("#key")).to_have_value("")


def test_the_live_view_is_for_the_operator(keyed: str, visit: Open) -> None:
    page = visit(f"{keyed}/#live", expected=("401 (Unauthorized)", "403 (Forbidden)")).page
    page.get_by_label("scope operator").fill(ALICE)
    page.get_by_role("button", name="Look").click()
    expect(page.get_by_role("alert")).to_contain_text("opens /v1, and nothing else")
    page.get_by_label("scope operator").fill(OPERATOR)
    page.get_by_role("button", name="Look").click()
    expect(page.get_by_role("heading", name="Budget")).to_be_visible()
    expect(page.locator("#endpoints tbody tr")).to_have_count(2)


def test_the_live_view_shows_streams_while_they_run_and_what_they_came_to(url: str, visit: Open) -> None:
    page = visit(url).page
    ask(page, tokens=300)
    page.get_by_role("link", name="Live").click()
    expect(page.locator("#streams-title")).to_have_text("Running streams: 1")
    expect(page.locator("#streams tbody")).to_contain_text("decode")
    expect(page.locator("#streams-title")).to_have_text("Running streams: 0", timeout=30_000)
    expect(page.locator("#ttft .curve")).to_have_count(2)
    expect(page.locator("#plans .curve")).to_have_count(2)
    expect(page.get_by_role("meter")).to_be_visible()
    expect(page.locator("#cost")).to_contain_text("than devices only")
    page.get_by_role("link", name="Playground").click()
    finished(page)


def looks(opened: Visit) -> int:
    return sum(request.url.endswith("/disco/live") for request in opened.seen.requests)


def test_it_looks_no_more_when_nobody_does(url: str, visit: Open) -> None:
    opened = visit(f"{url}/#live")
    page = opened.page
    page.clock.install()
    page.reload()
    expect(page.get_by_role("heading", name="Budget")).to_be_visible()
    seen = looks(opened)
    page.clock.run_for(1000)
    until(lambda: bool(page.clock.run_for(100) or looks(opened) > seen))
    page.get_by_role("link", name="Playground").click()
    expect(page.get_by_label("Prompt", exact=True)).to_be_visible()
    seen = looks(opened)
    page.clock.run_for(60_000)
    page.evaluate("() => fetch('ready')")
    assert looks(opened) == seen


def test_the_operator_changes_the_policy_for_new_requests(visit: Open) -> None:
    with local_http(ARGS, LIVE) as url:
        page = visit(f"{url}/#live").page
        budget = page.get_by_label("Budget b")
        expect(budget).to_have_value("1")
        budget.fill("0.25")
        page.get_by_label("Migration").select_option("off")
        page.get_by_role("button", name="Apply").click()
        expect(page.locator("#policy-state")).to_have_text("In force for new requests.")
        policy = httpx.get(f"{url}/disco/policy").json()
        assert (policy["policy"]["budget"], policy["migration"]["mode"]) == (0.25, "off")
        expect(page.locator("#budget")).to_contain_text("25 %")


def test_a_policy_that_cannot_be_is_said_to_be_refused(url: str, visit: Open) -> None:
    page = visit(f"{url}/#live", expected=("400 (Bad Request)",)).page
    expect(page.get_by_label("Budget b")).to_have_value("1")
    rate = page.get_by_label("tokens/s (empty: unknown)")
    rate.evaluate("it => it.removeAttribute('max')")
    rate.fill("900")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#policy-state")).to_contain_text("Not applied: reader.consumption_rate")


def test_the_keyboard_reaches_everything_in_order(url: str, visit: Open) -> None:
    page = visit(url).page
    expect(page.get_by_label("Model")).to_have_value("disco")
    reached = []
    for _ in range(24):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("() => document.activeElement.id || document.activeElement.className"))
    order = ["skip", "to-playground", "to-live", "theme", "prompt", "send", "answer", "model", "max-tokens", "migrate"]
    places = [reached.index(name) for name in order]
    assert places == sorted(places)
    page.keyboard.press("Control+Home")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()


def test_a_theme_that_was_chosen_stays(url: str, visit: Open) -> None:
    page = visit(url, color_scheme="light").page
    back = lambda: page.evaluate("() => getComputedStyle(document.body).backgroundColor")  # noqa: E731
    light = back()
    page.get_by_role("button", name="Theme").click()
    page.get_by_role("button", name="Theme").click()
    expect(page.get_by_role("button", name="Theme")).to_have_text("Theme: dark")
    dark = back()
    assert dark != light
    page.reload()
    assert back() == dark


def overflow(page: Page) -> int:
    return int(page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth"))


def test_nothing_is_wider_than_a_phone(url: str, visit: Open) -> None:
    page = visit(url, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True).page
    assert overflow(page) <= 0
    ask(page, tokens=80)
    expect(page.locator("#answer .seam")).to_be_visible()
    assert overflow(page) <= 0
    finished(page)
    assert overflow(page) <= 0
    page.get_by_role("link", name="Live").click()
    expect(page.get_by_role("heading", name="Budget")).to_be_visible()
    assert overflow(page) <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(url: str, visit: Open, scheme: str) -> None:
    sync = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = visit(url, color_scheme=scheme).page
    ask(page, tokens=80)
    expect(page.locator("#answer .seam")).to_be_visible()
    judge(sync, page)
    finished(page)
    page.get_by_text("What happened, in words").click()
    page.get_by_text("API key", exact=True).click()
    judge(sync, page)
    page.get_by_role("link", name="Live").click()
    expect(page.get_by_role("heading", name="Budget")).to_be_visible()
    judge(sync, page)


def judge(sync: Any, page: Page) -> None:
    found = sync.Axe().run(page).response["violations"]
    assert not [(one["id"], one["impact"], [node["html"][:120] for node in one["nodes"]]) for one in found]

"""The page's files: who gets them, with which headers, and the routes that only the operator may use."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from serve_app.keys import new_key, sha256_of
from serve_app.page import WEB
from tests.http.fakes import CANARY, FakeService, serving

ALICE, SCRAPER, OPERATOR, STRANGER = (new_key() for _ in range(4))
KEYS: dict[str, Any] = {
    "alice": {"sha256": sha256_of(ALICE.encode())},
    "scraper": {"sha256": sha256_of(SCRAPER.encode()), "scope": "metrics"},
    "operator": {"sha256": sha256_of(OPERATOR.encode()), "scope": "operator"},
}
FILES = sorted(path.name for path in Path(str(WEB)).iterdir())
DOORS = ("/", "/page/main.mjs", "/disco/live", "/disco/policy")
OPERATORS = [("GET", "/disco/live"), ("GET", "/disco/policy"), ("PATCH", "/disco/policy")]


def paths() -> list[str]:
    return ["/", *(f"/page/{name}" for name in FILES if name != "index.html")]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_every_file_comes_with_its_type_and_headers_that_allow_nothing_from_elsewhere() -> None:
    async def scenario() -> None:
        async with serving() as server:
            for path in paths():
                response = await server.client.get(path)
                assert response.status_code == 200, path
                assert response.headers["x-content-type-options"] == "nosniff"
                assert response.headers["referrer-policy"] == "no-referrer"
                assert response.headers["cross-origin-resource-policy"] == "same-origin"
                directives = dict(
                    part.split(" ", 1) for part in response.headers["content-security-policy"].split("; ")
                )
                assert directives["default-src"] == "'none'"
                assert directives["frame-ancestors"] == "'none'"
                assert {directives[f"{kind}-src"] for kind in ("script", "style", "img", "connect")} == {"'self'"}
                assert "unsafe" not in response.headers["content-security-policy"]
            script = await server.client.get("/page/main.mjs")
            assert script.headers["content-type"].startswith("text/javascript")
            assert (await server.client.get("/")).headers["content-type"] == "text/html; charset=utf-8"

    asyncio.run(scenario())


def test_a_file_that_has_not_changed_is_not_sent_again() -> None:
    async def scenario() -> None:
        async with serving() as server:
            tag = (await server.client.get("/")).headers["etag"]
            again = await server.client.get("/", headers={"if-none-match": tag})
            assert (again.status_code, again.content) == (304, b"")
            assert "content-security-policy" in again.headers
            assert (await server.client.get("/", headers={"if-none-match": '"other"'})).status_code == 200

    asyncio.run(scenario())


def test_nothing_else_is_a_file() -> None:
    async def scenario() -> None:
        async with serving() as server:
            for path in (
                "/page/index.html",
                "/page/",
                "/page/../page.py",
                "/page/%2e%2e/page.py",
                "/page/none.js",
                "/web/main.js",
            ):
                assert (await server.client.get(path)).status_code == 404, path
            assert (await server.client.post("/")).status_code == 405

    asyncio.run(scenario())


def test_the_page_can_be_turned_off() -> None:
    async def scenario() -> None:
        async with serving(access={"page": False}) as server:
            assert {(await server.client.get(path)).status_code for path in paths()} == {404}
            assert (await server.client.get("/disco/live")).status_code == 200

    asyncio.run(scenario())


def test_without_keys_the_page_and_the_live_view_are_for_this_machine_alone() -> None:
    async def scenario() -> None:
        async with serving(host="0.0.0.0") as server:
            for path in DOORS:
                assert (await server.client.get(path)).status_code == 403, path
        async with serving() as server:
            for path in DOORS:
                assert (await server.client.get(path)).status_code == 200, path
                assert (await server.client.get(path, headers={"host": "evil.com"})).status_code == 403, path
                assert (await server.client.get(path, headers={"origin": "https://evil.com"})).status_code == 403, path
            for foreign in ({"host": "evil.com"}, {"origin": "https://evil.com"}, {"origin": "null"}):
                changed = await server.client.patch("/disco/policy", json={"regime": "auto"}, headers=foreign)
                assert changed.status_code == 403

    asyncio.run(scenario())


def test_where_everybody_may_use_the_service_nobody_is_its_operator() -> None:
    async def scenario() -> None:
        async with serving(host="0.0.0.0", access={"open": True}) as server:
            assert (await server.client.get("/", headers={"host": "box.lan"})).status_code == 200
            for method, path in OPERATORS:
                assert (await server.client.request(method, path, json={})).status_code == 403

    asyncio.run(scenario())


def test_with_keys_everybody_gets_the_page_and_the_operator_alone_what_is_behind_it() -> None:
    async def scenario() -> None:
        async with serving(host="0.0.0.0", access={"keys": KEYS}) as server:
            for path in paths():
                assert (await server.client.get(path, headers={"host": "box.lan"})).status_code == 200, path
            for method, path in OPERATORS:
                for key, status in ((None, 401), (STRANGER, 401), (ALICE, 403), (SCRAPER, 403), (OPERATOR, 200)):
                    headers = bearer(key) if key else {}
                    response = await server.client.request(method, path, json={}, headers=headers)
                    assert response.status_code == status, (path, key)

    asyncio.run(scenario())


def test_the_live_view_is_not_stored_and_not_taken_for_each_look() -> None:
    async def scenario() -> None:
        async with serving() as server:
            answers = [await server.client.get("/disco/live") for _ in range(20)]
            assert {answer.json()["replica"] for answer in answers} == {"r"}
            assert answers[0].headers["cache-control"] == "no-store"
            assert 1 <= server.service.snapshots < 20

    asyncio.run(scenario())


def test_a_changed_policy_holds_for_the_next_request() -> None:
    async def scenario() -> None:
        async with serving(FakeService()) as server:
            before = (await server.client.get("/disco/policy")).json()
            response = await server.client.patch("/disco/policy", json={"reader": {"consumption_rate": 12.5}})
            assert response.status_code == 200
            assert response.json() == before | {"reader": before["reader"] | {"consumption_rate": 12.5}}
            await server.ask()
            assert server.service.requests[0].consumption_rate == 12.5

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "empty"),
        (b"[]", 'JSON object with the request\'s fields, such as {"policy": {"budget": 0.3}}'),
        (b"{", "not valid JSON"),
        (b'{"policy": {"budget": "x"}}', "policy.budget"),
        (b'{"limits": {}}', "only regime"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(content: bytes, named: str) -> None:
    async def scenario() -> None:
        async with serving() as server:
            response = await server.client.patch("/disco/policy", content=content)
            assert response.status_code == 400
            assert named in response.json()["error"]["message"]

    asyncio.run(scenario())


class Broken(FakeService):
    def snapshot(self) -> dict[str, Any]:
        raise ValueError(CANARY)

    def retune(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        raise ValueError(str(changes))


@pytest.mark.parametrize(("method", "path"), [("GET", "/disco/live"), ("PATCH", "/disco/policy")])
def test_a_fault_of_the_router_is_logged_with_the_requests_id_and_without_its_text(
    method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(Broken()) as server:
            content, headers = json.dumps({"policy": CANARY}), {"x-request-id": "r-9"}
            response = await server.client.request(method, path, content=content, headers=headers)
            assert response.status_code == 500
            assert response.json()["error"]["code"] == "internal_error"
            assert CANARY not in response.text

    with caplog.at_level(logging.DEBUG):
        asyncio.run(scenario())
    (record,) = [record for record in caplog.records if record.name.startswith("serve_app")]
    assert "request r-9: ValueError" in record.getMessage()
    assert CANARY not in caplog.text


def test_the_page_asks_for_nothing_from_elsewhere_and_has_nothing_inline() -> None:
    for name in FILES:
        text = (Path(str(WEB)) / name).read_text()
        addresses = set(re.findall(r"(?:https?:)?//[a-z][a-z0-9.-]+\.[a-z]{2,}[^\s\"'`]*", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), name
    html = (Path(str(WEB)) / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script>", html)
    linked = set(re.findall(r'(?:src|href)="(page/[^"]+)"', html))
    assert {f"page/{name}" for name in FILES} >= linked

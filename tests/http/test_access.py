from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from serve_app.access_settings import AccessSettings
from serve_app.admission import Admission
from serve_app.auth import check_access, is_loopback
from serve_app.core import errors
from serve_app.core.errors import AccessDenied, DiscoError, Overloaded
from serve_app.errors_http import BodyTooLarge, BodyTooSlow, error_body, error_headers, status_of
from tests.http.fakes import CANARY
from tests.support.virtual_loop import run_virtual

CLOSED = AccessSettings()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", [None, "", "0.0.0.0", "::", "10.0.0.5", "127.0.0.1.evil.com", "my-laptop", "1"])
def test_anything_else_may_be_reached_from_elsewhere(host: str | None) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", [None, "0.0.0.0", "192.168.0.7"])
def test_without_keys_a_listener_beyond_loopback_serves_nobody_and_says_the_remedy(host: str | None) -> None:
    with pytest.raises(AccessDenied) as caught:
        check_access(CLOSED, host, "localhost")
    assert "http_options.host" in caught.value.message
    assert "access.open" in caught.value.message


@pytest.mark.parametrize("header", ["localhost", "LocalHost:8000", "127.0.0.1:8000", "[::1]:8000", "[::1]"])
def test_own_hosts_are_let_in(header: str) -> None:
    check_access(CLOSED, "127.0.0.1", header)


@pytest.mark.parametrize("header", [None, "", "evil.com", "evil.com:8000", "localhost.evil.com", "[::2]", "[", ":80"])
def test_foreign_hosts_are_refused(header: str | None) -> None:
    with pytest.raises(AccessDenied):
        check_access(CLOSED, "127.0.0.1", header)


@pytest.mark.parametrize("origin", [None, "http://localhost:3000", "https://127.0.0.1", "http://[::1]:8000"])
def test_own_pages_are_let_in(origin: str | None) -> None:
    check_access(CLOSED, "127.0.0.1", "localhost", origin)


@pytest.mark.parametrize("origin", ["null", "", "https://evil.com", "http://localhost.evil.com", "localhost"])
def test_foreign_pages_are_refused(origin: str) -> None:
    with pytest.raises(AccessDenied):
        check_access(CLOSED, "127.0.0.1", "localhost", origin)


def test_pages_of_an_allowed_origin_are_let_in_from_exactly_there() -> None:
    access = AccessSettings(allowed_origins=("https://chat.example",))
    check_access(access, "127.0.0.1", "localhost", "https://chat.example")
    for origin in ("http://chat.example", "https://chat.example:8443", "https://chat.example.evil.com", "null"):
        with pytest.raises(AccessDenied):
            check_access(access, "127.0.0.1", "localhost", origin)
    with pytest.raises(AccessDenied):
        check_access(access, "127.0.0.1", "evil.com", "https://chat.example")


@pytest.mark.parametrize(
    "origin", ["*", "null", "chat.example", "https://chat.example/", "https://*.example", "https://Chat.example", ""]
)
def test_an_origin_that_no_browser_would_send_cannot_be_allowed(origin: str) -> None:
    with pytest.raises(ValidationError, match="scheme and a host"):
        AccessSettings(allowed_origins=(origin,))


def test_open_means_open() -> None:
    check_access(AccessSettings(open=True), "0.0.0.0", "evil.com", "https://evil.com")


def test_configured_hosts_may_have_capitals() -> None:
    check_access(AccessSettings(allowed_hosts=("Box.LAN",)), "127.0.0.1", "box.lan:80")


def test_admission_counts_what_runs() -> None:
    async def main() -> None:
        admission = Admission(2)
        with admission.slot(), admission.slot():
            with pytest.raises(Overloaded), admission.slot():
                raise AssertionError("a third slot")
            assert admission.running == 2
        assert admission.running == 0

    run_virtual(main())


def test_a_slot_returns_when_its_stream_breaks() -> None:
    async def main() -> None:
        admission = Admission(1)
        with pytest.raises(RuntimeError), admission.slot():
            raise RuntimeError
        with admission.slot():
            pass

    run_virtual(main())


def test_who_is_turned_away_is_told_when_the_oldest_stream_should_end() -> None:
    async def main() -> None:
        admission = Admission(1)
        with admission.slot():
            await asyncio.sleep(30.0)
        with admission.slot():
            await asyncio.sleep(10.0)
            with pytest.raises(Overloaded) as refusal, admission.slot():
                raise AssertionError("a second slot")
        assert refusal.value.retry_after == pytest.approx(20.0)

    run_virtual(main())


@given(st.text(), st.none() | st.text())
def test_whatever_the_headers_say_the_answer_is_yes_or_denied(host: str, origin: str | None) -> None:
    with suppress(AccessDenied):
        check_access(CLOSED, "127.0.0.1", host, origin)
        assert host.lower().startswith(CLOSED.allowed_hosts)


# --- the error table ---

ERRORS: list[tuple[DiscoError, int, str, bool]] = [
    (errors.InvalidRequest("m", "p"), 400, "invalid_request_error", False),
    (errors.Unsupported("m", "p"), 400, "invalid_request_error", False),
    (errors.UnknownModel("m", "p"), 404, "invalid_request_error", False),
    (errors.UnknownDevice("m", "p"), 404, "invalid_request_error", False),
    (errors.PromptTooLong("m", "p"), 400, "invalid_request_error", False),
    (errors.AccessDenied("m"), 403, "permission_error", False),
    (errors.InvalidKey("m"), 401, "invalid_request_error", False),
    (errors.Overloaded("m"), 429, "rate_limit_error", True),
    (errors.RateLimited("m"), 429, "rate_limit_error", True),
    (errors.QuotaExceeded("m"), 429, "insufficient_quota", False),
    (errors.Draining("m"), 503, "server_error", True),
    (errors.EndpointError("m", "e"), 502, "server_error", True),
    (errors.EndpointUnavailable("m", "e"), 503, "server_error", True),
    (errors.EndpointTimeout("m", "e"), 504, "server_error", True),
    (errors.EndpointFault("m", "e"), 502, "server_error", True),
    (BodyTooLarge("m"), 413, "invalid_request_error", False),
    (BodyTooSlow("m"), 408, "invalid_request_error", True),
    (DiscoError("m"), 500, "server_error", False),
]


@pytest.mark.parametrize(("error", "status", "kind", "retryable"), ERRORS)
def test_every_error_has_its_status_and_openais_shape(
    error: DiscoError, status: int, kind: str, retryable: bool
) -> None:
    param = "p" if isinstance(error, errors.InvalidRequest) and len(error.args) > 1 and error.args[1] else None

    assert status_of(error) == status
    assert error_body(error) == {
        "error": {"message": "m", "type": kind, "param": param, "code": error.code, "retryable": retryable}
    }


def test_the_table_knows_the_whole_tree() -> None:
    def tree(kind: type[DiscoError]) -> set[type[DiscoError]]:
        return {kind}.union(*(tree(child) for child in kind.__subclasses__()))

    own = {kind for kind in tree(DiscoError) if kind.__module__.startswith("serve_app.")}
    assert {type(error) for error, *_ in ERRORS} == own


def test_an_unexpected_exception_tells_nothing_about_itself() -> None:
    assert status_of(ValueError(CANARY)) == 500
    assert CANARY not in str(error_body(ValueError(CANARY)))
    assert error_body(ValueError(CANARY))["error"]["code"] == "internal_error"


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (1.0, "1"), (2.1, "3")])
def test_retry_after_is_whole_seconds(seconds: float, header: str) -> None:
    assert error_headers(Overloaded("m", seconds)) == {"retry-after": header}
    assert error_headers(errors.Draining("m")) == {}


def test_a_client_without_a_key_is_told_that_one_is_wanted() -> None:
    assert error_headers(errors.InvalidKey("m")) == {"www-authenticate": 'Bearer realm="disco"'}
    assert error_headers(errors.AccessDenied("m")) == {}


def test_a_client_is_told_when_there_is_a_new_budget_and_not_to_ask_before() -> None:
    assert error_headers(errors.QuotaExceeded("m")) == {"x-should-retry": "false"}
    assert error_headers(errors.QuotaExceeded("m", 59.5)) == {"x-should-retry": "false", "retry-after": "60"}

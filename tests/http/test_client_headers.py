"""What clients send to be repeated in logs and spans."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.client_headers import request_id, trace_carrier

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("given_id", ["a", "Req-1.2_3", "x" * 64])
def test_a_harmless_request_id_is_kept(given_id: str) -> None:
    assert request_id(given_id) == given_id


@pytest.mark.parametrize("given_id", [None, "", "x" * 65, "a b", "a\nb", "-a", "é", "a;b", "a\n"])
def test_any_other_request_id_is_replaced(given_id: str | None) -> None:
    first, second = request_id(given_id), request_id(given_id)
    assert first != second
    assert request_id(first) == first


@pytest.mark.parametrize("state", ["a=b", "a=b, c@d=e f", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "k=" + "v" * 256])
def test_a_trace_context_is_passed_on_as_it_came(state: str) -> None:
    assert trace_carrier({"traceparent": PARENT}) == {"traceparent": PARENT}
    headers = {"traceparent": PARENT, "tracestate": state}
    assert trace_carrier(headers | {"baggage": "x=y"}) == headers


@pytest.mark.parametrize(
    "parent",
    [
        "", "nonsense", PARENT.upper(), PARENT + "-x", PARENT + "\n", "ff" + PARENT[2:], "0" * 600,
        "00-" + "0" * 32 + PARENT[35:], PARENT[:36] + "0" * 16 + "-01",
    ],
)  # fmt: skip
def test_a_broken_parent_takes_its_state_along(parent: str) -> None:
    assert trace_carrier({"traceparent": parent, "tracestate": "a=b"}) == {}


@pytest.mark.parametrize("more", ["", "-", "-of what is to come"])
def test_of_a_version_to_come_what_is_known_is_taken(more: str) -> None:
    assert trace_carrier({"traceparent": "01" + PARENT[2:] + more}) == {"traceparent": PARENT}
    assert trace_carrier({"traceparent": "01" + PARENT[2:] + "0"}) == {}


@pytest.mark.parametrize(
    "state", ["", "a", "=b", "A=b", "a=b=c", "a=é", "a=\x1b[31m", "a=b,", "a=b\n", "a=b,\tc=d", "a=" + "v" * 510]
)
def test_a_broken_state_is_left_out(state: str) -> None:
    assert trace_carrier({"traceparent": PARENT, "tracestate": state}) == {"traceparent": PARENT}


@given(st.text(), st.text())
def test_only_printable_ascii_of_bounded_length_gets_through(parent: str, state: str) -> None:
    for headers in ({"traceparent": parent, "tracestate": state}, {"traceparent": PARENT, "tracestate": state}):
        for value in trace_carrier(headers).values():
            assert re.fullmatch(r"[\x20-\x7e]{1,512}", value)

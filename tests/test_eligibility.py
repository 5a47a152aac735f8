from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.errors import AccessDenied, DiscoError, EndpointUnavailable, InvalidRequest
from serve_app.core.model import EndpointInfo, EndpointKind, Pin, Sampling, TextPrompt, TokenPrompt
from serve_app.eligibility import eligible_endpoints
from serve_app.streams import ClientRequest, Grant

SERVED = [
    EndpointInfo("cloud", EndpointKind.CLOUD, "m", 100, vocabulary="v"),
    EndpointInfo("other-cloud", EndpointKind.CLOUD, "m", 100, vocabulary="v"),
    EndpointInfo("phone", EndpointKind.DEVICE, "m", 100),
]
NAMES = [info.id for info in SERVED]
KIND = {Pin.DEVICE_ONLY: EndpointKind.DEVICE, Pin.CLOUD_ONLY: EndpointKind.CLOUD}
REQUEST = ClientRequest("r", "m", TextPrompt("Hi"), Sampling(10))


def names(request: ClientRequest, served: list[EndpointInfo] = SERVED) -> list[str]:
    return [info.id for info in eligible_endpoints(request, served)]


def grant(pin: Pin | None = None, *endpoints: str) -> Grant:
    return Grant("alice", pin, endpoints)


@pytest.mark.parametrize(
    ("granted", "left"),
    [
        (Grant(), NAMES),
        (grant(), NAMES),
        (grant(Pin.CLOUD_ONLY), ["cloud", "other-cloud"]),
        (grant(None, "phone", "cloud"), ["cloud", "phone"]),
        (grant(Pin.CLOUD_ONLY, "phone", "cloud"), ["cloud"]),
        (grant(None, "phone", "of another model"), ["phone"]),
    ],
)
def test_a_request_without_wishes_gets_what_the_key_allows(granted: Grant, left: list[str]) -> None:
    assert names(replace(REQUEST, grant=granted)) == left


@pytest.mark.parametrize(
    ("pin", "endpoints", "left"),
    [
        (Pin.DEVICE_ONLY, (), ["phone"]),
        (Pin.CLOUD_ONLY, (), ["cloud"]),
        (None, ("phone",), ["phone"]),
        (Pin.CLOUD_ONLY, ("cloud", "cloud"), ["cloud"]),
    ],
)
def test_a_request_may_narrow_what_the_key_allows(pin: Pin | None, endpoints: tuple[str, ...], left: list[str]) -> None:
    request = replace(REQUEST, pin=pin, endpoints=endpoints, grant=grant(None, "cloud", "phone"))
    assert names(request) == left


@pytest.mark.parametrize(
    ("granted", "wishes", "blamed"),
    [
        (grant(Pin.DEVICE_ONLY), {"pin": Pin.CLOUD_ONLY}, "disco.pin"),
        (grant(None, "cloud"), {"pin": Pin.DEVICE_ONLY}, "disco.pin"),
        (grant(Pin.DEVICE_ONLY), {"endpoints": ("cloud",)}, "disco.endpoints"),
        (grant(None, "phone"), {"endpoints": ("phone", "cloud")}, "disco.endpoints"),
        (grant(), {"endpoints": ("nobody",)}, "disco.endpoints"),
    ],
)
def test_a_request_that_would_widen_it_is_denied_and_told_what_the_key_allows(
    granted: Grant, wishes: dict[str, object], blamed: str
) -> None:
    request = replace(REQUEST, grant=granted, **wishes)
    with pytest.raises(AccessDenied) as denied:
        names(request)
    assert blamed in denied.value.message
    for allowed in names(replace(REQUEST, grant=granted)):
        assert allowed in denied.value.message
    assert "nobody" not in denied.value.message


def test_a_key_without_an_endpoint_of_the_model_is_denied_the_model() -> None:
    with pytest.raises(AccessDenied, match="another model"):
        names(replace(REQUEST, grant=grant(None, "phone")), SERVED[:2])


def test_what_the_model_cannot_do_is_the_requests_fault_whatever_the_key_allows() -> None:
    for granted in (Grant(), grant(Pin.CLOUD_ONLY)):
        with pytest.raises(InvalidRequest) as refused:
            names(replace(REQUEST, pin=Pin.DEVICE_ONLY, grant=granted), SERVED[:2])
        assert refused.value.param == "disco.pin"
    with pytest.raises(InvalidRequest) as refused:
        names(replace(REQUEST, endpoints=("phone",), pin=Pin.CLOUD_ONLY, grant=grant()))
    assert refused.value.param == "disco.endpoints"
    with pytest.raises(InvalidRequest) as refused:
        names(replace(REQUEST, prompt=TokenPrompt((1,)), grant=grant(Pin.DEVICE_ONLY)))
    assert refused.value.param == "prompt"


PINS = st.none() | st.sampled_from(Pin)
CHOICES = st.lists(st.sampled_from([*NAMES, "nobody"]), max_size=3).map(tuple)


@given(PINS, CHOICES, PINS, CHOICES)
def test_nothing_that_a_request_says_leads_to_an_endpoint_beyond_its_key(
    key_pin: Pin | None, key_endpoints: tuple[str, ...], pin: Pin | None, endpoints: tuple[str, ...]
) -> None:
    request = replace(REQUEST, pin=pin, endpoints=endpoints, grant=Grant("alice", key_pin, key_endpoints))
    try:
        eligible = eligible_endpoints(request, SERVED)
    except DiscoError:
        return
    assert eligible
    for info in eligible:
        assert not key_endpoints or info.id in key_endpoints
        assert not endpoints or info.id in endpoints
        assert key_pin is None or info.kind is KIND[key_pin]
        assert pin is None or info.kind is KIND[pin]


# --- devices of somebody's own ---

OWNED = [
    *SERVED,
    EndpointInfo("alices", EndpointKind.DEVICE, "m", 100, owners=frozenset({"alice"})),
    EndpointInfo("bobs", EndpointKind.DEVICE, "m", 100, owners=frozenset({"bob"})),
    EndpointInfo("theirs", EndpointKind.DEVICE, "m", 100, owners=frozenset({"alice", "bob"})),
]
CAROL = Grant("carol")


def own(request: ClientRequest, served: list[EndpointInfo] = OWNED) -> list[str]:
    return [info.id for info in eligible_endpoints(request, served, owned=True)]


@pytest.mark.parametrize(
    ("granted", "pin", "left"),
    [
        (Grant(), None, NAMES),
        (CAROL, None, NAMES),
        (grant(), None, [*NAMES, "alices", "theirs"]),
        (grant(), Pin.CLOUD_ONLY, ["cloud", "other-cloud"]),
        (grant(), Pin.DEVICE_ONLY, ["alices", "theirs"]),
        (grant(Pin.DEVICE_ONLY), None, ["alices", "theirs"]),
    ],
)
def test_device_only_means_ones_own_devices(granted: Grant, pin: Pin | None, left: list[str]) -> None:
    assert own(replace(REQUEST, grant=granted, pin=pin)) == left


@pytest.mark.parametrize(("granted", "pin"), [(CAROL, Pin.DEVICE_ONLY), (Grant("carol", Pin.DEVICE_ONLY), None)])
def test_who_has_none_waits_for_it_and_is_not_given_another(granted: Grant, pin: Pin | None) -> None:
    for served in (OWNED, SERVED[:2]):
        with pytest.raises(EndpointUnavailable, match="no device of this key has joined"):
            own(replace(REQUEST, grant=granted, pin=pin), served)


def test_where_devices_have_no_owners_any_is_ones_own() -> None:
    assert names(replace(REQUEST, grant=CAROL, pin=Pin.DEVICE_ONLY)) == ["phone"]


def test_a_device_of_others_can_neither_be_named_nor_found_out() -> None:
    for name in ("bobs", "no such"):
        with pytest.raises(AccessDenied) as denied:
            names(replace(REQUEST, grant=grant(), endpoints=(name,)), OWNED)
        assert "bobs" not in denied.value.message
        assert "alices" in denied.value.message


def test_who_is_away_serves_nobody_and_a_pin_waits_for_its_device() -> None:
    def left(request: ClientRequest) -> list[str]:
        away = {"alices", "theirs"}.__contains__
        return [info.id for info in eligible_endpoints(request, OWNED, away, owned=True)]

    assert left(replace(REQUEST, grant=grant())) == NAMES
    for pinned in (
        replace(REQUEST, grant=grant(), pin=Pin.DEVICE_ONLY),
        replace(REQUEST, grant=grant(Pin.DEVICE_ONLY)),
        replace(REQUEST, grant=grant(), endpoints=("alices",)),
    ):
        with pytest.raises(EndpointUnavailable, match="not connected at the moment: alices"):
            left(pinned)

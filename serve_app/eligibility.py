"""Which endpoints may serve a request: what its model has, its caller's key allows and it asks for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from serve_app.core.errors import AccessDenied, EndpointUnavailable, InvalidRequest
from serve_app.core.model import EndpointId, EndpointInfo, Pin, TokenPrompt
from serve_app.streams import ClientRequest, Grant


class Joined(Protocol):
    """Endpoints beyond the configured ones, which come and go."""

    def serving(self, model: str, /) -> Sequence[EndpointId]:
        """Those of a served name, whoever owns them and wherever they are now."""
        ...

    def is_away(self, endpoint: EndpointId, /) -> bool:
        """Whether a request should not start there; never true of a configured one."""
        ...


class NobodyJoined:
    """Where all endpoints are configured."""

    def serving(self, _: str) -> Sequence[EndpointId]:
        return ()

    def is_away(self, _: EndpointId) -> bool:
        return False


NOBODY_JOINED: Final = NobodyJoined()


def eligible_endpoints(
    request: ClientRequest,
    served: Sequence[EndpointInfo],
    is_away: Callable[[EndpointId], bool] = NOBODY_JOINED.is_away,
    *,
    owned: bool = False,
) -> list[EndpointInfo]:
    """Those of ``served``, the model's endpoints, that this request may use; at least one, and none that is away.

    ``owned``: devices have owners here, so that ``device_only`` means the caller's own, joined or not.
    Raises InvalidRequest where the model has no such endpoint, AccessDenied where the key allows none of those that are
    left, or one that the request names, EndpointUnavailable where all of them are away: a promise holds all the same.
    """
    # Those that belong to others are no business of this caller, not even their names.
    served = [info for info in served if not info.owners or request.grant.key in info.owners]
    if owned and Pin.DEVICE_ONLY in (request.pin, request.grant.pin):
        served = [info for info in served if info.owners]
        if not served:
            raise EndpointUnavailable(
                "device_only: no device of this key has joined; let one join, or leave the pin out"
            )
    granted = [info for info in served if _allows(request.grant, info)]
    if not granted:
        raise AccessDenied("this key may use none of the endpoints that serve this model; ask for another model")
    infos = _pinned(request, served, granted)
    if request.endpoints:
        infos = _named(request, infos, granted)
    infos = _present(infos, is_away)
    if isinstance(request.prompt, TokenPrompt):
        known_vocabulary = next((info.vocabulary for info in infos if info.vocabulary), None)
        infos = [info for info in infos if info.vocabulary == known_vocabulary and known_vocabulary]
        if not infos:
            raise InvalidRequest("no endpoint of this model can take token ids; send the prompt as text", "prompt")
    return infos


def _allows(grant: Grant, info: EndpointInfo) -> bool:
    return _fits(grant.pin, info) and (not grant.endpoints or info.id in grant.endpoints)


def _fits(pin: Pin | None, info: EndpointInfo) -> bool:
    return pin is None or info.kind is pin.kind


def _pinned(
    request: ClientRequest, served: Sequence[EndpointInfo], granted: Sequence[EndpointInfo]
) -> list[EndpointInfo]:
    if request.pin is None:
        return list(granted)
    if not any(_fits(request.pin, info) for info in served):
        raise InvalidRequest(
            f"disco.pin: no endpoint of this model satisfies {request.pin.value}; leave it out", "disco.pin"
        )
    infos = [info for info in granted if _fits(request.pin, info)]
    if not infos:
        raise AccessDenied(
            f"disco.pin: {request.pin.value} contradicts this key, which may use {_names(granted)}; leave the pin out"
        )
    return infos


def _present(infos: Sequence[EndpointInfo], is_away: Callable[[EndpointId], bool]) -> list[EndpointInfo]:
    present = [info for info in infos if not is_away(info.id)]
    if not present:
        raise EndpointUnavailable(
            f"not connected at the moment: {_names(infos)}; nothing else may serve this request", infos[0].id
        )
    return present


def _named(
    request: ClientRequest, infos: Sequence[EndpointInfo], granted: Sequence[EndpointInfo]
) -> list[EndpointInfo]:
    wanted = set(request.endpoints)
    if request.grant.key is not None and not wanted <= {info.id for info in granted}:
        raise AccessDenied(f"disco.endpoints: more than this key allows for this model; it may use {_names(granted)}")
    if not wanted <= {info.id for info in infos}:
        raise InvalidRequest(
            f"disco.endpoints: one that this request may not use; it may use {_names(infos)}", "disco.endpoints"
        )
    return [info for info in infos if info.id in wanted]


def _names(infos: Sequence[EndpointInfo]) -> str:
    return ", ".join(info.id for info in infos)

"""Which endpoints may serve a request: what its model has, its caller's key allows and it asks for itself."""

from __future__ import annotations

from collections.abc import Sequence

from serve_app.core.errors import AccessDenied, InvalidRequest
from serve_app.core.model import EndpointInfo, Pin, TokenPrompt
from serve_app.streams import ClientRequest, Grant


def eligible_endpoints(request: ClientRequest, served: Sequence[EndpointInfo]) -> list[EndpointInfo]:
    """Those of ``served``, the model's endpoints, that this request may use; at least one.

    Raises InvalidRequest where the model has no such endpoint, AccessDenied where the key allows none of those that are
    left, or one that the request names.
    """
    granted = [info for info in served if _allows(request.grant, info)]
    if not granted:
        raise AccessDenied("this key may use none of the endpoints that serve this model; ask for another model")
    infos = _pinned(request, served, granted)
    if request.endpoints:
        infos = _named(request, infos, granted)
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

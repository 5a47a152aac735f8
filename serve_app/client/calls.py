"""One call to a server, and what it says when it does not answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from serve_app.client.errors import CallFailed, Cause, Interrupted
from serve_app.client.server import Server

#: Whom this service's list of models names as their owner.
_OWNER = "disco-serve"

#: Seconds for an answer that nobody has to write first.
_PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Served:
    """``ours``: the server is a DiSCo-Serve, which understands the ``disco`` object and can resume an answer."""

    model: str
    ours: bool


@asynccontextmanager
async def call(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    body: dict[str, Any] | None = None,
    accept: Sequence[int] = (200,),
    total: float | None = _PATIENCE,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """A response with a status of ``accept``. Raises ``CallFailed`` for any other, ``Interrupted`` if it breaks off.

    ``total``: seconds until its end; None for as long as it takes.
    """
    patience = aiohttp.ClientTimeout(total=total, sock_connect=session.timeout.sock_connect)
    try:
        response = await session.request(method, url, json=body, allow_redirects=False, timeout=patience)
    except (aiohttp.ClientError, TimeoutError) as error:
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        reason = str(cause) or type(cause).__name__
        raise Interrupted(f"no service answers at {url}: {reason}", Cause.UNREACHABLE, "unreachable") from None
    async with response:
        try:
            if response.status not in accept:
                raise _refused(response.status, await response.read())
            yield response
        except (aiohttp.ClientError, TimeoutError):
            raise Interrupted(
                "the connection broke before the answer was complete", Cause.FAILED, "connection_broken", begun=True
            ) from None


async def served(session: aiohttp.ClientSession, server: Server, model: str | None) -> Served:
    """What to ask for: ``model``, or the first one that the server names. Raises ``CallFailed``."""
    try:
        async with call(session, "GET", f"{server.api}/models") as response:
            found = _listed(json_of(await response.read()))
    except CallFailed as failure:
        if model is None or failure.cause is Cause.UNREACHABLE or failure.status in (401, 403):
            raise
        # A server need not have a list.
        found = []
    if model is None and not found:
        raise CallFailed(f"{server.root} serves no model that it would name; give one with --model", Cause.FAILED)
    return Served(model or str(found[0]["id"]), any(entry.get("owned_by") == _OWNER for entry in found))


def _listed(document: Any) -> list[dict[str, Any]]:
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, dict) and "id" in entry]


def _refused(status: int, body: bytes) -> CallFailed:
    document = json_of(body)
    said = complaint(document)
    message = f"HTTP {status}: {said or 'this is no answer of the API'}"
    code = str(document["error"].get("code") or "") if said else ""
    if status >= 500:
        return Interrupted(message, Cause.FAILED, code, status)
    return CallFailed(message, Cause.REFUSED if status >= 400 else Cause.FAILED, code, status)


def complaint(document: Any) -> str | None:
    """What an error object says, with the field it blames; None where there is no such object."""
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return None
    message, param = str(error.get("message")), error.get("param")
    return f"{message} ({param})" if param and str(param) not in message else message


def json_of(body: bytes | str) -> Any:
    """None where it is no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None

"""How a route is made: whatever its handler raises is answered here, and nobody else gets to log it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from serve_app.client_headers import request_id
from serve_app.responses import outcome_code, refusal

Handle: TypeAlias = Callable[[Request], Awaitable[Response]]


def route(path: str, handle: Handle, methods: Sequence[str] = ("GET",), *, described: bool = True) -> Route:
    """Errors become OpenAI's error object; one that nobody expected is logged with the request's id, without its text,
    which may quote what was sent. ``described``: part of the API's own description."""

    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except HTTPException:
            raise
        except ClientDisconnect:
            # Nobody reads it.
            return Response(status_code=400)
        except Exception as error:  # noqa: BLE001 - as above
            outcome_code(error, request_id(request.headers.get("x-request-id")))
            return refusal(error)

    return Route(path, answer, methods=list(methods), include_in_schema=described)

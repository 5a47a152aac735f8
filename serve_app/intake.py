"""A request's body off the wire: not more of it, and not for longer, than the limits allow."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from serve_app.errors_http import BodyTooLarge, BodyTooSlow
from serve_app.settings import LimitSettings

#: Digits of any length that a body could really have; a longer number is not even looked at.
_MOST_DIGITS = 18


async def read_whole(request: Request, limits: LimitSettings) -> bytes:
    """Raises BodyTooLarge, before the body comes where its length is announced; BodyTooSlow; ClientDisconnect."""
    most = limits.body_bytes
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and (len(announced) > _MOST_DIGITS or int(announced) > most):
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds) as patience:
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise _too_large(most)
    except TimeoutError:
        if not patience.expired():
            raise
        raise BodyTooSlow(
            f"the body was not here within limits.body_seconds ({limits.body_seconds:g} s); send it at once"
        ) from None
    return bytes(body)


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than limits.body_bytes ({most} bytes); send less")

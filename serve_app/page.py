"""The page at ``/``: a few static files that any browser can show. They ask the API for all that they show."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve_app.routes import route

#: The page's source.
WEB: Final = files("serve_app").joinpath("web")

_MEDIA: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

#: Nothing from elsewhere, nothing inline, nothing made into script or markup out of text, and in nobody's frame.
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Asked for again each time, and sent again only if it has changed.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media: str
    tag: str


def page_routes(admit: Callable[[Request], None]) -> list[Route]:
    """``/`` and ``/page/NAME``. ``admit`` raises AccessDenied where the page is not for this request."""

    def shown(name: str, file: _File) -> Route:
        headers = _HEADERS | {"etag": file.tag}

        async def show(request: Request) -> Response:
            admit(request)
            if request.headers.get("if-none-match") == file.tag:
                return Response(status_code=304, headers=headers)
            return Response(file.content, media_type=file.media, headers=headers)

        return route("/" if name == "index.html" else f"/page/{name}", show, described=False)

    return [shown(name, file) for name, file in _read().items()]


def _read() -> dict[str, _File]:
    """Once, at the start: no request names a file on the disk."""
    found = {}
    for entry in WEB.iterdir():
        suffix = "." + entry.name.rpartition(".")[2]
        if suffix in _MEDIA:
            content = entry.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[entry.name] = _File(content, _MEDIA[suffix], tag)
    return found

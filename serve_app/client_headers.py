"""What a client may call its request, and whose trace it may continue: what is repeated in logs and spans."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

#: W3C Trace Context, level 2: version, trace, parent, flags; neither the version ff nor an id of zeros. A later version
#: may say more after that.
_IDS = r"(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACEPARENT = re.compile(rf"00-{_IDS}|(?!00|ff)[0-9a-f]{{2}}-{_IDS}(?:-.*)?")
#: Values are printable, without a comma or an equals sign.
_MEMBER = r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[ -+\--<>-~]{1,256}"
_TRACESTATE = re.compile(rf"{_MEMBER}(?:, *{_MEMBER})*")
_MOST_TRACESTATE = 512
#: Characters of a traceparent of version 00.
_KNOWN = 55


def request_id(given: str | None) -> str:
    """The x-request-id (the proxy adds one where there is none) if it is harmless in a log, else a new one."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return uuid.uuid4().hex


def trace_carrier(headers: Mapping[str, str]) -> dict[str, str]:
    """The client's trace context; empty where it is not W3C's form."""
    parent, state = headers.get("traceparent", ""), headers.get("tracestate", "")
    if not _TRACEPARENT.fullmatch(parent):
        return {}
    # What is handed on is of the version that is understood.
    carrier = {"traceparent": f"00{parent[2:_KNOWN]}"}
    if len(state) <= _MOST_TRACESTATE and _TRACESTATE.fullmatch(state):
        carrier["tracestate"] = state
    return carrier

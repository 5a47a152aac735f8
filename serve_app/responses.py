"""How an open stream becomes an HTTP response, and how it ends when the client leaves."""

from __future__ import annotations

import asyncio
import logging
import traceback
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serve_app.admission import Admission
from serve_app.callers import Caller
from serve_app.core.errors import DiscoError
from serve_app.errors_http import error_body, error_headers, status_of
from serve_app.metrics import Metrics, Times
from serve_app.router_spans import ServerSpan
from serve_app.schema import ParsedRequest
from serve_app.sse import ChunkWriter, Envelope, json_bytes, whole_body
from serve_app.streams import StreamService, TextStream
from serve_app.telemetry import operation_of

logger = logging.getLogger(__name__)

_SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class Json(Response):
    """A JSON body of any text, lone surrogates included."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json_bytes(content)


def refusal(error: BaseException) -> Json:
    return Json(error_body(error), status_of(error), error_headers(error))


def outcome_code(error: Exception, request_id: str) -> str:
    """Its stable code. An unexpected error is logged by type and place only: its own text may quote the request."""
    if isinstance(error, DiscoError):
        return error.code
    where = "".join(traceback.format_tb(error.__traceback__))
    logger.error("request %s: %s\n%s", request_id, type(error).__name__, where)
    return "internal_error"


@dataclass(frozen=True, slots=True)
class Desk:
    """Where requests are served: what all of them share."""

    service: StreamService
    admission: Admission
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a request came, in seconds of the event loop's clock, and its span, which whoever answers it ends."""

    at: float
    span: ServerSpan


class Generation(Response):
    """Owns one stream from before its first token until it is closed, and closes it whenever the client leaves.

    ``patience``: seconds after which a client that does not take its answer is given up.
    """

    def __init__(
        self, desk: Desk, caller: Caller, parsed: ParsedRequest, envelope: Envelope, patience: float, arrival: Arrival
    ) -> None:
        self._desk = desk
        self._caller = caller
        self._parsed = parsed
        self._envelope = envelope
        self._patience = patience
        self._arrival = arrival
        self._writer: ChunkWriter | None = None
        self._status: int | None = None
        self._code = "cancelled"
        self._delivered: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.create_task(self._answer(scope, receive, send), name="answer")
        work.add_done_callback(self._over)
        departure = asyncio.create_task(_client_left(receive), name="departure")
        both = {work, departure}
        try:
            await asyncio.wait(both, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED)
        finally:
            departure.cancel()
            work.cancel()
            await asyncio.wait(both)
        if not departure.cancelled():
            # A server that cannot say whether the client is there counts as one whose client left.
            departure.exception()
        if not work.cancelled():
            work.result()

    def _over(self, _: asyncio.Task[None]) -> None:
        self._arrival.span.end(self._status, self._code, asyncio.get_running_loop().time())

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._caller.stream(), self._desk.admission.slot():
                stream = self._desk.service.open(self._parsed.client)
                await self._relay(stream, scope, receive, send)
        except Exception as error:  # noqa: BLE001 - whatever happens, the client gets an error object
            self._code = outcome_code(error, self._parsed.client.request_id)
            self._desk.metrics.failed(self._code)
            await self._refuse(error, scope, receive, send)

    async def _relay(self, stream: TextStream, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the stream on. What goes wrong is reported to the client here; the stream is closed in any case."""
        try:
            async with self._desk.admission.until_drained():
                await stream.started()
            if self._parsed.stream:
                await self._send_events(stream, send)
            else:
                async with self._desk.admission.until_drained():
                    text = await _read(stream)
                self._status = 200
                await self._whole(stream, text)(scope, receive, send)
                if text:
                    self._first_delivered()
            self._code = "ok"
        except Exception as error:  # noqa: BLE001 - whatever happens, the client gets an error object
            self._code = outcome_code(error, self._parsed.client.request_id)
            await self._refuse(error, scope, receive, send)
        finally:
            ended = asyncio.get_running_loop().time()
            try:
                await stream.aclose()
            finally:
                outcome = stream.outcome
                self._caller.charge(outcome.report["cost_usd"])
                times = Times(self._arrival.at, outcome.first_token, self._delivered, ended)
                client = self._parsed.client
                self._desk.metrics.observe(client.model, operation_of(client.prompt), outcome.report, times, self._code)

    async def _send_events(self, stream: TextStream, send: Send) -> None:
        parsed = self._parsed
        writer = ChunkWriter(
            self._envelope,
            include_usage=parsed.include_usage,
            report=parsed.report,
            events=parsed.client.events,
        )
        headers = _SSE_HEADERS | self._answer_headers(stream)
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        self._writer, self._status = writer, 200
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        async with self._desk.admission.until_drained():
            async for delta in stream:
                await send({"type": "http.response.body", "body": writer.delta(delta), "more_body": True})
                if self._delivered is None and delta.count:
                    self._first_delivered()
        await send({"type": "http.response.body", "body": writer.end(stream.outcome), "more_body": False})

    def _first_delivered(self) -> None:
        self._delivered = asyncio.get_running_loop().time()
        self._arrival.span.first_token_delivered(self._arrival.at, self._delivered)

    def _whole(self, stream: TextStream, text: str) -> Json:
        body = whole_body(self._envelope, text, stream.outcome, report=self._parsed.report)
        return Json(body, headers=self._answer_headers(stream))

    async def _refuse(self, error: BaseException, scope: Scope, receive: Receive, send: Send) -> None:
        if self._writer is None:
            self._status = status_of(error)
            await refusal(error)(scope, receive, send)
        else:
            event = self._writer.error(error_body(error))
            await send({"type": "http.response.body", "body": event, "more_body": False})

    def _answer_headers(self, stream: TextStream) -> dict[str, str]:
        # Serve's proxy adds the x-request-id.
        headers = {"x-disco-policy": stream.policy}
        if self._parsed.ignored:
            headers["x-disco-ignored"] = ",".join(self._parsed.ignored)
        return headers


async def _read(stream: TextStream) -> str:
    return "".join([delta.text async for delta in stream])


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

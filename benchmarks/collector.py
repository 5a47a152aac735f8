"""A small OTLP collector in a process of its own: traces come in over HTTP and gRPC, and are kept in a file.

    python -m benchmarks.collector FILE

The first line it prints is its two addresses, as JSON. Messages are kept as they came; ``read`` gives OTLP's JSON.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import grpc  # type: ignore[import-untyped]
from aiohttp import web
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

_SIZE = 4
_IDS = ("traceId", "spanId", "parentSpanId")
_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Collector:
    """``http``, ``grpc``: what ``telemetry.otlp_endpoint`` takes for each protocol."""

    http: str
    grpc: str
    path: Path

    def resource_spans(self) -> list[dict[str, Any]]:
        """All that came so far, as in OTLP's JSON: ids in hexadecimal, enums as numbers."""
        return list(read(self.path))

    def spans(self) -> list[dict[str, Any]]:
        """Each with its service's name as ``service``."""
        found = []
        for resource in self.resource_spans():
            service = attributes(resource["resource"])["service.name"]
            for scope in resource["scopeSpans"]:
                found += [span | {"service": service} for span in scope["spans"]]
        return found


@contextmanager
def collecting(path: Path) -> Iterator[Collector]:
    """Starts one, and ends it."""
    process = subprocess.Popen([sys.executable, "-m", __name__, str(path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        addresses = json.loads(process.stdout.readline())
        yield Collector(addresses["http"], addresses["grpc"], path)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    data = path.read_bytes()
    while len(data) >= _SIZE:
        size = int.from_bytes(data[:_SIZE], "big")
        if len(data) < _SIZE + size:
            return
        message = ExportTraceServiceRequest.FromString(data[_SIZE : _SIZE + size])
        data = data[_SIZE + size :]
        for resource in MessageToDict(message, use_integers_for_enums=True)["resourceSpans"]:
            yield _with_hexadecimal_ids(resource)


def attributes(holder: dict[str, Any]) -> dict[str, Any]:
    """Of a resource, span, event or link, as plain values."""
    return {each["key"]: _plain(each["value"]) for each in holder.get("attributes", ())}


def _plain(value: dict[str, Any]) -> Any:
    ((kind, content),) = value.items()
    match kind:
        case "intValue":
            return int(content)
        case "doubleValue":
            return float(content)
        case "arrayValue":
            return [_plain(each) for each in content.get("values", ())]
    return content


def _with_hexadecimal_ids(value: Any) -> Any:
    """Protobuf's own JSON has them in base64, unlike OTLP's."""
    if isinstance(value, list):
        return [_with_hexadecimal_ids(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: base64.b64decode(each).hex() if name in _IDS else _with_hexadecimal_ids(each)
        for name, each in value.items()
    }


# --- the process ----------------------------------------------------------------------------------------------------


class _Keeper(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def keep(self, message: bytes) -> bytes:
        self._file.write(len(message).to_bytes(_SIZE, "big") + message)
        answer: bytes = ExportTraceServiceResponse().SerializeToString()
        return answer

    async def over_http(self, request: web.Request) -> web.Response:
        # The body is decompressed by now, whatever the exporter did to it.
        return web.Response(body=self.keep(await request.read()), content_type="application/x-protobuf")

    async def over_grpc(self, message: bytes, _: Any) -> bytes:
        return self.keep(message)

    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self.over_grpc) if handler_call_details.method == _METHOD else None


async def _serve(file: BinaryIO) -> None:
    keeper = _Keeper(file)
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_post("/v1/traces", keeper.over_http)
    runner = web.AppRunner(app, handle_signals=False)
    await runner.setup()
    site = web.TCPSite(runner, _HOST, 0)
    await site.start()
    port = runner.addresses[0][1]
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((keeper,))
    grpc_port = server.add_insecure_port(f"{_HOST}:0")
    await server.start()
    over = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, over.set)
    print(json.dumps({"http": f"http://{_HOST}:{port}", "grpc": f"http://{_HOST}:{grpc_port}"}), flush=True)
    await over.wait()
    await server.stop(1.0)
    await runner.cleanup()


def main(path: str) -> None:
    with open(path, "wb", buffering=0) as file:
        asyncio.run(_serve(file))


if __name__ == "__main__":
    main(sys.argv[1])

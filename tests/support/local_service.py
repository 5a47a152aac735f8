"""A shipped configuration as a StreamService over real replicas in this process: everything but Ray and HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from actors.engines.base import Engine
from actors.engines.factory import make_engine
from actors.handles import expected_info
from actors.hosted import HostedEndpoint
from actors.replica import EndpointReplica
from serve_app.core.model import ChatPrompt, Message, Sampling
from serve_app.engine_settings import EngineSettings
from serve_app.priors import initial_state
from serve_app.service import StreamService
from serve_app.settings import AppSettings, LiveSettings
from serve_app.streams import ClientRequest, Outcome
from serve_app.telemetry import Telemetry

CONFIGS = Path(__file__).parents[2] / "configs"

MakeEngine = Callable[[EngineSettings, int, int], Engine]


@dataclass
class LocalService:
    service: StreamService
    endpoints: dict[str, HostedEndpoint]
    app: AppSettings
    live: LiveSettings

    def request(self, words: int, number: int, max_tokens: int = 120, **fields: Any) -> ClientRequest:
        """A chat request whose prompt has ``words`` words and differs with ``number``."""
        content = " ".join(f"w{number}x{i}" for i in range(words))
        request = ClientRequest(
            request_id=f"r{number}",
            model=self.service.models()[0],
            prompt=ChatPrompt((Message("user", content),)),
            sampling=Sampling(max_tokens=max_tokens, temperature=0.0),
            consumption_rate=self.live.reader.consumption_rate,
            delivery=self.live.reader.delivery,
        )
        return replace(request, **fields)

    async def ask(self, words: int, number: int, max_tokens: int = 120, **fields: Any) -> tuple[str, Outcome]:
        """The request, read to its end."""
        stream = self.service.open(self.request(words, number, max_tokens, **fields))
        try:
            await stream.started()
            text = "".join([delta.text async for delta in stream])
            return text, stream.outcome
        finally:
            await stream.aclose()


def read_config(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """``args`` and the router's ``user_config`` of a shipped YAML."""
    document = yaml.safe_load((CONFIGS / name).read_text())
    (application,) = document["applications"]
    (router,) = application["deployments"]
    return application["args"], router["user_config"]


async def local_service(
    args: dict[str, Any], user_config: dict[str, Any], make: MakeEngine = make_engine
) -> LocalService:
    app, live = AppSettings.model_validate(args), LiveSettings.model_validate(user_config)
    endpoints = {
        name: HostedEndpoint(expected_info(name, settings), EndpointReplica(name, settings, threads=1, make=make))
        for name, settings in app.endpoints.items()
    }
    for endpoint in endpoints.values():
        await endpoint.describe()
    state = initial_state(app, live, [endpoint.info for endpoint in endpoints.values()])
    service = StreamService(endpoints, app, live, state, Telemetry(app.telemetry, "disco-router"))
    return LocalService(service, endpoints, app, live)

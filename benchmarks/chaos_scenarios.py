"""What is broken on purpose, and at which scale: simulated endpoints, or one small model behind both of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from serve_app.core.model import EndpointKind
from serve_app.engine_settings import LlamaCppEngineSettings, SimulatedEngineSettings
from serve_app.settings import (
    AppSettings,
    EndpointPrice,
    EndpointSettings,
    LimitSettings,
    LiveSettings,
    PlacementSettings,
    PolicySettings,
    PriceSettings,
)

#: Of each endpoint.
REPLICAS: Final = 2


@dataclass(frozen=True, slots=True)
class Scenario:
    """Two endpoints, two replicas each, that write the same text whoever writes how much of it.

    ``reference`` is the engine that says what the text has to be. ``max_tokens``: smallest and largest that is asked
    for. The rest are the soak's defaults: streams, how many of them at once, and seconds between two blows.
    """

    cloud: EndpointSettings
    phone: EndpointSettings
    limits: LimitSettings
    reference: SimulatedEngineSettings | LlamaCppEngineSettings
    max_tokens: tuple[int, int]
    streams: int
    at_once: int
    period: float

    @property
    def settings(self) -> tuple[AppSettings, LiveSettings]:
        """The phone is dear, so answers that it begins move to the cloud."""
        prices = PriceSettings(
            usd_per_megajoule=5000.0,
            endpoints={
                "cloud": EndpointPrice(input_usd_per_mtok=0.1, output_usd_per_mtok=0.4),
                "phone": EndpointPrice(prefill_joules_per_token=0.1, decode_joules_per_token=0.1),
            },
        )
        live = LiveSettings(policy=PolicySettings(budget=0.5), prices=prices, limits=self.limits)
        return AppSettings(endpoints={"cloud": self.cloud, "phone": self.phone}), live


def _endpoint(
    kind: EndpointKind, engine: SimulatedEngineSettings | LlamaCppEngineSettings, slots: int
) -> EndpointSettings:
    place = PlacementSettings(num_cpus=0.05, replicas=REPLICAS)
    return EndpointSettings(kind=kind, engine=engine, slots=slots, placement=place)


def _simulated() -> Scenario:
    engine = SimulatedEngineSettings(seed=5, overhead=0.2, decode_rate=30.0, output_tokens=(30, 150))
    return Scenario(
        cloud=_endpoint(EndpointKind.CLOUD, engine, 64),
        phone=_endpoint(EndpointKind.DEVICE, engine.model_copy(update={"overhead": 0.05}), 64),
        limits=LimitSettings(first_token_seconds=10.0, idle_seconds=2.0),
        reference=engine.model_copy(update={"prefill_rate": 1e9, "decode_rate": 1e9, "overhead": 0.0}),
        max_tokens=(20, 120),
        streams=2000,
        at_once=50,
        period=5.0,
    )


def _real() -> Scenario:
    """Evaluated token by token, SmolLM2 writes the same bytes whether it decodes them or is handed them."""
    engine = LlamaCppEngineSettings(context_length=512, n_batch=1, threads=1)
    return Scenario(
        cloud=_endpoint(EndpointKind.CLOUD, engine, 4),
        phone=_endpoint(EndpointKind.DEVICE, engine, 4),
        limits=LimitSettings(first_token_seconds=60.0, idle_seconds=5.0),
        reference=engine,
        max_tokens=(10, 48),
        streams=60,
        at_once=6,
        period=10.0,
    )


SCENARIOS: Final[Mapping[str, Scenario]] = {"simulated": _simulated(), "real": _real()}

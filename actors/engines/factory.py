"""Settings to engine. Native engines are imported only where one is configured."""

from __future__ import annotations

from actors.engines.base import Engine
from actors.engines.openai_http import OpenAIHttpEngine
from actors.engines.replay import ReplayEngine
from actors.engines.simulated import SimulatedEngine
from serve_app.engine_settings import (
    EngineSettings,
    LlamaCppEngineSettings,
    OpenAIHttpEngineSettings,
    ReplayEngineSettings,
    ShapedEngineSettings,
    SimulatedEngineSettings,
    VllmEngineSettings,
)


def make_engine(settings: EngineSettings, slots: int, threads: int) -> Engine:
    """``slots``: concurrent streams; ``threads``: the engine's CPU threads, unless its own settings say otherwise."""
    match settings:
        case SimulatedEngineSettings():
            return SimulatedEngine(settings)
        case ReplayEngineSettings():
            return ReplayEngine(settings)
        case LlamaCppEngineSettings():
            from actors.engines.llama_cpp import LlamaCppEngine

            return LlamaCppEngine(settings, slots, settings.threads or threads)
        case VllmEngineSettings():
            from actors.engines.vllm_engine import VllmEngine

            return VllmEngine(settings, slots, settings.threads or threads)
        case OpenAIHttpEngineSettings():
            return OpenAIHttpEngine(settings)
        case ShapedEngineSettings():
            from actors.engines.shaped import ShapedEngine

            return ShapedEngine(settings, make_engine(settings.engine, slots, threads))

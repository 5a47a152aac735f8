"""llama-cpp-python's own server, which also tells at GET /evaluated how many tokens it has computed."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from llama_cpp import _internals
from llama_cpp.server.app import create_app
from llama_cpp.server.settings import ModelSettings, ServerSettings


def counted() -> list[int]:
    """One number, to which every evaluation adds its tokens."""
    total = [0]
    decode = _internals.LlamaContext.decode

    def counting(context: Any, batch: Any) -> None:
        decode(context, batch)
        total[0] += batch.batch.n_tokens

    setattr(_internals.LlamaContext, "decode", counting)  # noqa: B010 - by assignment it could not be typed
    return total


def main() -> None:
    """Arguments: the GGUF file, its alias, tokens of context, tokens per evaluation, port."""
    model, alias, context, batch, port = sys.argv[1:]
    total = counted()
    app = create_app(
        server_settings=ServerSettings(interrupt_requests=False),
        model_settings=[
            ModelSettings(
                model=model, model_alias=alias, n_ctx=int(context), n_batch=int(batch), n_threads=1, verbose=False
            )
        ],
    )
    app.add_api_route("/evaluated", lambda: {"tokens": total[0]})
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main()

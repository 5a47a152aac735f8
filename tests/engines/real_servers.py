"""Other people's servers with the default model, each a process on this machine.

llama-cpp-python's own and vLLM's; and llama.cpp's `llama-server`, where DISCO_TEST_LLAMA_SERVER is its path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.engines.convert import convert
from actors.engines.models import resolve
from tests.engines.server_process import PORT, ServerProcess, serving

MODEL = "smollm2-135m-instruct"
#: SmolLM2's template, as its GGUF file has it.
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
#: Tokens of the servers' contexts.
LLAMA_CONTEXT = 1024
VLLM_CONTEXT = 512


@contextmanager
def llama_server(folder: Path, *options: str) -> Iterator[ServerProcess]:
    # By default a second request interrupts the first. Token by token, so that a cached prefix changes no rounding.
    fixed = ["--model", str(resolve(MODEL)), "--model_alias", MODEL, "--interrupt_requests", "false"]
    fixed += ["--n_ctx", str(LLAMA_CONTEXT), "--n_threads", "1", "--n_batch", "1"]
    command = [sys.executable, "-m", "llama_cpp.server", "--host", "127.0.0.1", "--port", PORT, *fixed, *options]
    with serving(command, folder / "log", "openapi.json") as process:
        yield process


@contextmanager
def llama_cpp_server(folder: Path) -> Iterator[ServerProcess]:
    program = os.environ.get("DISCO_TEST_LLAMA_SERVER")
    if program is None:
        pytest.skip("DISCO_TEST_LLAMA_SERVER does not say where llama.cpp's llama-server is")
    # Token by token, as above: its start needs batches of two, which are evaluated by their parts.
    fixed = ["--model", str(resolve(MODEL)), "--alias", MODEL, "--ctx-size", str(LLAMA_CONTEXT), "--parallel", "1"]
    fixed += ["--threads", "1", "--batch-size", "2", "--ubatch-size", "1"]
    command = [program, "--host", "127.0.0.1", "--port", PORT, *fixed]
    with serving(command, folder / "log", "health") as process:
        yield process


@contextmanager
def vllm_server(folder: Path) -> Iterator[ServerProcess]:
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", PORT]
    command += ["--model", str(convert(MODEL, None, print)), "--served-model-name", MODEL, "--dtype", "float32"]
    command += ["--max-model-len", str(VLLM_CONTEXT), "--max-num-seqs", "4", "--enforce-eager"]
    small = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with serving(command, folder / "log", "v1/models", {**os.environ, **small, **offline}) as process:
        yield process

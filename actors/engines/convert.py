"""Models as folders that vLLM serves: from a GGUF file, or from whatever else transformers reads."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.engines.folder_vocab import FolderVocabulary
from actors.engines.gguf import facts_of, needed_bytes
from actors.engines.model_folder import folder_of, read_folder
from actors.engines.models import KNOWN, FetchError, cache_directory, fetch
from serve_app.extras import installing

Progress = Callable[[str], None]


class ConvertError(RuntimeError):
    """A model could not be converted; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class _Tools:
    transformers: Any
    torch: Any
    tokenizers: Any
    blocks: Mapping[int, tuple[int, int]]


def convert(source: str, target: Path | None, progress: Progress) -> Path:
    """Write ``source`` as a model folder of bfloat16 weights, and return it. ``progress`` gets one line per step.

    source: a known model's name, a GGUF file, or a folder with either such a file or a model of transformers.
    target: a folder that does not exist yet; None for a known model: where engines look for it.
    Raises ``ConvertError``. The folder appears whole or not at all.
    """
    if target is None:
        if source not in KNOWN:
            raise ConvertError(f"{source!r} is no known model ({', '.join(KNOWN)}), so say where the folder shall be")
        target = cache_directory() / source
        if (target / "config.json").is_file():
            progress(f"{source} is there already: {folder_of(source)}")
            return target
    if target.exists():
        raise ConvertError(f"{target} exists; give a new folder, or remove it first")
    tools = _tools()
    path = _located(source, progress)
    scratch = _scratch(target)
    try:
        _write(path, scratch, tools, progress)
        progress("checking what was written")
        FolderVocabulary(read_folder(scratch))
        for file in scratch.iterdir():
            file.chmod(0o644)
        scratch.chmod(0o755)
        scratch.rename(target)
    except ValueError as error:
        raise ConvertError(f"{path.name}: {error}") from None
    except OSError as error:
        raise _unwritable(target, error) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    progress(f"{target} is ready")
    return target


def _scratch(target: Path) -> Path:
    """Beside the target: a rename is atomic only within one file system."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=".convert-", dir=target.parent))
    except OSError as error:
        raise _unwritable(target, error) from None


def _unwritable(target: Path, error: OSError) -> ConvertError:
    return ConvertError(f"{target} cannot be written ({error.strerror}); give another folder")


def _located(source: str, progress: Progress) -> Path:
    if source in KNOWN:
        try:
            return fetch(source, progress)
        except FetchError as error:
            raise ConvertError(str(error)) from None
    path = Path(source).expanduser()
    if path.is_file():
        return path
    if (path / "config.json").is_file():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if path.is_dir():
        raise ConvertError(f"{path} has neither a config.json nor exactly one GGUF file; give the file's own path")
    raise ConvertError(f"there is no file or folder {str(path)!r}, and no known model of that name: {', '.join(KNOWN)}")


def _write(path: Path, folder: Path, tools: _Tools, progress: Progress) -> None:
    if path.is_file():
        facts, what = _checked(path, tools.blocks)
        place, arguments = path.parent, {"gguf_file": path.name}
        quantised = {"quantization_config": tools.transformers.GgufConfig(dequantize=True)}
    else:
        facts, what = {}, path.name
        place, arguments, quantised = path, {}, {}
    progress(f"reading the tokenizer of {path.name}")
    automatic = tools.transformers
    tokenizer = _read(lambda: automatic.AutoTokenizer.from_pretrained(str(place), **arguments), what)
    _mend(tokenizer, facts, tools.tokenizers)
    progress("reading the weights and unpacking them to bfloat16; this takes a minute or more")
    model = _read(
        lambda: automatic.AutoModelForCausalLM.from_pretrained(
            str(place), dtype=tools.torch.bfloat16, **arguments, **quantised
        ),
        what,
    )
    progress(f"writing {model.num_parameters() * 2 // 1_000_000} MB")
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


def _checked(path: Path, blocks: Mapping[int, tuple[int, int]]) -> tuple[Mapping[str, object], str]:
    """The header's facts, and what to call the model in a message."""
    facts = facts_of(path)
    needed, there = needed_bytes(path, blocks), path.stat().st_size
    if there < needed:
        raise ConvertError(f"{path} is cut short: {there} bytes of {needed}; fetch it again")
    return facts, f"{path.name} of architecture {facts.get('general.architecture')}"


def _read(read: Callable[[], Any], what: str) -> Any:
    try:
        return read()
    except (ValueError, OSError, KeyError, RuntimeError, NotImplementedError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConvertError(
            f"transformers cannot read {what}: {reason}; convert it elsewhere, or serve it by llama_cpp"
        ) from None


def _mend(tokenizer: Any, facts: Mapping[str, object], tokenizers: Any) -> None:
    """What transformers leaves out when it makes a tokenizer of a GGUF's."""
    backend = tokenizer.backend_tokenizer
    if facts.get("tokenizer.ggml.pre") == "smollm":
        backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
            [tokenizers.pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer]
        )
    wants_bos = facts.get("tokenizer.ggml.add_bos_token", facts.get("tokenizer.ggml.model") == "llama")
    bos, number = tokenizer.bos_token, tokenizer.bos_token_id
    if wants_bos and number is not None and backend.encode("x").ids[:1] != [number]:
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, number)]
        )


def _tools() -> _Tools:
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
    try:
        import accelerate  # noqa: F401 - transformers wants it for a GGUF and would say so too late
        import gguf
        import tokenizers
        import torch
        import transformers
    except ImportError as error:
        raise ConvertError(f"{error.name} is not installed; run: {installing('convert')}") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    blocks = {int(kind): sizes for kind, sizes in gguf.constants.GGML_QUANT_SIZES.items()}
    return _Tools(transformers, torch, tokenizers, blocks)

"""Tokenizers of the other kind and of none that is known, made by hand. They need no model and no vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.engines.convert import _mend
from actors.engines.folder_vocab import FolderVocabulary
from actors.engines.model_folder import ModelFolder
from serve_app.core.model import TextPrompt

pytestmark = pytest.mark.vllm

SENTENCEPIECE = {
    "type": "Sequence",
    "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}],
}


def tokenizer(decoder: dict[str, Any] | None) -> dict[str, Any]:
    bytes_ = {f"<0x{byte:02X}>": 4 + byte for byte in range(256)}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": 0, "content": "<s>", "special": True, **special},
            {"id": 1, "content": "</s>", "special": True, **special},
            {"id": 3, "content": "[user]", "special": False, **special},
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "vocab": {"<s>": 0, "</s>": 1, "<unk>": 2, "[user]": 3, **bytes_, "▁": 260, "a": 261, "▁a": 262},
            "merges": [["▁", "a"]],
            "byte_fallback": True,
            "unk_token": "<unk>",
            "fuse_unk": False,
        },
    }


def folder(path: Path, decoder: dict[str, Any] | None = SENTENCEPIECE) -> ModelFolder:
    (path / "tokenizer.json").write_text(json.dumps(tokenizer(decoder)))
    return ModelFolder(path, "Tiny", 512, 300, frozenset({7}), {"bos_token": "<s>", "eos_token": "</s>"}, None)


def test_pieces_of_sentencepiece(tmp_path: Path) -> None:
    vocabulary = FolderVocabulary(folder(tmp_path))
    assert vocabulary.size == 300
    assert vocabulary.end_of_generation == {1, 7}
    pieces = {token: vocabulary.piece(token) for token in (0, 1, 3, 4 + 0xC3, 260, 262, 299)}
    assert pieces == {0: b"", 1: b"", 3: b"[user]", 4 + 0xC3: b"\xc3", 260: b" ", 262: b" a", 299: b""}
    ids = vocabulary.encode(TextPrompt("a <s>"), " é")
    assert b"".join(map(vocabulary.piece, ids)).decode() == "a <s> é"
    assert 0 not in ids


@pytest.mark.parametrize("wanted", [True, False])
def test_bos_comes_once_where_the_file_wants_it(tmp_path: Path, wanted: bool) -> None:
    import tokenizers

    source = folder(tmp_path)
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    read = SimpleNamespace(backend_tokenizer=backend, bos_token="<s>", bos_token_id=0)
    facts = {"tokenizer.ggml.model": "llama"} if wanted else {"tokenizer.ggml.add_bos_token": False}
    _mend(read, facts, tokenizers)
    backend.save(str(tmp_path / "tokenizer.json"))
    ids = FolderVocabulary(source).encode(TextPrompt("a"), " a")
    assert ids == ([0] if wanted else []) + [261, 262]


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}])
def test_another_kind_is_refused_with_a_remedy(tmp_path: Path, decoder: dict[str, Any] | None) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json has a decoder .* openai_http"):
        FolderVocabulary(folder(tmp_path, decoder))

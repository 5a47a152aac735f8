"""Keys as they are configured and recognised."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from serve_app.core.errors import InvalidKey
from serve_app.keys import BadKeys, Keyring, configured_keys, sha256_of
from serve_app.settings import AppSettings

ALICE, BOB = "sk-disco-alice", "sk-disco-bob"
HASHES = {name: sha256_of(key.encode()) for name, key in (("alice", ALICE), ("bob", BOB))}
ENDPOINTS = {
    "cloud": {"kind": "cloud", "engine": {"type": "simulated"}},
    "phone": {"kind": "device", "engine": {"type": "simulated"}},
}


def app(*, routers: int = 1, **access: Any) -> AppSettings:
    return AppSettings.model_validate({"endpoints": ENDPOINTS, "access": access, "router": {"replicas": routers}})


def keyring(**access: Any) -> Keyring:
    return Keyring(configured_keys(app(**access)))


BOTH = keyring(keys={name: {"sha256": digest} for name, digest in HASHES.items()})


@pytest.mark.parametrize("header", [f"Bearer {BOB}", f"bearer {BOB}", f"BEARER   {BOB} "])
def test_a_key_is_recognised_by_its_name(header: str) -> None:
    assert BOTH.recognise([header]) == "bob"


@pytest.mark.parametrize(
    "headers",
    [
        [], [""], ["Bearer"], ["Bearer "], [BOB], [f"Basic {BOB}"], [f"Bearer {BOB}x"], [f"Bearer {BOB[:-1]}"],
        [f"Bearer {HASHES['bob']}"], [f"Bearer {BOB} {BOB}"], [f"Bearer {BOB}", f"Bearer {BOB}"],
        [f"Bearer {BOB.upper()}"], [f"Bearer\t{BOB}"], ["Bearer \xff\xfe"], ["Bearer \u20ac"],
    ],
)  # fmt: skip
def test_anything_else_is_refused_and_not_repeated(headers: list[str]) -> None:
    with pytest.raises(InvalidKey) as refused:
        BOTH.recognise(headers)
    assert BOB not in refused.value.message
    assert HASHES["bob"] not in refused.value.message


@given(st.lists(st.text(), max_size=3))
def test_no_header_is_taken_for_a_key_or_breaks_anything(headers: list[str]) -> None:
    with pytest.raises(InvalidKey):
        BOTH.recognise(headers)


def test_a_key_beyond_ascii_is_compared_by_its_bytes() -> None:
    key = "schlüssel".encode()
    assert keyring(keys={"eve": {"sha256": sha256_of(key)}}).recognise([f"Bearer {key.decode('latin-1')}"]) == "eve"


# --- what may be configured ---


@pytest.mark.parametrize(
    ("access", "blamed"),
    [
        ({"keys": {"alice": {"sha256": ALICE}}}, "sha256"),
        ({"keys": {"alice": {"sha256": HASHES["alice"].upper()}}}, "sha256"),
        ({"keys": {"alice": {}}}, "sha256"),
        ({"keys": {"alice": {"sha256": HASHES["alice"], "key": ALICE}}}, "key"),
        ({"keys": {"two words": {"sha256": HASHES["alice"]}}}, "name"),
        ({"keys": {"sk-disco-" + "x" * 43: {"sha256": HASHES["alice"]}}}, "name"),
        ({"keys": {"alice": {"sha256": HASHES["alice"]}}, "open": True}, "open"),
        ({"keys_file": "keys.yaml"}, "absolute"),
    ],
)
def test_a_wrong_setting_is_named_and_no_key_repeated(access: dict[str, Any], blamed: str) -> None:
    with pytest.raises(ValidationError) as refused:
        app(**access)
    assert blamed in str(refused.value)
    assert "sk-disco-" not in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"alice": {"endpoints": ["nobody"]}}, "access.keys.alice.endpoints: no endpoint named 'nobody'"),
        ({"alice": {"endpoints": ["cloud"], "pin": "device_only"}}, "access.keys.alice.pin: device_only leaves none"),
        ({"alice": {}, "bob": {"sha256": HASHES["alice"]}}, "access.keys.bob.sha256: another name has the same key"),
    ],
)
def test_what_the_application_cannot_keep_is_a_problem(keys: dict[str, Any], problem: str) -> None:
    settings = {name: {"sha256": HASHES[name]} | key for name, key in keys.items()}
    with pytest.raises(BadKeys) as refused:
        configured_keys(app(keys=settings))
    (found,) = refused.value.problems
    assert found.startswith(problem)


@pytest.mark.parametrize("limit", ["streams", "requests_per_minute"])
def test_a_limit_that_the_routers_cannot_share_is_a_problem(limit: str) -> None:
    keys = {"alice": {"sha256": HASHES["alice"], limit: 2}}
    assert configured_keys(app(routers=2, keys=keys))
    with pytest.raises(BadKeys, match=rf"access\.keys\.alice\.{limit}: 2 cannot be shared by 3 router replicas"):
        configured_keys(app(routers=3, keys=keys))


# --- the keys' file ---


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    path.touch(0o600)
    path.write_text(f'alice: {{sha256: "{HASHES["alice"]}", pin: cloud_only}}\n')
    return path


def problem_with(file: Path, **access: Any) -> str:
    with pytest.raises(BadKeys) as refused:
        configured_keys(app(keys_file=str(file), **access))
    (problem,) = refused.value.problems
    assert problem.startswith("access.keys_file")
    assert ALICE not in problem
    return problem


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_keys_come_from_a_file_too(file: Path, mode: int) -> None:
    file.chmod(mode)
    ring = keyring(keys_file=str(file), keys={"bob": {"sha256": HASHES["bob"]}})
    assert [ring.recognise([f"Bearer {key}"]) for key in (ALICE, BOB)] == ["alice", "bob"]


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o602, 0o601])
def test_a_file_that_others_may_change_or_strangers_read_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert "chmod" in problem_with(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_refused(file: Path) -> None:
    os.chown(file, 12345, -1)
    assert "another user" in problem_with(file)


@pytest.mark.parametrize(
    ("text", "blamed"),
    [
        (f"alice: {{sha256: {ALICE}}}", "alice.sha256"),
        (f"{ALICE}{'x' * 32}: {{}}", "name"),
        (f"alice: {ALICE}", "alice"),
        (f'alice: {{sha256: "{HASHES["alice"]}", endpoints: [nobody]}}', "alice.endpoints"),
        ("alice: {}\nalice: {}", "twice"),
        ("", "mapping"),
        ("{}", "no key"),
        ("[", "line 1"),
        ("a: \xff", "UTF-8"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(file: Path, text: str, blamed: str) -> None:
    file.write_bytes(text.encode("latin-1"))
    assert blamed in problem_with(file)


def test_a_file_that_is_none_is_refused(file: Path, tmp_path: Path) -> None:
    told = problem_with(tmp_path / "nothing")
    assert told.startswith(f"access.keys_file: {tmp_path / 'nothing'} cannot be read (No such file")
    assert "`disco key new NAME`" in told
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "plain file" in problem_with(tmp_path / "pipe")
    file.write_bytes(b"#" * (2**20 + 1))
    assert "larger" in problem_with(file)


def test_a_name_in_the_file_and_beside_it_is_refused(file: Path) -> None:
    assert "another key of this name" in problem_with(file, keys={"alice": {"sha256": HASHES["bob"]}})

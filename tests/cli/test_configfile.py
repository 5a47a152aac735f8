"""A bad configuration is one line per problem, with the field and the remedy, before Ray starts."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from serve_app.cli.configfile import BadConfiguration, Configuration, is_loopback, load
from serve_app.cli.main import app

DOCUMENT: dict[str, Any] = {
    "proxy_location": "HeadOnly",
    "http_options": {"host": "127.0.0.1", "port": 8123},
    "applications": [
        {
            "name": "disco",
            "route_prefix": "/",
            "import_path": "serve_app.app:build_app",
            "args": {
                "endpoints": {
                    "c": {"kind": "cloud", "engine": {"type": "simulated"}},
                    "d": {"kind": "device", "engine": {"type": "shaped", "profile": "s23-gemma3-1b-q4", "engine": {}}},
                }
            },
            "deployments": [{"name": "DiscoRouter", "user_config": {"policy": {"budget": 0.3}}}],
        }
    ],
}
DOCUMENT["applications"][0]["args"]["endpoints"]["d"]["engine"]["engine"] = {"type": "simulated"}

Change = Callable[[dict[str, Any]], object]


def put(path: str, value: object) -> Change:
    """Set the field at a dotted path; numbers are positions in lists."""

    def change(document: Any) -> None:
        *outer, last = path.split(".")
        for part in outer:
            document = document[int(part) if part.isdigit() else part]
        document[int(last) if last.isdigit() else last] = value

    return change


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Configuration]:
    def read(*changes: Change, port: int | None = None) -> Configuration:
        document = deepcopy(DOCUMENT)
        for change in changes:
            change(document)
        path = tmp_path / "c.yaml"
        path.write_text(yaml.safe_dump(document))
        return load(str(path), port)

    return read


def problems_of(read: Callable[..., Configuration], *changes: Change) -> tuple[str, ...]:
    with pytest.raises(BadConfiguration) as caught:
        read(*changes)
    return caught.value.problems


def test_a_sound_file(read: Callable[..., Configuration]) -> None:
    configuration = read()
    assert set(configuration.app.endpoints) == {"c", "d"}
    assert configuration.live.policy.budget == 0.3
    assert (configuration.host, configuration.port) == ("127.0.0.1", 8123)


def test_a_port_replaces_the_files_in_the_document_too(read: Callable[..., Configuration]) -> None:
    configuration = read(port=9999)
    assert configuration.port == 9999
    assert configuration.document["http_options"] == {"host": "127.0.0.1", "port": 9999}


ARGS = "applications.0.args"
LIVE = "applications.0.deployments.0.user_config"


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("proxylocation", "HeadOnly", "proxylocation"),
        ("http_options.hots", "x", "http_options.hots"),
        ("http_options.port", "x", "http_options.port"),
        ("applications.0.arg", {}, "applications.0.arg"),
        ("applications.0.import_path", "other:build", "applications.0.import_path"),
        ("applications.0.deployments.0.userconfig", {}, "applications.0.deployments.0.userconfig"),
        (f"{ARGS}.endpoints.c.slot", 3, f"{ARGS}.endpoints.c.slot"),
        (f"{ARGS}.endpoints.c.slots", "SECRET", f"{ARGS}.endpoints.c.slots"),
        (f"{ARGS}.endpoints.c.kind", "SECRET", f"{ARGS}.endpoints.c.kind"),
        (f"{ARGS}.endpoints.c.engine.decode_rate", -1, f"{ARGS}.endpoints.c.engine.decode_rate"),
        (f"{ARGS}.endpoints.d.engine.profile", "nobody", f"{ARGS}.endpoints.d.engine.profile"),
        (f"{ARGS}.endpoints.d.engine.engine.overhead", "SECRET", f"{ARGS}.endpoints.d.engine.engine.overhead"),
        (f"{ARGS}.endpoints", {}, f"{ARGS}.endpoints"),
        (ARGS, ["SECRET"], ARGS),
        (f"{LIVE}.policy.budget", 1.5, f"{LIVE}.policy.budget"),
        (f"{LIVE}.policy.budget", float("nan"), f"{LIVE}.policy.budget"),
        (f"{LIVE}.polices", {}, f"{LIVE}.polices"),
        (f"{LIVE}.reader", {"consumption_rate": float("inf")}, f"{LIVE}.reader.consumption_rate"),
    ],
)
def test_the_field_is_named_and_its_value_is_not(
    read: Callable[..., Configuration], path: str, value: object, field: str
) -> None:
    problems = problems_of(read, put(path, value))
    assert [line for line in problems if line.startswith(f"{field}: ")], problems
    assert "SECRET" not in "\n".join(problems)


def test_every_problem_is_told_at_once(read: Callable[..., Configuration]) -> None:
    problems = problems_of(read, put("extra", 1), put(f"{ARGS}.endpoints.c.slots", 0), put(f"{LIVE}.policy.budget", 2))
    assert [line.split(":")[0] for line in problems] == [
        "extra",
        f"{ARGS}.endpoints.c.slots",
        f"{LIVE}.policy.budget",
    ]


def test_a_missing_host_would_open_every_interface(read: Callable[..., Configuration]) -> None:
    (problem,) = problems_of(read, put("http_options", {"port": 8000}))
    assert problem.startswith("http_options.host: ")
    assert "127.0.0.1" in problem


def test_a_host_on_the_network_needs_a_word_of_consent(read: Callable[..., Configuration]) -> None:
    (problem,) = problems_of(read, put("http_options.host", "0.0.0.0"))
    assert problem.startswith("http_options.host: ")
    assert "access: {open: true}" in problem
    assert read(put("http_options.host", "0.0.0.0"), put(f"{ARGS}.access", {"open": True})).host == "0.0.0.0"


def test_names_that_do_not_exist(read: Callable[..., Configuration]) -> None:
    (problem,) = problems_of(read, put("applications.0.deployments.0.name", "Router"), put(LIVE, None))
    assert problem.endswith("known: DiscoRouter, endpoint-c, endpoint-d")
    (problem,) = problems_of(read, put(f"{LIVE}.prices", {"endpoints": {"x": {}}}))
    assert "prices.endpoints: no endpoint named 'x'; known: c, d" in problem
    (problem,) = problems_of(read, put(f"{ARGS}.models", {"m": {"endpoints": ["x"]}}))
    assert "models.m.endpoints: no endpoint named 'x'; known: c, d" in problem


def test_a_static_policy_needs_its_kind(read: Callable[..., Configuration]) -> None:
    only_cloud = put(f"{ARGS}.endpoints", {"c": {"kind": "cloud", "engine": {"type": "simulated"}}})
    (problem,) = problems_of(read, only_cloud, put(f"{LIVE}.policy.name", "device-only"))
    assert "policy.name: device-only, but no endpoint is of kind device" in problem
    assert read(only_cloud, put(f"{LIVE}.policy.name", "cloud-only")).live.policy.name == "cloud-only"


@pytest.mark.parametrize(
    ("engine", "field"),
    [
        ({"type": "llama_cpp", "model": "/nowhere.gguf"}, "model"),
        ({"type": "replay", "path": "/nowhere.jsonl"}, "path"),
    ],
)
def test_a_missing_file_is_found_before_ray_starts(
    read: Callable[..., Configuration], engine: dict[str, str], field: str
) -> None:
    (problem,) = problems_of(read, put(f"{ARGS}.endpoints.c.engine", engine))
    assert problem.startswith(f"{ARGS}.endpoints.c.engine.{field}: there is no")
    (problem,) = problems_of(read, put(f"{ARGS}.endpoints.d.engine.engine", engine))
    assert problem.startswith(f"{ARGS}.endpoints.d.engine.engine.{field}: there is no")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "line 1, column 5: expected the node content, but found '<stream end>'"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: the key a appears twice"),
        ("[1, 2]: x", "line 1, column 1: a key must be a word"),
        ("- a", "the file must be a mapping with `applications:`, as `serve run` takes it"),
        ("", "the file must be a mapping with `applications:`, as `serve run` takes it"),
        ("http_options: {host: localhost}", "applications: must be a list with exactly one application"),
        (
            "http_options: {host: localhost}\napplications: []",
            "applications: must be a list with exactly one application",
        ),
    ],
)
def test_the_command_says_one_line_per_problem_and_exits_with_2(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    result = CliRunner().invoke(app, ["check", str(path)])
    assert result.exit_code == 2
    heading, _, rest = result.stderr.partition("cannot be used\n")
    assert path.name in heading.replace("\n", "")
    assert rest.splitlines() == [f"  {problem}"]


def test_what_is_no_text_and_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(BadConfiguration, match="not UTF-8"):
        load(str(path))
    with pytest.raises(BadConfiguration, match=r"No such file or directory; .*: disco, simulated"):
        load(str(tmp_path / "absent.yaml"))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.4", False),
        ("localhost.example", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback

"""Every shipped configuration is sound, and what is wrong with a broken one is said with its place and a remedy."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from actors.engines.models import KNOWN, cache_directory
from serve_app.auth import is_loopback
from serve_app.cli.configfile import BadConfiguration, load, shipped
from serve_app.cli.exits import BAD_INPUT
from serve_app.cli.main import app
from tests.support.gguf import write_model
from tests.support.local_service import CONFIGS

Change = Callable[[dict[str, Any]], object]

ARGS = "applications.0.args"
USER = "applications.0.deployments.0.user_config"


def application(document: dict[str, Any]) -> dict[str, Any]:
    return document["applications"][0]


def user(document: dict[str, Any]) -> dict[str, Any]:
    return application(document)["deployments"][0]["user_config"]


def cloud(document: dict[str, Any]) -> dict[str, Any]:
    return application(document)["args"]["endpoints"]["cloud"]


def simulated() -> dict[str, Any]:
    return yaml.safe_load((CONFIGS / "simulated.yaml").read_text("utf-8"))


def problems(path: Path, text: str, port: int | None = None) -> tuple[str, ...]:
    path = path / "it.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(BadConfiguration) as refused:
        load(str(path), port)
    assert refused.value.source == str(path)
    return refused.value.problems


def problems_after(change: Change, path: Path) -> tuple[str, ...]:
    document = simulated()
    change(document)
    return problems(path, yaml.safe_dump(document))


# --- what ships -------------------------------------------------------------------------------------------------


def test_all_configurations_ship() -> None:
    assert set(shipped()) == {path.stem for path in CONFIGS.glob("*.yaml")}
    assert {"disco", "simulated"} <= set(shipped())


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_configuration_is_sound_by_name_and_by_path(name: str) -> None:
    by_name, by_path = load(name, runs_here=False), load(str(CONFIGS / f"{name}.yaml"), runs_here=False)
    assert (by_name.app, by_name.live) == (by_path.app, by_path.live)
    assert by_name.host == by_name.document["http_options"]["host"]
    assert by_name.port == 8000


@pytest.mark.parametrize("name", shipped())
def test_ray_takes_a_shipped_configuration_as_it_is(name: str) -> None:
    from ray.serve.schema import ServeDeploySchema

    configuration = load(name, 8123, runs_here=False)
    schema = ServeDeploySchema.model_validate(copy.deepcopy(configuration.document))
    assert (schema.http_options.host, schema.http_options.port) == (configuration.host, 8123)
    assert configuration.port == 8123
    (served,) = schema.applications
    assert served.args == configuration.document["applications"][0]["args"]


def test_keys_on_the_routers_machines_can_be_judged_nowhere_else(tmp_path: Path) -> None:
    document, file = simulated(), tmp_path / "keys.yaml"
    application(document)["args"]["access"] = {"keys_file": str(file)}
    document["http_options"]["host"] = "0.0.0.0"
    path = tmp_path / "it.yaml"
    path.write_text(yaml.safe_dump(document), "utf-8")
    assert load(str(path), runs_here=False).app.access.keyed
    with pytest.raises(BadConfiguration, match="No such file"):
        load(str(path))
    file.write_text("alice: {sha256: short}", "utf-8")
    file.chmod(0o600)
    with pytest.raises(BadConfiguration, match="alice"):
        load(str(path), runs_here=False)


def test_a_directory_of_that_name_does_not_hide_a_shipped_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "disco").mkdir()
    assert load("disco").app.models


def test_a_file_of_that_name_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "disco").write_text("[]")
    with pytest.raises(BadConfiguration):
        load("disco")


def test_what_may_stay_unsaid(tmp_path: Path) -> None:
    document = simulated()
    del document["http_options"]["port"], application(document)["deployments"], document["logging_config"]
    path = tmp_path / "it.yaml"
    path.write_text(yaml.safe_dump(document))
    configuration = load(str(path))
    assert (configuration.port, configuration.live.reader.consumption_rate) == (8000, 4.8)


# --- what is broken ---------------------------------------------------------------------------------------------

IMITATED_LLAMA = {
    "type": "shaped",
    "profile": "s23-gemma3-1b-q4",
    "engine": {"type": "llama_cpp", "model": "/nowhere/a.gguf"},
}

#: What is changed; the problem's path; words that must stand in its line.
BROKEN: dict[str, tuple[Change, str, str]] = {
    "unknown live key": (lambda d: user(d)["policy"].update(bugdet=1), f"{USER}.policy.bugdet", "check the spelling"),
    "unknown key": (lambda d: cloud(d).update(slot=1), f"{ARGS}.endpoints.cloud.slot", "check the spelling"),
    "unknown frame key": (lambda d: d.update(http_option={}), "http_option", "check the spelling"),
    "unknown HTTP key": (lambda d: d["http_options"].update(hots=1), "http_options.hots", "check the spelling"),
    "unknown application key": (lambda d: application(d).update(rout="/"), "applications.0.rout", "check the spelling"),
    "unknown deployment key": (
        lambda d: application(d)["deployments"][0].update(num_replica=1),
        "applications.0.deployments.0.num_replica",
        "check the spelling",
    ),
    "number for a key": (lambda d: d.update({1: 2}), "1", "check the spelling"),
    "impossible budget": (
        lambda d: user(d)["policy"].update(budget=1.5),
        f"{USER}.policy.budget",
        "must be at most 1",
    ),
    "NaN rate": (
        lambda d: user(d)["reader"].update(consumption_rate=float("nan")),
        f"{USER}.reader.consumption_rate",
        "finite",
    ),
    "missing model file": (
        lambda d: cloud(d).update(engine={"type": "llama_cpp", "model": "/nowhere/a.gguf"}),
        f"{ARGS}.endpoints.cloud.engine.model",
        "give the path of a GGUF file",
    ),
    "missing model file inside an imitation": (
        lambda d: cloud(d).update(engine=IMITATED_LLAMA),
        f"{ARGS}.endpoints.cloud.engine.engine.model",
        "give the path of a GGUF file",
    ),
    "missing recording": (
        lambda d: cloud(d).update(engine={"type": "replay", "path": "/nowhere/a.jsonl"}),
        f"{ARGS}.endpoints.cloud.engine.path",
        "JSONL",
    ),
    "unknown profile": (
        lambda d: cloud(d)["engine"].update(profile="moon"),
        f"{ARGS}.endpoints.cloud.engine.profile",
        "known: ",
    ),
    "unknown engine": (
        lambda d: cloud(d).update(engine={"type": "gpt"}),
        f"{ARGS}.endpoints.cloud.engine",
        "'llama_cpp'",
    ),
    "unknown kind": (lambda d: cloud(d).update(kind="edge"), f"{ARGS}.endpoints.cloud.kind", "'cloud' or 'device'"),
    "model over an endpoint that is not there": (
        lambda d: application(d)["args"]["models"]["disco"]["endpoints"].append("moon"),
        f"{ARGS}.models.disco.endpoints",
        "known: cloud, phone",
    ),
    "price of an endpoint that is not there": (
        lambda d: user(d)["prices"]["endpoints"].update(moon={}),
        "DiscoRouter.user_config.prices.endpoints",
        "known: cloud, phone",
    ),
    "no endpoints": (lambda d: application(d)["args"].pop("endpoints"), f"{ARGS}.endpoints", "required"),
    "args that are a list": (lambda d: application(d).update(args=[1]), ARGS, "mapping"),
    "user_config that is text": (
        lambda d: application(d)["deployments"][0].update(user_config="x"),
        USER,
        "mapping",
    ),
    "unknown deployment": (
        lambda d: application(d)["deployments"].append({"name": "endpoint-moon"}),
        "applications.0.deployments.1.name",
        "known: DiscoRouter, endpoint-cloud, endpoint-phone",
    ),
    "the same deployment twice": (
        lambda d: application(d)["deployments"].append({"name": "DiscoRouter"}),
        "applications.0.deployments.1.name",
        "one place",
    ),
    "user_config of an endpoint": (
        lambda d: application(d)["deployments"].append({"name": "endpoint-cloud", "user_config": {}}),
        "applications.0.deployments.1.user_config",
        "remove it",
    ),
    "deployments that are no list": (
        lambda d: application(d).update(deployments={}),
        "applications.0.deployments",
        "must be a list",
    ),
    "a deployment that is a number": (
        lambda d: application(d).update(deployments=[5]),
        "applications.0.deployments.0",
        "must be a mapping",
    ),
    "a label that Ray would refuse": (
        lambda d: application(d)["args"].update(router={"label_selector": {"a b": "c"}}),
        f"{ARGS}.router.label_selector",
        "names and values of labels",
    ),
    "a name that is none": (
        lambda d: user(d)["policy"].update({"\x1b[31m" + "x" * 3000: 1}),
        f"{USER}.policy.?[31m{'x' * 59}",
        "check the spelling",
    ),
    "a budget that is a word": (lambda d: user(d)["policy"].update(budget=True), f"{USER}.policy.budget", "number"),
    "slots that are a flag": (
        lambda d: application(d)["args"]["endpoints"]["cloud"].update(slots=True),
        f"{ARGS}.endpoints.cloud.slots",
        "must be a whole number",
    ),
    "a device network with bits too many": (
        lambda d: application(d)["args"].update(devices={"allow": ["192.168.1.20/24"]}),
        f"{ARGS}.devices.allow.0",
        "write 192.168.1.0/24",
    ),
    "a device network that is no list": (
        lambda d: application(d)["args"].update(devices={"allow": "192.168.1.0/24"}),
        f"{ARGS}.devices.allow",
        "must be a list",
    ),
    "endpoints that are a list": (
        lambda d: application(d)["args"].update(endpoints=["cloud"]),
        f"{ARGS}.endpoints",
        "must be a mapping",
    ),
    "several applications": (lambda d: d["applications"].append(application(d)), "applications", "exactly one"),
    "no application": (lambda d: d.pop("applications"), "applications", "exactly one"),
    "foreign application": (
        lambda d: application(d).update(import_path="x:y"),
        "applications.0.import_path",
        "serve_app.app:build_app",
    ),
    "no host": (lambda d: d["http_options"].pop("host"), "http_options.host", "127.0.0.1"),
    "no HTTP options": (lambda d: d.pop("http_options"), "http_options.host", "127.0.0.1"),
    "open host": (lambda d: d["http_options"].update(host="0.0.0.0"), "http_options.host", "access: {open: true}"),
    "a key that is shown": (
        lambda d: application(d)["args"].update(access={"keys": {"alice": {"sha256": "canary"}}}),
        f"{ARGS}.access.keys.alice.sha256",
        "must be a SHA-256 in 64 hex digits",
    ),
    "a key for an endpoint that is not there": (
        lambda d: application(d)["args"].update(
            access={"keys": {"alice": {"sha256": "0" * 64, "endpoints": ["moon"]}}}
        ),
        f"{ARGS}.access.keys.alice.endpoints",
        "known: cloud, phone",
    ),
    "a file of keys that is not there": (
        lambda d: application(d)["args"].update(access={"keys_file": "/nowhere/keys.yaml"}),
        f"{ARGS}.access.keys_file",
        "No such file",
    ),
    "host by name": (
        lambda d: d["http_options"].update(host="here.example"),
        "http_options.host",
        "access: {open: true}",
    ),
    "empty host": (lambda d: d["http_options"].update(host=""), "http_options.host", "access: {open: true}"),
    "port too large": (lambda d: d["http_options"].update(port=65536), "http_options.port", "1 to 65535"),
    "port of any choice": (lambda d: d["http_options"].update(port=0), "http_options.port", "1 to 65535"),
    "port in quotes": (lambda d: d["http_options"].update(port="8000"), "http_options.port", "without quotes"),
    "port with a fraction": (lambda d: d["http_options"].update(port=8000.0), "http_options.port", "a whole number"),
    "port that is a word": (lambda d: d["http_options"].update(port="http"), "http_options.port", "integer"),
    "port that is a truth": (lambda d: d["http_options"].update(port=True), "http_options.port", "1 to 65535"),
    "host that is a number": (lambda d: d["http_options"].update(host=127), "http_options.host", "must be a string"),
    "another root": (lambda d: d["http_options"].update(root_path="/x"), "http_options.root_path", "leave it out"),
    "another prefix": (lambda d: application(d).update(route_prefix="/x"), "applications.0.route_prefix", "must be /"),
    "routers by Serve's own setting": (
        lambda d: application(d)["deployments"][0].update(num_replicas=2),
        "applications.0.deployments.0.num_replicas",
        "router.replicas",
    ),
    "two owners of traces": (
        lambda d: (
            d.update(tracing_config={"enabled": True}),
            application(d)["args"].update(telemetry={"otlp_endpoint": "http://127.0.0.1:4318"}),
        ),
        "tracing_config.enabled",
        "remove one of them",
    ),
    "a collector without an address": (
        lambda d: application(d)["args"].update(telemetry={"otlp_endpoint": "not a url"}),
        f"{ARGS}.telemetry.otlp_endpoint",
        "begins with http:// or https://",
    ),
    "a contradiction inside an engine": (
        lambda d: cloud(d)["engine"]["engine"].update(output_tokens=[9, 3]),
        f"{ARGS}.endpoints.cloud.engine.engine",
        "output_tokens must be",
    ),
    "unknown proxy location": (lambda d: d.update(proxy_location="Moon"), "proxy_location", "'HeadOnly'"),
    "negative decode rate": (
        lambda d: cloud(d)["engine"]["engine"].update(decode_rate=-1),
        f"{ARGS}.endpoints.cloud.engine.engine.decode_rate",
        "must be more than 0",
    ),
    "NaN budget": (lambda d: user(d)["policy"].update(budget=float("nan")), f"{USER}.policy.budget", "finite"),
    "device-only without a device": (
        lambda d: (
            user(d)["policy"].update(name="device-only"),
            application(d)["args"]["endpoints"]["phone"].update(kind="cloud"),
        ),
        "DiscoRouter.user_config.policy.name",
        "add one or use disco",
    ),
    "cloud-only without a cloud": (
        lambda d: (user(d)["policy"].update(name="cloud-only"), cloud(d).update(kind="device")),
        "DiscoRouter.user_config.policy.name",
        "add one or use disco",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_one_fault_is_one_line_with_path_and_remedy(name: str, tmp_path: Path) -> None:
    change, path, words = BROKEN[name]
    (line,) = problems_after(change, tmp_path)
    assert line.startswith(f"{path}: ")
    assert words in line


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        user(document)["policy"].update(budget=2, bugdet=1)
        cloud(document).update(kind="edge")
        del document["http_options"]["host"]

    told = problems_after(change, tmp_path)
    assert sorted(line.partition(": ")[0] for line in told) == sorted(
        [f"{ARGS}.endpoints.cloud.kind", f"{USER}.policy.budget", f"{USER}.policy.bugdet", "http_options.host"]
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda d: user(d)["policy"].update(budget="canary-41"),
        lambda d: cloud(d).update(slots="canary-41"),
        lambda d: cloud(d).update(kind="canary-41"),
        lambda d: cloud(d)["engine"]["engine"].update(overhead="canary-41"),
        lambda d: application(d).update(args=["canary-41"]),
    ],
)
def test_a_problem_does_not_quote_the_value(change: Change, tmp_path: Path) -> None:
    (line,) = problems_after(change, tmp_path)
    assert "canary" not in line


@pytest.mark.parametrize("access", [{"open": True}, {"keys": {"alice": {"sha256": "0" * 64}}}])
def test_the_network_may_be_let_in_on_purpose(tmp_path: Path, access: dict[str, Any]) -> None:
    document = simulated()
    document["http_options"]["host"] = "0.0.0.0"
    application(document)["args"]["access"] = access
    path = tmp_path / "it.yaml"
    path.write_text(yaml.safe_dump(document))
    assert load(str(path)).host == "0.0.0.0"


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
        ("", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_the_command_says_one_line_per_problem(tmp_path: Path) -> None:
    document = simulated()
    user(document)["policy"].update(budget=2, bugdet=1)
    path = tmp_path / "it.yaml"
    path.write_text(yaml.safe_dump(document))
    result = CliRunner().invoke(app, ["check", str(path)])
    assert (result.exit_code, result.stdout) == (BAD_INPUT, "")
    first, *lines = result.stderr.splitlines()
    assert first == f"{path} cannot be used"
    assert [line.partition(": ")[0] for line in lines] == [f"  {USER}.policy.budget", f"  {USER}.policy.bugdet"]


def with_model(model: str, context_length: int) -> str:
    document = simulated()
    engine = {"type": "llama_cpp", "model": model, "context_length": context_length}
    cloud(document).update(engine=engine)
    application(document)["args"]["endpoints"]["phone"]["engine"] = IMITATED_LLAMA | {"engine": engine}
    return yaml.safe_dump(document)


def test_more_context_than_the_model_was_trained_on_is_refused(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "small.gguf", trained=512))
    path = tmp_path / "good.yaml"
    path.write_text(with_model(model, 512))
    assert load(str(path)).app.endpoints.keys() == {"cloud", "phone"}
    plain, imitated = problems(tmp_path, with_model(model, 99_999_999))
    assert plain.startswith(f"{ARGS}.endpoints.cloud.engine.context_length: 99999999 tokens are more than the 512 ")
    assert imitated.startswith(f"{ARGS}.endpoints.phone.engine.engine.context_length: ")
    assert plain.endswith("set at most 512")


def test_a_known_model_is_judged_once_it_is_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    path = tmp_path / "it.yaml"
    path.write_text(with_model("smollm2-135m-instruct", 9000))
    assert load(str(path))
    cache_directory().mkdir(parents=True)
    write_model(cache_directory() / KNOWN["smollm2-135m-instruct"].filename, trained=8192)
    assert len(problems(tmp_path, path.read_text())) == 2


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    problem, _ = problems(tmp_path, with_model(str(tmp_path / "notes.txt"), 512))
    assert problem.startswith(f"{ARGS}.endpoints.cloud.engine.model: notes.txt cannot be read as a GGUF file")


def with_folder(**settings: Any) -> str:
    document = simulated()
    cloud(document).update(engine={"type": "vllm", **settings})
    return yaml.safe_dump(document)


def test_a_model_folder_is_judged_where_it_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    path = tmp_path / "it.yaml"
    path.write_text(with_folder(model="smollm2-135m-instruct"))
    assert load(str(path))
    (problem,) = problems(tmp_path, with_folder(model=str(tmp_path / "nowhere")))
    assert problem.startswith(f"{ARGS}.endpoints.cloud.engine.model: there is no model folder")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"max_position_embeddings": 512}')
    (problem,) = problems(tmp_path, with_folder(model=str(model)))
    assert problem.startswith(f"{ARGS}.endpoints.cloud.engine.model: model has no tokenizer.json")
    (model / "tokenizer.json").write_text("{}")
    (model / "pytorch_model.bin").write_bytes(b"")
    (problem,) = problems(tmp_path, with_folder(model=str(model)))
    assert problem.startswith(f"{ARGS}.endpoints.cloud.engine.context_length: 2048 tokens are more than the 512 ")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2", "::1"])
def test_hosts_of_this_machine_need_no_leave(host: str, tmp_path: Path) -> None:
    document = simulated()
    document["http_options"]["host"] = host
    path = tmp_path / "it.yaml"
    path.write_text(yaml.safe_dump(document))
    assert load(str(path)).host == host


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1\nb: 2\n", r"line 2, column 2: "),
        ("a:\n\t- b\n", r"line 2, column 1: .*"),
        ("a: 1\nb: 2\na: 3\n", r"line 3, column 1: the key a appears twice"),
        ("a:\n  x: 1\n  x: 1\n", r"line 3, column 3: the key x appears twice"),
        ("? [a, b]\n: 1\n", r"line 1, column 3: a key must be a word"),
        ("a: !!python/object:os.system {}\n", r"line 1, column 4: "),
        ("a: \x01\n", "this is not YAML"),
        ("[" * 1500, "nested more than 50 levels deep"),
        ("", "must be a mapping with `applications:`"),
        ("- applications\n", "must be a mapping with `applications:`"),
        ("just words\n", "must be a mapping with `applications:`"),
    ],
)
def test_what_is_not_the_right_yaml(text: str, words: str, tmp_path: Path) -> None:
    (line,) = problems(tmp_path, text, port=8123)
    assert re.search(words, line)


@pytest.mark.parametrize("name", ["nowhere.yaml", "/", "~nobody-of-that-name/x.yaml", "x" * 300])
def test_a_file_that_cannot_be_read(name: str) -> None:
    with pytest.raises(BadConfiguration) as refused:
        load(name)
    (line,) = refused.value.problems
    assert line.endswith(f"give a file's path, or the name of a shipped configuration: {', '.join(shipped())}")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    path.write_bytes(b"a: \xff\xfe")
    with pytest.raises(BadConfiguration) as refused:
        load(str(path))
    assert refused.value.problems == ("the file is not UTF-8 text",)

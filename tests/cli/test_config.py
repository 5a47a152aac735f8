"""`disco config`: the reference is complete and up to date, what is in force is all there, and secrets are not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner, Result

from serve_app.cli.config_reference import anchor, reference
from serve_app.cli.exits import BAD_INPUT, OK
from serve_app.cli.main import app
from serve_app.cli.settings_tree import HIDDEN, REQUIRED, in_force, settings_of
from serve_app.settings import AppSettings, LiveSettings

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["config", *arguments], env={"COLUMNS": "100", "TERM": "dumb"})


def models(root: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield root
    for setting in settings_of(root):
        for inner in setting.below:
            yield from models(inner)


ALL = sorted({*models(AppSettings), *models(LiveSettings)}, key=lambda model: model.__name__)


def test_the_page_is_what_the_generator_makes() -> None:
    assert PAGE.read_text("utf-8") == run("reference").output, "run `disco config reference > docs/configuration.md`"


@pytest.mark.parametrize("model", ALL)
def test_every_setting_says_what_it_means(model: type[BaseModel]) -> None:
    assert [setting.name for setting in settings_of(model) if len(setting.meaning) < 8] == []


@pytest.mark.parametrize("model", ALL)
def test_every_setting_is_on_the_page(model: type[BaseModel]) -> None:
    page = reference()
    missing = [s.name for s in settings_of(model) if s.name != "type" and f"| `{s.name}` |" not in page]
    assert missing == []


def test_links_lead_to_sections() -> None:
    page = reference()
    sections = {anchor(line.lstrip("# ")) for line in page.splitlines() if line.startswith("#")}
    targets = [part.partition(")")[0] for part in page.split("](#")[1:]]
    assert len(targets) > 10
    assert set(targets) <= sections


def test_words_for_types_and_limits() -> None:
    page = reference()
    for row in (
        "| `slots` | whole number from 1 to 1024 | `1` |",
        "| `battery` | number from 0 to 1, or `null` | `null` |",
        '| `mode` | `overlap`, `break` or `off` | `"overlap"` |',
        "| `output_tokens` | list of 2: whole number | `[40, 200]` |",
        "| `otlp_endpoint` | text, or `null` | `null` |",
        "| `kind` | `cloud` or `device` | required |",
        "| `open` | `true` or `false` | `false` |",
        "| `consumption_rate` | number from 0.5 to 200, or `null` | `4.8` |",
        "| `idle_seconds` | number above 0 | `5.0` |",
    ):
        assert row in page


RULE = "Rule by which the budget is spent; see docs/policies.md."
SECRET = "s3cret"
APP: dict[str, Any] = {
    "endpoints": {
        "cloud": {
            "kind": "cloud",
            "engine": {"type": "openai_http", "base_url": "https://x/v1", "model": "m", "extra_body": {"key": SECRET}},
        }
    },
    "access": {"keys": {"alice": {"sha256": "5" * 64}}},
    "telemetry": {"otlp_endpoint": f"http://me:{SECRET}@127.0.0.1:4318"},
}


def test_what_is_in_force_is_every_setting_with_its_origin() -> None:
    found = {setting.path: setting for setting in in_force(AppSettings.model_validate(APP), "args")}
    assert found["args.endpoints.cloud.engine.model"].given
    assert not found["args.endpoints.cloud.slots"].given
    assert found["args.endpoints.cloud.slots"].value == 1
    assert found["args.models.disco.endpoints"].value == []
    for setting in settings_of(type(AppSettings.model_validate(APP).endpoints["cloud"].engine)):
        assert f"args.endpoints.cloud.engine.{setting.name}" in found


def test_secrets_are_not_shown() -> None:
    found = {setting.path: setting.value for setting in in_force(AppSettings.model_validate(APP), "args")}
    assert found["args.access.keys.alice.sha256"] == HIDDEN
    assert found["args.endpoints.cloud.engine.extra_body"] == HIDDEN
    assert found["args.telemetry.otlp_endpoint"] == "http://127.0.0.1:4318"
    assert SECRET not in json.dumps(found)


def test_a_default_is_the_models_own() -> None:
    for model in ALL:
        for setting in settings_of(model):
            if setting.default != REQUIRED and not setting.below:
                assert json.loads(json.dumps(setting.default)) == setting.default


def test_the_table_shows_values_and_meanings() -> None:
    shown = run("show", "simulated")
    assert shown.exit_code == OK
    assert "args.endpoints.phone.engine.engine" in shown.output
    assert "usd_per_megajoule" in shown.output
    assert "5000.0" in shown.output
    assert "lambda" in shown.output


def test_json_has_the_same_settings_and_changed_those_of_the_file() -> None:
    everything, own = (json.loads(run("show", "simulated", "--json", *more).output) for more in ((), ("--changed",)))
    assert len(everything) > len(own) > 10
    assert own == [setting for setting in everything if setting["given"]]
    assert [setting["value"] for setting in own[:2]] == ["127.0.0.1", 8000]
    assert {
        "path": "user_config.policy.name",
        "value": "paper",
        "given": True,
        "meaning": RULE,
    } in own


def test_a_bad_configuration_is_judged_as_by_check() -> None:
    assert run("show", "no-such-file").exit_code == BAD_INPUT

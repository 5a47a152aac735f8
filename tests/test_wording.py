"""What a document of the wrong types is told: by a configuration, and by the routes of /disco."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from serve_app import body
from serve_app.core.errors import InvalidRequest
from serve_app.devices import DeviceRegistration
from serve_app.fields import Settings
from serve_app.live_policy import retuned
from serve_app.settings import LiveSettings
from serve_app.wording import explain


def below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for kind in model.__subclasses__():
        yield kind
        yield from below(kind)


def takes_a_number(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return takes_a_number(get_args(annotation)[0])
    if get_origin(annotation) is dict:
        return False
    return annotation in (int, float) or any(map(takes_a_number, get_args(annotation)))


NUMBERS = [
    (model, name, [wrong, wrong] if get_origin(field.annotation) is tuple else wrong)
    for model in (*below(Settings), *below(body._Part))
    for name, field in model.model_fields.items()
    if takes_a_number(field.annotation)
    for wrong in (True, "4")
]


def test_the_table_has_the_numbers_of_settings_and_bodies() -> None:
    names = {(model.__name__, name) for model, name, _ in NUMBERS}
    assert {("EndpointSettings", "slots"), ("SimulatedEngineSettings", "output_tokens"), ("ChatBody", "seed")} <= names
    assert len(names) > 60


@pytest.mark.parametrize(("model", "name", "wrong"), NUMBERS)
def test_flags_and_words_are_no_numbers(model: type[BaseModel], name: str, wrong: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate({name: wrong})
    told = [line for line in explain(refused.value) if line.startswith((f"{name}:", f"{name}."))]
    assert told
    assert all(re.search("must be a (whole )?number$", line) for line in told)


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert LiveSettings.model_validate({"migration": {"max_planned": 2.0}}).migration.max_planned == 2
    with pytest.raises(ValidationError):
        LiveSettings.model_validate({"migration": {"max_planned": 2.5}})


@pytest.mark.parametrize("flag", [1, "yes"])
def test_numbers_and_words_are_no_flags(flag: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        LiveSettings.model_validate({"prices": {"notional": flag}})
    assert explain(refused.value) == ["prices.notional: must be true or false"]


PHONE = {"name": "phone", "base_url": "http://192.168.1.20:8080/v1", "model": "gemma", "owners": ["alice"]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"owners": "canary"}, 'owners: must be an array, such as ["alice"]'),
        ({"owners": []}, 'owners: must not be empty; give at least one, such as ["alice"]'),
        ({"owners": ["alice", 7]}, "owners[1]: must be a string"),
        ({"slots": "canary"}, "slots: must be a whole number"),
        ({"slots": True}, "slots: must be a whole number"),
        ({"slots": 0}, "slots: must be at least 1"),
        ({"prices": "canary"}, 'prices: must be an object, such as {"parameters_billion": 1}'),
        ({"prices": {"parameters_billion": True}}, "prices.parameters_billion: must be a number"),
        ({"profile": "canary"}, "profile: must be an object"),
        ({"continues_by": "canary"}, "continues_by: must be one of 'probe', 'ids'"),
        ({"model": ""}, "model: must not be empty"),
        ({"name": "canary canary"}, "name: must be up to 64 letters"),
        ({"canary": 1}, "canary: unknown key"),
        ({"api_key": "canary\x7f"}, "api_key: holds characters"),
    ],
)
def test_a_registration_is_told_what_is_expected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        body.read_body(DeviceRegistration, json.dumps(PHONE | fields).encode())
    assert refused.value.message.startswith(message)
    assert refused.value.param == message.partition(":")[0]
    assert "canary" not in refused.value.message.replace("canary: unknown key", "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "canary"}, 'policy: must be an object, such as {"budget": 0.3}'),
        ({"policy": {"budget": True}}, "policy.budget: must be a number"),
        ({"policy": {"name": "canary"}}, "policy.name: must be one of 'auto'"),
        ({"policy": {"window": True}}, "policy.window: must be a whole number"),
        ({"migration": {"mode": ["canary"]}}, "migration.mode: must be one of 'overlap', 'break' or 'off'"),
        ({"regime": {}}, "regime: must be one of 'auto'"),
        ({"reader": {"slack": 0}}, "reader.slack: must be more than 0"),
    ],
)
def test_a_changed_policy_is_told_what_is_expected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        retuned(LiveSettings(), changes)
    assert refused.value.message.startswith(message)
    assert refused.value.param == message.partition(":")[0]
    assert "canary" not in refused.value.message

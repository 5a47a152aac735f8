"""What an operator may write about a server, and what is said of it before anything starts."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from actors.engines.profiles import DeviceProfile, load_profile
from serve_app.cli.check import describe
from serve_app.cli.configfile import load
from serve_app.cli.engines import engine_problems
from serve_app.engine_settings import EngineSettings, OpenAIHttpEngineSettings
from serve_app.priors import SERVER, prior_profile
from serve_app.settings import AppSettings
from serve_app.wording import explain

SECRET = "sk-very-secret-key"


def settings(**fields: Any) -> OpenAIHttpEngineSettings:
    given = {"type": "openai_http", "base_url": "https://example.org/v1", "model": "m"} | fields
    engine = TypeAdapter[EngineSettings](EngineSettings).validate_python(given)
    assert isinstance(engine, OpenAIHttpEngineSettings)
    return engine


def complaint(**fields: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        OpenAIHttpEngineSettings.model_validate({"base_url": "https://example.org/v1", "model": "m"} | fields)
    return "\n".join([*explain(refused.value), str(refused.value)])


@pytest.mark.parametrize(
    "url",
    ["https://api.example.org/v1", "http://127.0.0.1:8080/v1", "http://[::1]:8080", "https://example.org/a/b/v1/"],
)
def test_addresses_of_servers(url: str) -> None:
    assert settings(base_url=url).base_url == url


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("api.example.org/v1", "must be http"),
        ("ftp://example.org/v1", "must be http"),
        ("file:///etc/passwd", "must be http"),
        ("https:///v1", "must be http"),
        ("https://example.org:0/v1", "must be http"),
        ("https://example.org:99999/v1", "must be http"),
        ("https://exa mple.org/v1", "must be http"),
        ("https://example.org/v1\n", "must be http"),
        ("https://example.org\\@127.0.0.1/v1", "must be http"),
        (f"https://{SECRET}@example.org/v1", "no user name or key"),
        (f"https://me:{SECRET}@example.org/v1", "no user name or key"),
        (f"https://example.org/v1?key={SECRET}", "remove the query"),
        ("https://example.org/v1#a", "remove the query"),
    ],
)
def test_anything_else_is_refused_without_being_repeated(url: str, says: str) -> None:
    told = complaint(base_url=url)
    assert says in told
    assert "base_url" in told
    assert SECRET not in told


def test_a_key_in_place_of_its_name_is_refused_without_being_repeated() -> None:
    assert SECRET not in complaint(api_key_env=SECRET)
    assert SECRET not in complaint(api_key=SECRET)


@pytest.mark.parametrize("url", ["http://example.org/v1", "http://192.168.1.2/v1", "http://127.0.0.1.example.org/v1"])
def test_a_key_travels_in_clear_only_where_the_operator_says_so(url: str) -> None:
    assert "travel in clear" in complaint(base_url=url, api_key_env="KEY")
    assert settings(base_url=url, api_key_env="KEY", plaintext_key=True).api_key_env == "KEY"
    assert settings(base_url=url).api_key({}) is None


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1", "http://localhost/v1", "http://[::1]/v1", "https://a.b/v1"])
def test_a_key_may_go_to_this_machine_or_over_tls(url: str) -> None:
    engine = settings(base_url=url, api_key_env="KEY")
    key = engine.api_key({"KEY": f" {SECRET}\n"})
    assert key is not None
    assert key.get_secret_value() == SECRET
    assert SECRET not in repr(key)


@pytest.mark.parametrize("value", [None, "", "  ", "a b", "a\r\nHost: b", "schlüssel"])
def test_a_key_that_no_header_could_carry_is_refused_without_being_repeated(value: str | None) -> None:
    with pytest.raises(ValueError, match="KEY") as refused:
        settings(api_key_env="KEY").api_key({} if value is None else {"KEY": value})
    assert not value or not value.strip() or value not in str(refused.value)


def test_a_completion_needs_a_template() -> None:
    assert "chat_template" in complaint(continues_by="completion")


def test_the_engine_s_own_fields_cannot_be_replaced() -> None:
    told = complaint(extra_body={"stream": False, "top_k": 3, "messages": []})
    assert "messages, stream itself" in told
    assert settings(extra_body={"top_k": 3, "provider": {"order": ["a"]}}).extra_body["top_k"] == 3


def test_what_is_believed_of_a_server_is_modest_or_named() -> None:
    assert prior_profile(settings()) is SERVER
    assert 0.5 < SERVER.expected_ttft(60) < 1.0
    named = prior_profile(settings(prior="s23-gemma3-1b-q4"))
    profile = load_profile("s23-gemma3-1b-q4")
    assert isinstance(profile, DeviceProfile)
    assert named.expected_ttft(100) == pytest.approx(profile.ttft(100))


# --- before the start -----------------------------------------------------------------------------------------------


def problems(**fields: Any) -> list[str]:
    endpoint = {"kind": "cloud", "engine": settings(**fields).model_dump()}
    return engine_problems(AppSettings.model_validate({"endpoints": {"far": endpoint}}))


def test_a_sound_server_has_no_problems() -> None:
    assert problems(prior="openai-gpt-4-1106-preview") == []


def test_names_and_files_that_are_not_there_are_problems(tmp_path: Path) -> None:
    (unknown,) = problems(prior="abacus")
    assert unknown.startswith("applications.0.args.endpoints.far.engine.prior: no profile named 'abacus'; known: ")
    (missing,) = problems(chat_template=str(tmp_path / "none.jinja"))
    assert missing.startswith("applications.0.args.endpoints.far.engine.chat_template: no readable")
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% if %}")
    (unsound,) = problems(chat_template=str(broken))
    assert "not a sound Jinja template (line 1)" in unsound


def page() -> str:
    out = io.StringIO()
    Console(file=out, width=200, color_system=None).print(describe(load("openai")))
    return out.getvalue()


def test_check_says_where_the_key_is_and_never_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    text = page()
    assert "gpt-4o-mini at https://api.openai.com/v1" in text
    assert "continues by: nothing; it only starts answers" in text
    assert "key missing: the environment variable OPENAI_API_KEY is not set; export the key" in text
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    text = page()
    assert "key: in the environment variable OPENAI_API_KEY" in text
    assert SECRET not in text

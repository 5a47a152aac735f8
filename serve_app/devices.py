"""What is said about a device that joins at run time: by the operator who registers it, and by the device itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from actors.engines.profile_file import ProfileFile
from actors.engines.profiles import Profile, known_profiles, load_profile
from serve_app.core.energy import DeviceState
from serve_app.core.errors import InvalidRequest
from serve_app.core.model import EndpointKind
from serve_app.engine_settings import OpenAIHttpEngineSettings, may_be_key
from serve_app.fields import Name, Settings, Whole
from serve_app.server_url import ServerUrl
from serve_app.settings import DeviceSettings, EndpointPrice, EndpointSettings


class DeviceRegistration(Settings):
    """A server with OpenAI's HTTP API on somebody's device.

    Nothing here reads a file or the environment of the router's machine: whoever registers devices is trusted with
    them alone. So there is no ``api_key_env`` and no ``chat_template``, and what is registered is written to no file.
    """

    name: Name
    base_url: str = Field(description="Up to and including the version, such as http://192.168.1.20:8080/v1.")
    model: str = Field(min_length=1, description="The server's name for it.")
    api_key: SecretStr | None = Field(
        default=None, description="Of the device's server, which gets it and nobody else."
    )
    plaintext_key: bool = Field(default=False, description="That key may travel over http:// beyond this machine.")
    owners: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        min_length=1, strict=False, description="Names of the API keys whose requests it serves, and no others'."
    )
    serves: tuple[str, ...] = Field(
        default=(), strict=False, description="Served names; empty: those that name no endpoints of their own."
    )
    slots: Whole = Field(default=1, ge=1, le=1024)
    queue: Whole = Field(default=4, ge=0, le=4096)
    context_length: Whole = Field(default=8192, ge=16)
    continues_by: Literal["probe", "ids", "prefill", "prefix", "trailing", "nothing"] = "probe"
    vocabulary: Name | None = None
    prior: Name | None = Field(default=None, description="A shipped profile to believe in at first.")
    profile: ProfileFile | None = Field(default=None, description="The same, as `disco profile` wrote it.")
    prices: EndpointPrice = EndpointPrice()

    @model_validator(mode="after")
    def _key_is_safe(self) -> DeviceRegistration:
        if self.api_key is None:
            return self
        if not may_be_key(self.api_key.get_secret_value()):
            raise ValueError("api_key: holds characters that no HTTP header may carry")
        url = ServerUrl.parse(self.base_url)
        if not (url.encrypted or url.is_loopback or self.plaintext_key):
            raise ValueError(
                "api_key: over http:// the key would travel in clear; use https://, or say `plaintext_key: true` on a "
                "network of your own"
            )
        return self

    def believed(self) -> Profile | None:
        """Raises InvalidRequest that lists the known profiles."""
        if self.profile is not None:
            return self.profile.profile
        if self.prior is None:
            return None
        if self.prior not in known_profiles():
            raise InvalidRequest(f"prior: no such profile; known: {', '.join(known_profiles())}", "prior")
        return load_profile(self.prior)

    def endpoint(self, address: str) -> EndpointSettings:
        """``address``: where it is connected to, whatever its host's name resolves to later."""
        engine = OpenAIHttpEngineSettings.model_validate(
            {
                "base_url": self.base_url,
                "address": address,
                "model": self.model,
                "context_length": self.context_length,
                "continues_by": self.continues_by,
                "vocabulary": self.vocabulary,
            }
        )
        return EndpointSettings(
            kind=EndpointKind.DEVICE, engine=engine, slots=self.slots, queue=self.queue, owners=self.owners
        )


class DeviceReport(DeviceSettings):
    """A heartbeat: what the device says of itself now. What it leaves out is unknown, or as configured."""

    load: Whole | None = Field(
        default=None, ge=0, le=100_000, description="Answers that its server has under way, for anybody."
    )

    @property
    def state(self) -> DeviceState:
        return DeviceState(self.battery, self.charging, self.temperature_celsius)


@dataclass(frozen=True, slots=True)
class Device:
    """A registered one. Of its token, with which it reports, only the SHA-256 is known."""

    registration: DeviceRegistration
    address: str
    token_sha256: str

    def settings(self) -> EndpointSettings:
        return self.registration.endpoint(self.address)

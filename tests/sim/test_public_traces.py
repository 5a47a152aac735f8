from __future__ import annotations

import numpy as np
import pytest

from serve_app.sim.public import azure, load_folder, pocketpal
from tests.sim.public_data import FOLDER, needs_public_data

pytestmark = needs_public_data


def test_the_folder_holds_services_prompts_arrivals_and_clients() -> None:
    found = load_folder(FOLDER)
    sizes = {service.name: service.ttft.size for service in found.services}
    assert len(sizes) == 17
    assert sizes["replicate-70b"] == 145
    assert sizes["openai-gpt-4-1106-preview"] == 51
    assert sizes["gpt-4-turbo"] == 95
    assert {trace.name: trace.prompt_tokens.size for trace in found.prompts} == {"alpaca": 999, "sharegpt": 17_332}
    assert [trace.arrivals.size for trace in found.arrivals] == [19_366]
    assert len(found.clients) == 4


def test_every_figure_is_plausible() -> None:
    for service in load_folder(FOLDER).services:
        assert 0.05 < np.median(service.ttft) < 5
        assert 5 < service.decode_rate < 300, service.name
        assert service.dropped == 0


def test_azures_hour_begins_at_zero() -> None:
    arrivals, lengths = azure(FOLDER / "azure_llm_2023_conv.csv")
    assert arrivals.arrivals[0] == 0
    assert 3000 < arrivals.arrivals[-1] < 3700
    assert lengths.prompt_tokens.size == arrivals.arrivals.size


def test_phones_have_rates_of_their_own() -> None:
    devices = pocketpal(FOLDER / "pocketpal_phone_profiles.csv", intercept=0.3)
    assert len(devices) == 297
    assert all(device.intercept == pytest.approx(0.3 + 1 / device.decode_rate) for device in devices)

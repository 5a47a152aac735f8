from __future__ import annotations

import numpy as np
import pytest

from serve_app.core.baselines import DEVICE_ONLY, RACE, SERVER_ONLY, Fixed, stochastic
from serve_app.core.model import EndpointKind
from serve_app.core.schedule import NEVER, Start


@pytest.mark.parametrize(
    ("constrained", "concurrent", "chosen", "usual"),
    [
        (EndpointKind.DEVICE, True, RACE, SERVER_ONLY),
        (EndpointKind.DEVICE, False, DEVICE_ONLY, SERVER_ONLY),
        (EndpointKind.CLOUD, True, RACE, DEVICE_ONLY),
        (EndpointKind.CLOUD, False, SERVER_ONLY, DEVICE_ONLY),
    ],
)
def test_the_constrained_side_takes_part_by_chance(
    constrained: EndpointKind, concurrent: bool, chosen: Fixed, usual: Fixed
) -> None:
    policy = stochastic(constrained, 0.3, concurrent=concurrent)
    for prompt_tokens in (1, 4000):
        assert policy.start(prompt_tokens, 0.299) == Start(chosen.server, chosen.device)
        assert policy.start(prompt_tokens, 0.3) == Start(usual.server, usual.device)


def test_no_budget_and_a_whole_one_leave_nothing_to_chance() -> None:
    u = np.linspace(0, 1, 50, endpoint=False)
    lengths = np.full(u.size, 40)
    for budget, server in ((0.0, NEVER), (1.0, 0.0)):
        assert (stochastic(EndpointKind.CLOUD, budget, concurrent=True).delays(lengths, u).server == server).all()


def test_one_side_alone() -> None:
    assert SERVER_ONLY.start(40, 0.5) == (0.0, NEVER)
    assert DEVICE_ONLY.start(40, 0.5) == (NEVER, 0.0)

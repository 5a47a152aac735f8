"""Whatever happens to a stream: it costs what its legs cost, and its client pays for the prompt and each token once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.cost import CostModel, UnitCost
from serve_app.core.legs import LegOutcome
from serve_app.core.protocol import ClientLeft
from serve_app.core.report import build_report
from tests.core.test_session_properties import NAMES, play, worlds
from tests.support.session_world import World

unit_costs = st.builds(UnitCost, st.floats(0, 1e-3), st.floats(0, 1e-2))


@settings(max_examples=200)
@given(st.data(), worlds(same_text=False), st.fixed_dictionaries(dict.fromkeys(NAMES, unit_costs)))
def test_the_accounts_of_any_interleaving_add_up(data: st.DataObject, world: World, unit: dict[str, UnitCost]) -> None:
    play(world, data, failures=True)
    world.tell(ClientLeft())
    session = world.session
    forgiving = frozenset(data.draw(st.sets(st.sampled_from(NAMES))))
    report = build_report(session, CostModel(unit, forgiving), notional=False)

    # The ledger has every leg that was ever started, with what it said it generated, once.
    assert [leg["attempt"] for leg in report["legs"]] == list(world.writers)
    for leg, account in zip(session.legs, report["legs"], strict=True):
        writer, cost = world.writers[leg.attempt], unit[leg.info.id]
        assert account["tokens"] == len(writer.ids) - leg.next_index
        prefilled = world.config.prompt_tokens + leg.next_index if writer.accepted else 0
        assert account["prefill_tokens"] == prefilled
        owed = cost.prefill * prefilled + cost.decode * account["tokens"]
        if leg.cut and leg.info.id in forgiving:
            owed = 0.0
        assert account["cost_usd"] == pytest.approx(owed, abs=1e-15)
        if writer.accepted and (leg.cut or leg.outcome is LegOutcome.FAILED) and leg.outcome is not LegOutcome.PARKED:
            assert not account["cost_exact"]
        assert account["outcome"] != "running"
    assert report["cost_usd"] == pytest.approx(sum(leg["cost_usd"] for leg in report["legs"]), abs=1e-15)
    assert report["cost_exact"] == all(leg["cost_exact"] for leg in report["legs"])

    # The client's bill: the prompt once, and each accepted token once, whoever wrote it.
    assert report["prompt_tokens"] == world.config.prompt_tokens
    assert report["completion_tokens"] == session.buffer.accepted
    assert world.emitted_tokens <= report["completion_tokens"]
    assert sum(leg.used for leg in session.legs) >= report["completion_tokens"]
    if world.close is not None and world.close.finish is not None:
        assert world.emitted_tokens == report["completion_tokens"]

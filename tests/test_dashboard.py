"""The Grafana dashboard: a document that Grafana's own model of one takes, and queries of metrics that exist."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.support.prometheus import names
from tests.support.traced import TracedService
from tests.support.virtual_loop import run_virtual
from tests.test_service import ARGS, LIVE

FILE = Path(__file__).parents[1] / "k8s" / "grafana" / "disco.json"
DOCUMENT: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
PANELS = [panel for panel in DOCUMENT["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
VARIABLES = {variable["name"] for variable in DOCUMENT["templating"]["list"]}


def selectors(query: str) -> list[promql_parser.VectorSelector]:
    """All that a query reads. Raises where it is no PromQL. Grafana fills in the interval."""
    tree = promql_parser.parse(query.replace("$__rate_interval", "5m"))
    found: list[promql_parser.VectorSelector] = []
    promql_parser.walk(
        tree, lambda node: found.append(node) if isinstance(node, promql_parser.VectorSelector) else None
    )
    assert found
    return found


@pytest.fixture(scope="module")
def exposition() -> str:
    """What /metrics shows after streams that raced, moved, failed and were left."""
    shown: list[str] = []

    async def main() -> None:
        service = await TracedService.start(ARGS, LIVE)
        await asyncio.gather(*(service.ask(stream=True, max_tokens=60) for _ in range(3)))
        await service.ask(stream=True, leave_at=asyncio.get_running_loop().time() + 0.3)
        await service.ask(temperature=9)
        shown.append(service.surface.metrics.render().decode())
        service.spans()

    run_virtual(main())
    return shown[0]


def test_grafanas_model_of_a_dashboard_takes_it() -> None:
    dashboard = Dashboard.from_json(DOCUMENT)
    assert dashboard.uid == "disco-serve"
    assert [panel.title for panel in dashboard.panels or []] == [panel["title"] for panel in DOCUMENT["panels"]]
    again = json.loads(json.dumps(dashboard.to_json(), default=lambda part: part.to_json()))
    assert [panel["gridPos"] for panel in again["panels"]] == [panel["gridPos"] for panel in DOCUMENT["panels"]]


def test_panels_have_an_id_each_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in DOCUMENT["panels"]}) == len(DOCUMENT["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DOCUMENT["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


@pytest.mark.parametrize("query", QUERIES)
def test_queries_read_metrics_and_labels_that_exist(query: str, exposition: str) -> None:
    known = names(exposition)
    for selector in selectors(query):
        assert selector.name in known
        sample = re.compile(rf"^{selector.name}{{(.*)}} ", re.MULTILINE)
        labels = {name for found in sample.findall(exposition) for name in re.findall(r'(\w+)="', found)}
        assert {matcher.name for matcher in selector.matchers.matchers} <= labels
        for matcher in selector.matchers.matchers:
            assert matcher.value.startswith("$") or f'{matcher.name}="{matcher.value}"' in exposition


def test_variables_that_queries_use_are_defined() -> None:
    used = {name for text in strings(DOCUMENT) for name in re.findall(r"\$\{?(\w+)", text)}
    assert used - {"__rate_interval", "__all"} == VARIABLES


def test_legends_name_labels_that_the_query_keeps() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                kept = re.search(rf"by \([^)]*\b{label}\b", target["expr"])
                # Prometheus itself adds the instance.
                assert kept or (label == "instance" and " by " not in target["expr"]), (panel["title"], label)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)

"""Reading what ``/metrics`` shows."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def value(text: str, name: str, **labels: str) -> float:
    """The sum of the samples of that name that have at least these labels. Raises KeyError where there is none."""
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    found = [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]
    if not found:
        raise KeyError(f"{name} {labels}")
    return sum(found)


def names(text: str) -> set[str]:
    """Of all samples, as a query would name them."""
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}

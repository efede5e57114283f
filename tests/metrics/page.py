"""A page of metrics, as Prometheus reads it."""

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from jobreaper.metrics.prometheus import collector

Labels = frozenset[tuple[str, str]]
Sql = Callable[..., list[dict[str, Any]]]

NAMES = ("reaper_", "jobreaper_")


class Page:
    """The package's own samples, and the type of each metric."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.types: dict[str, str] = {}
        self.samples: dict[str, dict[Labels, float]] = {}
        for metric in text_string_to_metric_families(text):
            if metric.name.startswith(NAMES):
                self.types[metric.name] = metric.type
                for sample in metric.samples:
                    series = self.samples.setdefault(sample.name, {})
                    assert frozenset(sample.labels.items()) not in series, "a duplicate"
                    series[frozenset(sample.labels.items())] = sample.value

    def value(self, name: str, **labels: str) -> float:
        """Return one sample."""
        return self.samples[name][frozenset(labels.items())]

    def by(self, *names: str, of: str) -> dict[Any, float]:
        """Return the samples of a metric that are not 0 by these of their labels."""
        found: dict[Any, float] = {}
        for labels, value in self.samples[of].items():
            named = dict(labels)
            key = tuple(named[name] for name in names) if len(names) > 1 else named[names[0]]
            if value:
                found[key] = found.get(key, 0) + value
        return found


def scrape() -> Page:
    """Return what this process serves, read anew."""
    collector.forget()
    return scrape_again()


def scrape_again() -> Page:
    """Return what this process serves, cached or not."""
    return Page(generate_latest(REGISTRY).decode())


def increase(before: Page, after: Page, name: str) -> dict[tuple[str, str], float]:
    """Return by how much a counter went up, by table and stage."""
    earlier = before.by("table", "stage", of=name)
    later = after.by("table", "stage", of=name)
    grown = {key: value - earlier.get(key, 0) for key, value in later.items()}
    assert set(earlier) <= set(later)
    assert all(value >= 0 for value in grown.values()), "a counter went down"
    return {key: value for key, value in grown.items() if value}


def events(sql: Sql, types: Iterable[str]) -> dict[tuple[str, str], float]:
    """Return how many events of these types there are, by table and stage."""
    rows = sql(
        """SELECT "table", coalesce(data -> 'details' ->> 'stage', '') AS stage, count(*) AS n
             FROM job_events WHERE type = ANY (%s) GROUP BY 1, 2""",
        list(types),
    )
    return {(row["table"], row["stage"]): row["n"] for row in rows}

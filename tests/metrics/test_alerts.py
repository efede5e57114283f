"""The alert rules and the dashboard of docs/alerts/ ask for what is served and nothing else."""

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pytest_django import Settings

from jobreaper.schedule import Scheduler
from tests.docs import markdown
from tests.metrics import promql
from tests.metrics.page import Page, Sql, scrape
from tests.metrics.promtool import needs_promtool, promtool

pytestmark = pytest.mark.usefixtures("transactional_db")

ALERTS = markdown.ROOT / "docs" / "alerts"
TESTS_OF_RULES = "jobreaper.rules.test.yml"
RULES_FILE: dict[str, Any] = yaml.safe_load((ALERTS / "jobreaper.rules.yml").read_text())
RULES: list[dict[str, Any]] = [rule for group in RULES_FILE["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((ALERTS / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
VARIABLES = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
METRICS_PAGE = markdown.page("metrics")

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
each_panel = pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])


@pytest.fixture
def page(settings: Settings, sql: Sql) -> Page:
    settings.JOBREAPER = {"SCHEDULE": {"report": {"cron": "0 6 * * *"}}}
    Scheduler().turn()
    sql("UPDATE jobreaper_schedules SET ticked_at = now()")
    return scrape()


def labels_of(page: Page, name: str) -> dict[str, set[str]]:
    """The labels of a metric that is served, each with the values it has."""
    assert name in page.samples, f"{name} is not served"
    found: dict[str, set[str]] = {}
    for label, value in itertools.chain(*page.samples[name]):
        found.setdefault(label, set()).add(value)
    return found


def check(page: Page, expression: str) -> set[str]:
    """See that everything an expression names is served; return the labels of its result."""
    asked = list(promql.selectors(expression))
    assert asked
    result: set[str] = set()
    for selector in asked:
        served = labels_of(page, selector.name)
        result |= served.keys()
        for label, (operator, value) in selector.matchers.items():
            assert label in served
            if operator == "=":
                assert value in served[label]
            else:
                assert value.removeprefix("$") in VARIABLES
    for grouping in promql.groupings(expression):
        assert grouping <= result
    return promql.labels_of_result(expression, result)


@each_rule
def test_a_rule_asks_only_for_what_is_served(rule: dict[str, Any], page: Page) -> None:
    labels = check(page, rule["expr"])
    said = str(rule["annotations"])
    assert set(re.findall(r"\$labels\.(\w+)", said)) <= labels
    assert rule["labels"]["severity"] in ("warning", "critical")


@each_panel
def test_a_panel_asks_only_for_what_is_served(panel: dict[str, Any], page: Page) -> None:
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert panel["targets"]
    for target in panel["targets"]:
        labels = check(page, target["expr"])
        assert set(re.findall(r"{{\s*(\w+)\s*}}", target.get("legendFormat", ""))) <= labels
        used = set(re.findall(r"\$\{?([a-z]\w*)", target["expr"]))
        assert used <= VARIABLES


def test_the_choice_of_tables_is_served(page: Page) -> None:
    [query] = [v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["name"] == "table"]
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()  # type: ignore[union-attr]
    assert label in labels_of(page, metric)


def test_no_panel_lies_over_another() -> None:
    numbers = [panel["id"] for panel in PANELS]
    assert len(numbers) == len(set(numbers))
    cells = [cell for panel in PANELS for cell in covered(**panel["gridPos"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def covered(x: int, y: int, w: int, h: int) -> Iterator[tuple[int, int]]:
    return itertools.product(range(x, x + w), range(y, y + h))


@each_rule
def test_every_alert_has_a_panel(rule: dict[str, Any]) -> None:
    asked = promql.names(rule["expr"])
    shown = [set().union(*(promql.names(t["expr"]) for t in panel["targets"])) for panel in PANELS]
    assert any(asked <= names for names in shown)


def test_every_metric_is_on_the_page_of_metrics_and_no_other(page: Page) -> None:
    rows = markdown.rows(markdown.section(METRICS_PAGE, "The metrics"))
    written = {markdown.code(n)[0]: (t, set(markdown.code(labels))) for n, t, labels, _ in rows}
    served = {}
    for name, kind in page.types.items():
        sample = {"counter": "_total", "summary": "_count"}.get(kind, "")
        full = name + ("_total" if kind == "counter" else "")
        served[full] = (kind, set(labels_of(page, name + sample)))
    assert written == served


def test_every_alert_is_on_the_page_of_metrics_and_no_other() -> None:
    rows = markdown.rows(markdown.section(METRICS_PAGE, "Alerts"))
    assert [markdown.code(row[0])[0] for row in rows] == [rule["alert"] for rule in RULES]


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    checked = promtool("check", "rules", ALERTS / "jobreaper.rules.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
def test_each_alert_fires_and_stays_silent_as_its_tests_say() -> None:
    tested = promtool("test", "rules", ALERTS / TESTS_OF_RULES)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@needs_promtool
@pytest.mark.parametrize("expression", ["vector(1)", "vector(1) < 0"], ids=["always", "never"])
def test_rules_that_fire_always_or_never_fail_the_tests_of_each(
    expression: str, tmp_path: Path
) -> None:
    broken = [{**rule, "expr": expression} for rule in RULES]
    # JSON is YAML too.
    rules = json.dumps({"groups": [{"name": "broken", "rules": broken}]})
    (tmp_path / "jobreaper.rules.yml").write_text(rules)
    shutil.copy(ALERTS / TESTS_OF_RULES, tmp_path)
    tested = promtool("test", "rules", tmp_path / TESTS_OF_RULES)
    _, *groups = (tested.stdout + tested.stderr).split("FAILED:")
    failed = set(re.findall("|".join(rule["alert"] for rule in RULES), str(groups)))
    assert failed == {rule["alert"] for rule in RULES}


@needs_promtool
def test_promtool_accepts_what_is_served(page: Page) -> None:
    checked = promtool("check", "metrics", text=page.text)
    assert (checked.returncode, checked.stderr) == (0, "")

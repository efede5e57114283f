"""Times on the pages: in which time zone they are, and on which day."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobreaper.admin.charts import Chart, Series
from jobreaper.models import JobEvent, Worker
from project.media.models import Job
from tests.admin.conftest import make_job
from tests.admin.pages import html, list_of, page_of, text


@pytest.mark.django_db
def test_pages_with_times_name_the_time_zone(superuser: Client, settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    lists = [list_of(model) for model in (Job, JobEvent, Worker)]
    reaper = reverse("admin:jobreaper_reaper_changelist")
    for address in (reaper, page_of(make_job()), *lists):
        assert "Time zone: Asia/Tokyo" in text(html(superuser, address)), address


def ends(begin: datetime, step: timedelta, number: int) -> list[str]:
    times = [begin + n * step for n in range(number)]
    chart = Chart("", times, [Series("", "good", [0] * number)], step)
    return [chart.first, chart.last]


def test_a_chart_names_the_day_if_it_begins_on_another_than_it_ends() -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    minute, hour = timedelta(minutes=1), timedelta(hours=1)
    assert ends(noon, minute, 60) == ["12:00", "13:00"]
    assert ends(noon, hour, 24) == ["2026-03-01 12:00", "2026-03-02 12:00"]
    with timezone.override("Asia/Tokyo"):
        assert ends(noon + 150 * minute, minute, 60) == ["2026-03-01 23:30", "2026-03-02 00:30"]

"""The tick: who may, what it does, and that no body or header does harm."""

import json
import threading
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import OperationalError, connection
from django.middleware.csrf import get_token
from django.test import Client, RequestFactory, override_settings

from jobreaper import claim, enqueue, enqueue_many, job_handler, signals
from jobreaper.models import Job, ReaperPass
from jobreaper.reaper import hold, passes
from tests.http.conftest import TOKEN
from tests.races.rivals import Rivals
from tests.rows import Rows, Sql, ago

URL = "/api/jobs/tick"

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def seen() -> list[Any]:
    """The jobs that the handler of `mail` has run."""
    ran: list[Any] = []

    @job_handler("mail")
    def send(job: Any, lease: Any) -> None:
        ran.append(job.pk)
        if job.payload.get("fails"):
            raise ValueError("no such address")

    return ran


def tick(client: Client, **wishes: Any) -> Any:
    return client.post(URL, json.dumps(wishes), content_type="application/json")


# What it does.


def test_it_runs_what_is_due_and_counts(cron: Client, seen: list[Any], jobs: Rows) -> None:
    made = [enqueue("mail", {"fails": n == 1}).pk for n in range(3)]
    answer = tick(cron)
    assert answer.status_code == 200
    assert answer.json() == {"ok": True, "claimed": 3, "succeeded": 2, "failed": 1}
    assert "no-store" in answer["Cache-Control"]
    assert seen == made
    assert [jobs.row(pk)["status"] for pk in made] == ["success", "queued", "success"]


def test_with_nothing_due_it_says_so(cron: Client, jobs: Rows) -> None:
    jobs.plant(type="mail", next_earliest_run_at=ago(-60))
    enqueue("nobodys")
    assert tick(cron).json() == {"ok": True, "claimed": 0, "succeeded": 0, "failed": 0}


def test_it_needs_no_body(cron: Client, seen: list[Any]) -> None:
    enqueue("mail")
    assert cron.post(URL).json()["succeeded"] == 1


def test_it_runs_at_most_as_many_as_asked(cron: Client, seen: list[Any]) -> None:
    enqueue_many([{}] * 15, type="mail")
    assert tick(cron, limit=2).json()["claimed"] == 2
    assert tick(cron).json()["claimed"] == 10


def test_it_starts_nothing_when_its_time_is_spent(cron: Client, jobs: Rows) -> None:
    @job_handler("slow")
    def slow(job: Any, lease: Any) -> None:
        threading.Event().wait(1.1)

    made = enqueue_many([{}] * 5, type="slow").ids
    # The pass before it takes some of the time.
    assert tick(cron, budget_sec=1).json()["claimed"] == 1
    assert [jobs.row(pk)["attempt_count"] for pk in made] == [1, 0, 0, 0, 0]
    assert tick(cron, budget_sec=0).json()["claimed"] == 0


def test_the_time_that_the_pass_takes_counts(cron: Client, seen: list[Any]) -> None:
    def dawdle(**_: Any) -> None:
        threading.Event().wait(0.2)

    enqueue("mail")
    signals.pass_finished.connect(dawdle)
    try:
        assert tick(cron, budget_sec=0.1).json()["claimed"] == 0
    finally:
        signals.pass_finished.disconnect(dawdle)
    assert tick(cron, budget_sec=60).json()["claimed"] == 1


def test_it_reaps_first(cron: Client, seen: list[Any], jobs: Rows) -> None:
    job = enqueue("mail")
    claim(Job, job.pk)
    jobs.set(job.pk, lease_expires_at=ago(1))
    tick(cron)
    assert jobs.event_types(job.pk)[1] == "reaper:requeued"
    assert ReaperPass.objects.get().trigger == "tick"


def test_ticks_at_once_share_the_work(seen: list[Any], jobs: Rows, sql: Sql) -> None:
    meet = threading.Barrier(2)

    @job_handler("meets")
    def meets(job: Any, lease: Any) -> None:
        meet.wait(20)

    enqueue_many([{}] * 6, type="meets")

    def tick_by_cron() -> Any:
        client = Client(headers={"authorization": f"Bearer {TOKEN}"})
        return tick(client).json()["succeeded"]

    with Rivals(sql) as rivals:
        ticks = [rivals.start(tick_by_cron) for _ in range(2)]
        assert [one.result() for one in ticks] == [3, 3]


def test_it_is_no_part_of_a_transaction_of_the_requests(cron: Client) -> None:
    """A claim in it would be seen by nobody, and undone with it."""
    seen: list[bool] = []

    @job_handler("looks")
    def looks(job: Any, lease: Any) -> None:
        seen.append(connection.in_atomic_block)

    enqueue("looks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
        tick(cron)
    assert seen == [False]


def test_a_database_that_does_not_answer_is_said(cron: Client, sql: Sql, jobs: Rows) -> None:
    sql("ALTER TABLE jobreaper_jobs RENAME TO away")
    try:
        answer = tick(cron)
    finally:
        sql("ALTER TABLE away RENAME TO jobreaper_jobs")
    assert answer.status_code == 503
    assert answer.json()["ok"] is False
    assert "manage.py migrate" in answer.json()["error"]


def test_a_database_that_does_not_answer_is_said_where_waiting_for_it_took_all_the_time(
    cron: Client, seen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: object) -> str | None:
        raise OperationalError("connection refused")

    enqueue("mail")
    with monkeypatch.context() as patch:
        patch.setattr(passes, "ask", lambda *_: None)
        patch.setattr(hold, "reason_to_hold", away)
        answer = tick(cron, budget_sec=0)
        assert tick(cron, limit=1).json()["ok"]
    assert answer.status_code == 503
    assert answer.json() == {"ok": False, "error": "connection refused"}
    assert len(seen) == 1


# Who may.


@pytest.mark.parametrize("method", ["get", "put", "patch", "delete", "head", "options"])
def test_any_other_method_is_refused(method: str, cron: Client, seen: list[Any]) -> None:
    enqueue("mail")
    answer = getattr(cron, method)(URL)
    assert (answer.status_code, answer["Allow"]) == (405, "POST")
    assert seen == []


@pytest.mark.parametrize(
    "header",
    [
        "Bearer wrong",
        "Bearer",
        "Bearer ",
        "",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN} {TOKEN}",
        "Bearer \u00ff\u00fe",
        "Bearer " + "x" * 100_000,
    ],
)
def test_a_wrong_token_is_refused(header: str, seen: list[Any]) -> None:
    enqueue("mail")
    answer = tick(Client(headers={"authorization": header}))
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")
    assert answer.json()["ok"] is False
    assert seen == []


def test_without_a_token_or_a_session_it_is_refused(seen: list[Any]) -> None:
    enqueue("mail")
    assert tick(Client()).status_code == 401
    assert seen == []


def test_the_scheme_is_read_in_any_case(seen: list[Any]) -> None:
    assert tick(Client(headers={"authorization": f"bearer  {TOKEN}"})).status_code == 200


@override_settings(JOBREAPER={})
def test_where_no_token_is_set_none_is_right(seen: list[Any]) -> None:
    enqueue("mail")
    for client in (
        Client(),
        Client(headers={"authorization": "Bearer "}),
        Client(headers={"authorization": "Bearer None"}),
    ):
        answer = tick(client)
        assert answer.status_code == 403
        assert "JOBREAPER_TICK_TOKEN" in answer.json()["error"]
    assert seen == []


def csrf_token(client: Client) -> str:
    """Return a token as a page of ours would hold it, and give the client its cookie."""
    page = RequestFactory().get("/")
    token = get_token(page)
    client.cookies["csrftoken"] = page.META["CSRF_COOKIE"]
    return token


@pytest.mark.parametrize("token", [TOKEN, None])
def test_staff_may_from_a_page_of_ours(token: str | None, staff: Client, seen: list[Any]) -> None:
    enqueue("mail")
    with override_settings(JOBREAPER={"TICK_TOKEN": token} if token else {}):
        assert tick(staff).status_code == 403
        assert seen == []
        csrf = csrf_token(staff)
        answer = staff.post(URL, headers={"x-csrftoken": csrf})
        assert answer.json()["succeeded"] == 1
        enqueue("mail")
        answer = staff.post(URL, {"csrfmiddlewaretoken": csrf})
        assert answer.json()["succeeded"] == 1


def test_the_token_needs_no_csrf(seen: list[Any]) -> None:
    client = Client(enforce_csrf_checks=True, headers={"authorization": f"Bearer {TOKEN}"})
    assert tick(client).status_code == 200


def test_a_session_does_not_make_up_for_a_wrong_token(staff: Client) -> None:
    answer = staff.post(URL, headers={"authorization": "Bearer wrong"})
    assert answer.status_code == 401


@pytest.mark.parametrize("flags", [{"is_staff": False}, {"is_staff": True, "is_active": False}])
def test_users_who_are_not_active_staff_may_not(flags: dict[str, Any], seen: list[Any]) -> None:
    user = get_user_model().objects.create_user("bob", **flags)
    try:
        client = Client()
        client.force_login(user)
        assert tick(client).status_code == 401
    finally:
        user.delete()


# Bodies.


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b"5",
        b'"limit"',
        b'{"limit": 0}',
        b'{"limit": -1}',
        b'{"limit": 1001}',
        b'{"limit": 1.5}',
        b'{"limit": true}',
        b'{"limit": "5"}',
        b'{"limit": null}',
        b'{"limit": 1e400}',
        b'{"limit": ' + b"9" * 900 + b"}",
        b'{"budget_sec": -1}',
        b'{"budget_sec": NaN}',
        b'{"budget_sec": Infinity}',
        b'{"budget_sec": 1e9}',
        b'{"budget_sec": "20"}',
        b'{"worker": "mine"}',
        b"[" * 1000,
        b'{"limit":' * 100,
        b"\xff\xfe\x00",
        b"\x00",
    ],
)
def test_a_body_that_makes_no_sense_is_refused_and_runs_nothing(
    body: bytes, cron: Client, seen: list[Any]
) -> None:
    enqueue("mail")
    answer = cron.post(URL, body, content_type="application/json")
    assert answer.status_code == 400, answer.content
    assert answer.json()["ok"] is False
    assert seen == []


FORM = "application/x-www-form-urlencoded"


def post_form(client: Client, body: bytes, content_type: str) -> Any:
    """Send a form while a job is due, as a page of ours would."""
    enqueue("mail")
    return client.post(
        URL, body, content_type=content_type, headers={"x-csrftoken": csrf_token(client)}
    )


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        # `curl -d '{"limit": 3}'` says so.
        pytest.param(b'{"limit": 3}', FORM, id="JSON that is called a form"),
        pytest.param(b"limit=3", FORM, id="a form"),
        pytest.param(
            b'--x\r\nContent-Disposition: form-data; name="limit"\r\n\r\n3\r\n--x--\r\n',
            "multipart/form-data; boundary=x",
            id="a form in parts",
        ),
    ],
)
@pytest.mark.parametrize("who", ["cron", "staff"])
def test_wishes_in_a_form_are_refused_with_what_to_send_and_nothing_runs(
    who: str, body: bytes, content_type: str, request: pytest.FixtureRequest, seen: list[Any]
) -> None:
    answer = post_form(request.getfixturevalue(who), body, content_type)
    assert (answer.status_code, seen) == (415, [])
    assert "Content-Type: application/json" in answer.json()["error"]


def test_an_empty_form_wishes_nothing(cron: Client, seen: list[Any]) -> None:
    enqueue("mail")
    assert cron.post(URL).json()["succeeded"] == 1
    assert cron.post(URL, b"", content_type=FORM).status_code == 200


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        pytest.param(b"xx", "multipart/form-data; boundary=", id="no boundary"),
        pytest.param(b"xx", "multipart/form-data", id="no parts"),
        pytest.param("&".join(f"f{n}=" for n in range(2000)).encode(), FORM, id="many fields"),
        pytest.param(b"a" * 3_000_000, FORM, id="megabytes"),
        pytest.param(b"a=b", f"{FORM}; charset=utf-16", id="another charset"),
    ],
)
@pytest.mark.parametrize("who", ["cron", "staff"])
def test_a_form_that_cannot_be_read_is_refused_in_json(
    who: str, body: bytes, content_type: str, request: pytest.FixtureRequest, seen: list[Any]
) -> None:
    answer = post_form(request.getfixturevalue(who), body, content_type)
    assert (answer.status_code, seen) == (400, [])
    assert "could not be read" in answer.json()["error"]


@pytest.mark.parametrize("length", [1025, 3_000_000])
def test_a_long_body_is_refused_unread(length: int, cron: Client, seen: list[Any]) -> None:
    enqueue("mail")
    answer = cron.post(URL, b" " * length, content_type="application/json")
    assert answer.status_code == 413
    assert seen == []


def test_a_body_without_the_right_to_it_is_not_looked_at() -> None:
    assert Client().post(URL, b"{", content_type="application/json").status_code == 401

"""What is done in the background."""

import os
import time
from typing import Any

from django.core.mail import send_mail
from django_tasks import task

from tests.backend.newsletter.models import Delivery, Issue, Subscriber


class Bounced(Exception):
    """The address does not exist."""


@task()
def send_issue(issue_pk: int) -> int:
    """Have it delivered to everybody, and return how many these are."""
    addresses = list(Subscriber.objects.values_list("email", flat=True))
    for address in addresses:
        deliver.using(priority=-10).enqueue(issue_pk, email=address)
    return len(addresses)


@task(queue_name="mail", takes_context=True)
def deliver(context: Any, issue_pk: int, *, email: str) -> dict[str, Any]:
    if email.endswith(".invalid"):
        raise Bounced(email)
    issue = Issue.objects.get(pk=issue_pk)
    send_mail(issue.subject, "Read this!", "news@example.org", [email])
    Delivery.objects.create(issue=issue, email=email, attempt=context.attempt)
    return {"to": email, "issue": {"pk": issue_pk, "subject": issue.subject}}


@task()
async def count_words(text: str) -> int:
    return len(text.split())


@task()
def print_issue(issue_pk: int) -> str:
    """Print it; the printer may be slow."""
    issue = Issue.objects.get(pk=issue_pk)
    issue.state = "printing"
    issue.save()
    time.sleep(float(os.environ.get("PRINTER_SEC", "0")))
    issue.state = "printed"
    issue.save()
    return issue.subject

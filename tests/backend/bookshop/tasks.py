"""What the shop does in the background."""

import os
import time
from functools import partial
from typing import Any

from django.core.mail import send_mail
from django.db import transaction
from django.tasks import task


class CardRefused(Exception):
    """It keeps what the bank's library gave it, which can be neither pickled nor printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def order_of(pk: int) -> Any:
    # The models import this module.
    from tests.backend.bookshop.models import Order

    return Order.objects.get(pk=pk)


@task(queue_name="payments")
def charge(order_pk: int, *, coupons: list[dict[str, Any]]) -> dict[str, Any]:
    order = order_of(order_pk)
    paid = order.cents - sum(coupon["cents"] for coupon in coupons)
    if paid < 0:
        raise CardRefused
    with transaction.atomic():
        order.state = "paid"
        order.save()
        transaction.on_commit(partial(confirm.enqueue, order.pk))
    return {"paid": paid, "coupons": coupons}


@task
def confirm(order_pk: int) -> int:
    order = order_of(order_pk)
    return send_mail("Your order", "Thank you!", "shop@example.org", [order.email])


@task
async def ask_the_warehouse(title: str) -> list[str]:
    return [title, "in stock"]


@task(takes_context=True)
def who_am_i(context: Any) -> list[Any]:
    return [context.task_result.id, context.attempt]


@task
def number_invoice(number: str) -> None:
    from tests.backend.bookshop.models import Invoice

    Invoice.objects.create(number=number)


@task
def print_label(order_pk: int) -> str:
    """Print it; the printer may be slow."""
    order = order_of(order_pk)
    order.state = "printing"
    order.save()
    time.sleep(float(os.environ.get("PRINTER_SEC", "0")))
    order.state = "sent"
    order.save()
    return f"label for {order.email}"

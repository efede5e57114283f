"""Orders, and what went wrong with them."""

from django.db import models

from tests.backend.bookshop import tasks


class Order(models.Model):
    """What somebody has bought."""

    email = models.EmailField()
    cents = models.IntegerField()
    state = models.TextField(default="new")

    def place(self) -> None:
        """Save it, and have it paid and confirmed."""
        self.save()
        tasks.charge.using(priority=50).enqueue(self.pk, coupons=[{"code": "MAY", "cents": 100}])


class Invoice(models.Model):
    """One for each order."""

    number = models.TextField(unique=True)


class Trouble(models.Model):
    """A task that has failed, for the people in the office."""

    task = models.TextField()
    what = models.TextField()

"""Subscribers and issues."""

from django.db import models


class Subscriber(models.Model):
    """Who gets the newsletter."""

    email = models.EmailField(unique=True)


class Issue(models.Model):
    """What they get."""

    subject = models.TextField()
    state = models.TextField(default="draft")


class Delivery(models.Model):
    """That one of them got it."""

    issue = models.ForeignKey(Issue, models.CASCADE)
    email = models.EmailField()
    attempt = models.IntegerField()

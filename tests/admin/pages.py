"""Addresses of the admin, and what its pages show."""

import re
from html import unescape
from typing import Any

from django.db import models
from django.test import Client
from django.urls import reverse


def list_of(model: type[models.Model]) -> str:
    """The address of a model's list."""
    return reverse(f"admin:{model._meta.label_lower.replace('.', '_')}_changelist")


def page_of(row: models.Model, page: str = "change") -> str:
    """The address of a row's page."""
    return reverse(f"admin:{row._meta.label_lower.replace('.', '_')}_{page}", args=[row.pk])


def html(client: Client, address: str) -> str:
    """The page at an address that must answer."""
    response = client.get(address)
    assert response.status_code == 200, (response.status_code, address)
    return response.content.decode()


def text(page: str) -> str:
    """What a person reads on a page."""
    page = re.sub(r"(?s)<(script|style)\b.*?</\1>", " ", page)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def listed(client: Client, address: str) -> list[Any]:
    """The keys in a list, as they are ordered."""
    response = client.get(address)
    assert response.status_code == 200, (response.status_code, address)
    return [row.pk for row in response.context["cl"].result_list]


def messages(response: Any) -> str:
    """What the admin said after a POST that was followed to where it led."""
    return " | ".join(str(message) for message in response.context["messages"])

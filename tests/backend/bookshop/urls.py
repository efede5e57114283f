"""The shop's pages."""

from django.http import HttpRequest, JsonResponse
from django.urls import path

from tests.backend.bookshop.models import Order


def place(request: HttpRequest) -> JsonResponse:
    order = Order(email=request.POST["email"], cents=int(request.POST["cents"]))
    order.place()
    return JsonResponse({"order": order.pk})


urlpatterns = [path("orders/", place)]

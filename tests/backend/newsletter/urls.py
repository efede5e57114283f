"""Pages that start a task, and say how it stands."""

from datetime import timedelta

from django.http import Http404, HttpRequest, JsonResponse
from django.urls import path
from django.utils import timezone
from django_tasks import default_task_backend
from django_tasks.exceptions import TaskResultDoesNotExist

from tests.backend.newsletter.tasks import send_issue


def send(request: HttpRequest, issue_pk: int) -> JsonResponse:
    task = send_issue
    if delay := request.POST.get("minutes"):
        task = task.using(run_after=timezone.now() + timedelta(minutes=int(delay)))
    return JsonResponse({"task": task.enqueue(issue_pk).id})


async def status(request: HttpRequest, task_id: str) -> JsonResponse:
    try:
        result = await default_task_backend.aget_result(task_id)
    except TaskResultDoesNotExist:
        raise Http404 from None
    value = result.return_value if result.status == "SUCCESSFUL" else None
    return JsonResponse({"status": result.status, "value": value})


urlpatterns = [path("issues/<int:issue_pk>/", send), path("tasks/<str:task_id>/", status)]

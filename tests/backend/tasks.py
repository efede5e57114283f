"""Tasks as a project declares them."""

import threading
from importlib import import_module
from typing import Any

from jobreaper.backend.compat import PACKAGE

task: Any = import_module(PACKAGE).task


class Silent(Exception):
    """It can be neither printed nor pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __str__(self) -> str:
        raise RuntimeError("no words")


@task
def echo(*args: Any, **kwargs: Any) -> Any:
    return [list(args), kwargs]


@task()
async def aecho(*args: Any, **kwargs: Any) -> Any:
    return [list(args), kwargs]


@task(priority=10, queue_name="slow")
def answer() -> int:
    return 42


@task
def fail(words: str = "it failed") -> None:
    raise LookupError(words)


@task
async def afail(words: str = "it failed") -> None:
    raise LookupError(words)


@task
def exit_with(code: int) -> None:
    raise SystemExit(code)


@task
def fail_silently() -> None:
    raise Silent


@task
def return_what_is_no_json() -> Any:
    return object()


@task
def return_itself() -> Any:
    returned: list[Any] = []
    returned.append(returned)
    return returned


@task
def return_text(length: int) -> str:
    return "x" * length


@task(takes_context=True)
def which(context: Any, fails_before: int = 0) -> Any:
    if context.attempt <= fails_before:
        raise LookupError(f"attempt {context.attempt}")
    return [context.task_result.id, context.attempt, context.task_result.status]


@task(takes_context=True)
async def awhich(context: Any, fails_before: int = 0) -> Any:
    if context.attempt <= fails_before:
        raise LookupError(f"attempt {context.attempt}")
    return [context.task_result.id, context.attempt, context.task_result.status]


@task(takes_context=True)
def wait_at_first(context: Any) -> int:
    if context.attempt == 1:
        print("waiting", flush=True)
        threading.Event().wait(600)
    return int(context.attempt)


@task(takes_context=True)
def report(context: Any, done: int, total: int) -> str:
    context.progress(done, total)
    return "reported"


@task(takes_context=True)
async def areport(context: Any, done: int, total: int) -> str:
    context.progress(done, total)
    return "reported"

"""Explains single jobs: why one waits or stands still, or why it has ended, attempt by attempt."""

from jobreaper.explaining.attempts import Attempt, attempts_of
from jobreaper.explaining.explanation import Explanation, explain, explain_many, in_words
from jobreaper.explaining.reasons import Reason

__all__ = [
    "Attempt",
    "Explanation",
    "Reason",
    "attempts_of",
    "explain",
    "explain_many",
    "in_words",
]

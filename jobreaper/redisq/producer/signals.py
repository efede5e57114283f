"""The interface of the producer to logs, metrics and progress, sent with ``send_robust``.

====================  ==========================================================================
signal                arguments
====================  ==========================================================================
jobs_pushed           jobs: the ``Job`` of each file that was pushed to its ``origin_queue``
file_skipped          path, why: told once a file
progressed            tally (a ``Tally``), done: whether a scan has ended
watch_refused         error: the system does not report changes; the directory is scanned often
redis_failed          verb (``"push"``, ``"look"`` or ``"forget"``), error; it is tried again
====================  ==========================================================================
"""

from __future__ import annotations

from django.dispatch import Signal

jobs_pushed = Signal()
file_skipped = Signal()
progressed = Signal()
watch_refused = Signal()
redis_failed = Signal()

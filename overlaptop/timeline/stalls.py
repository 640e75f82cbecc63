"""Stalls: exposed communication that compute waited for, as far as spans alone can show."""

from __future__ import annotations

import numpy as np

from overlaptop.timeline.spans import Spans, clip, difference


def stalls(start_ns: int, end_ns: int, compute: Spans, comm: Spans) -> Spans:
    """The stretches of exposed communication in ``[start_ns, end_ns)`` that compute waited out.

    Where communication ran with no compute beside it, one of two things ended that stretch. Either the
    communication was over: compute stood still for as long as it lasted. Or compute went on while the
    communication still ran: it had been waiting for something else, such as its next launch. Only stretches
    of the first kind count.

    `compute` and `comm` are canonical and may reach beyond the step: a collective that outlasts the step
    did not end in it. The result is canonical, and a part of the step's exposed communication.
    """
    exposed = difference(clip(comm, start_ns, end_ns), compute)
    next_end = np.searchsorted(comm[:, 1], exposed[:, 1])
    waited_out: Spans = exposed[comm[next_end, 1] == exposed[:, 1]]
    return waited_out

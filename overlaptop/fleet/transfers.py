"""Transfer times of a job over minutes: the baseline for a link that became slow. Pure."""

from collections import deque
from statistics import fmean

from overlaptop.fleet.waits import StepTransfer, StepWaits
from overlaptop.fleet.window import FIRST_STEPS

EACH_NS = 250_000_000
"""Minimum time between kept steps. Longer steps are all kept."""
KEPT_STEPS = 2400
"""Ten minutes of short steps."""
NOT_ATTRIBUTED_SHARE = 0.1
"""Maximum share of a step that is not attributed. Beyond it, the step says nothing about its transfers."""


class TransferHistory:
    """Transfer times since the last change of a setting."""

    def __init__(self) -> None:
        self._kept: deque[StepTransfer] = deque(maxlen=KEPT_STEPS)

    @property
    def kept(self) -> tuple[StepTransfer, ...]:
        return tuple(self._kept)

    def add(self, waits: StepWaits) -> None:
        last = self._kept[-1] if self._kept else None
        if last is not None and waits.step <= last.step:  # restarted ranks count from 0 again
            self._kept.clear()
        elif last is not None and 0 <= waits.start_ns - last.start_ns < EACH_NS:  # a clock may be set back
            return
        times = waits.times.values()
        if waits.step < FIRST_STEPS or any(
            each.not_attributed_ns > NOT_ATTRIBUTED_SHARE * each.transfer_ns for each in times
        ):
            return
        sizes = [each.bytes for each in waits.collectives if each.bytes is not None]
        if len(sizes) == len(waits.collectives):
            took_ns = fmean(each.transfer_ns for each in times)
            self._kept.append(StepTransfer(waits.step, waits.start_ns, len(sizes), sum(sizes), took_ns))

    def forget(self, step: int) -> None:
        """Drop all steps up to and including this one."""
        while self._kept and self._kept[0].step <= step:
            self._kept.popleft()

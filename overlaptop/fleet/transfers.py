"""How long a job's transfers took, for minutes: what they took before a link became slow. Pure."""

from __future__ import annotations

from collections import deque
from statistics import fmean

from overlaptop.fleet.waits import StepTransfer, StepWaits
from overlaptop.fleet.window import FIRST_STEPS

EACH_NS = 250_000_000
"""One step of so long is kept, or each where they are longer."""
KEPT_STEPS = 2400
"""Of short steps, ten minutes."""
UNSPLIT_SHARE = 0.1
"""A step of which more is not split says nothing of its transfers."""


class TransferHistory:
    """Remembers them since a setting was changed last."""

    def __init__(self) -> None:
        self._kept: deque[StepTransfer] = deque(maxlen=KEPT_STEPS)

    @property
    def kept(self) -> tuple[StepTransfer, ...]:
        """Oldest first."""
        return tuple(self._kept)

    def add(self, waits: StepWaits) -> None:
        """One more step, with its collectives."""
        last = self._kept[-1] if self._kept else None
        if last is not None and waits.step <= last.step:  # its ranks count from 0 again
            self._kept.clear()
        elif last is not None and 0 <= waits.start_ns - last.start_ns < EACH_NS:  # a clock may be set back
            return
        times = waits.times.values()
        if waits.step < FIRST_STEPS or any(
            each.unsplit_ns > UNSPLIT_SHARE * each.transfer_ns for each in times
        ):
            return
        sizes = [each.bytes for each in waits.collectives if each.bytes is not None]
        if len(sizes) == len(waits.collectives):
            took_ns = fmean(each.transfer_ns for each in times)
            self._kept.append(StepTransfer(waits.step, waits.start_ns, len(sizes), sum(sizes), took_ns))

    def forget(self, step: int) -> None:
        """What was up to this step."""
        while self._kept and self._kept[0].step <= step:
            self._kept.popleft()

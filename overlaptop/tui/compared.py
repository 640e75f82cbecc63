"""What a change brought, before and after, as the panel shows it; or a job beside the one before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlaptop.fleet.snapshot import Snapshot
from overlaptop.tui.knob_values import with_unit
from overlaptop.wire.messages import CHANGED

if TYPE_CHECKING:
    from overlaptop.advice.comparison import Comparer, Quantity
    from overlaptop.tui.earlier import EarlierJob

EVERY_S = 2.0
"""Two jobs' steps are compared no more often: all figures are worked out anew."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Two stretches of steps."""

    title: str
    before: str
    """What the first one was: ``25 MiB``, ``ddp --bucket-cap-mb 50``."""
    after: str
    command: str
    """Id of the change between them; empty: they are of two jobs."""
    quantities: tuple[Quantity, ...]
    """Step time first."""


class Comparing:
    """Asked at each redraw; works figures out only where steps came that count."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._comparer: Comparer | None = None
        self._beside: tuple[str, Compared] | None = None
        self._beside_s = 0.0

    def take(self, snapshot: Snapshot, earlier: EarlierJob | None) -> Compared | None:
        """The newest change that was made, else this job beside the earlier one; None: neither."""
        changed = any(each.knob and each.state == CHANGED and not each.search for each in snapshot.commands)
        if self._comparer is None and changed:
            # numpy takes 100 ms to import: not before there is something to compare.
            from overlaptop.advice.comparison import Comparer

            self._comparer = Comparer()
        found = self._comparer.take(snapshot) if self._comparer is not None else None
        if found is None:
            return self._take_beside(snapshot, earlier)
        unit = next((each.knob.unit for each in snapshot.knobs if each.knob.name == found.knob), "")
        return Compared(
            found.title,
            with_unit(found.was, unit),
            with_unit(found.becomes, unit),
            found.command,
            found.quantities,
        )

    def _take_beside(self, snapshot: Snapshot, earlier: EarlierJob | None) -> Compared | None:
        if earlier is None or snapshot.job is None or earlier.job == snapshot.job.job:
            return None
        now_s = self._clock_s()
        if self._beside is None or self._beside[0] != earlier.job or now_s - self._beside_s >= EVERY_S:
            from overlaptop.advice.comparison import compare_steps

            before = [step for steps in earlier.steps.values() for step in steps]
            after = [step for view in snapshot.ranks for step in view.history]
            title = f"beside the job before: {earlier.label}"
            told = Compared(title, "before", "now", "", compare_steps(before, after))
            self._beside, self._beside_s = (earlier.job, told), now_s
        return self._beside[1]

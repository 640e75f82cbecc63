"""What the model of the job's buckets predicts of each value, beside what a search measures. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from overlaptop.fleet.snapshot import Snapshot
from overlaptop.models.bucket_sizes import Collector, StepModel
from overlaptop.tuning.space import Space
from overlaptop.wire.knobs import BUCKET_CAP_MB, Knob

CURVE_POINTS = 64


@dataclass(frozen=True, slots=True)
class CurveSample:
    """The model's curve at one value."""

    value: int
    step_ns: float
    exposed_ns: float | None


class Forecast:
    """The newest model. ``learn`` with each Snapshot; ``renew`` now and then, as that takes a moment."""

    def __init__(self, knob: Knob, space: Space, collector: Collector | None = None) -> None:
        """``collector``: one that has seen the job for a while already; None: begin with nothing."""
        self.reason = "the model knows bucket sizes only"
        """Why there is no model; empty: there is one."""
        self.curve: tuple[CurveSample, ...] = ()
        """By rising value."""
        self.stale = True
        """There may be news since it was renewed."""
        self._space = space
        self._collector = (collector or Collector()) if knob.name == BUCKET_CAP_MB else None
        self._model: StepModel | None = None
        self._known: dict[int, float | None] = {}
        self._blind: dict[int, float | None] = {}
        if self._collector is not None:
            self.reason = "no timeline was seen yet"

    def learn(self, snapshot: Snapshot) -> None:
        """Take what the ranks' timelines show."""
        if self._collector is not None:
            self._collector.add(snapshot)

    def renew(self) -> None:
        """Make the model anew from all that was seen; it stays stale where that cannot be done yet."""
        if self._collector is None:
            self.stale = False
            return
        found = self._collector.model()
        if not isinstance(found, StepModel):
            # An earlier one goes on: with what was seen since, none may fit just now.
            self.reason = found.reason if self._model is None else ""
            return
        self._model, self.reason, self._known = found, "", {}
        self.stale = False
        low, high = self._space.position(self._space.least), self._space.position(self._space.most)
        at = [low + (high - low) * point / (CURVE_POINTS - 1) for point in range(CURVE_POINTS)]
        self.curve = tuple(
            CurveSample(value, each.step_ns, each.exposed_ns)
            for value in sorted({self._space.near(position) for position in at})
            for each in [found.predict(value)]
        )

    def step_ns(self, value: int) -> float | None:
        """The step with this value; None: there is no model."""
        if self._model is None:
            return None
        if value not in self._known:
            self._known[value] = self._model.predict(value).step_ns
        return self._known[value]

    def foretell(self, value: int) -> None:
        """Note what is predicted of a value that is about to be measured for the first time."""
        self._blind.setdefault(value, self.step_ns(value))

    def foretold_ns(self, value: int) -> float | None:
        """What was predicted of it before it was measured; None: there was no model then."""
        return self._blind.get(value)

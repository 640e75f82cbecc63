"""The step that any bucket size would take, from what a running DDP job shows of itself.

A `Collector` reads the timelines of the ranks as they come by in snapshots (ddp_step.py). From them it
learns how long an all-reduce takes by its size (alpha_beta.py), when gradients are ready along backward
(ready_times.py), and what forward, backward without waiting, and the optimizer take. buckets.py makes steps
of these. `StepModel.offset_ns` is added to each, so that the present setting's is what was measured.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from statistics import median

import numpy as np
from numpy.typing import NDArray

from overlaptop.fleet.commands import FAILED, CommandView
from overlaptop.fleet.snapshot import RankView, Snapshot
from overlaptop.models.alpha_beta import Fit, NoFit, Observation, fit_groups
from overlaptop.models.buckets import MIB, Compute, GradientList, Prediction, predict
from overlaptop.models.ddp_step import ALL_REDUCE, SeenStep, read_step
from overlaptop.models.ready_times import Ready, curve
from overlaptop.models.slowdown import Slowdown, slowdown
from overlaptop.stats.noise import estimate
from overlaptop.wire.knobs import BUCKET_CAP_MB, GradientFacts, Knob
from overlaptop.wire.messages import StepDetail

PENDING_STEPS = 32
"""Steps of which some ranks' timelines are still to come."""
MOST_WATCHED = 16
"""Ranks whose timelines are asked for: of more, that would cost the job more than the model is worth."""
KEPT_STEPS = 64
"""Of each layout, the newest ones."""
FEWEST_STEPS, FEWEST_BY_HOST = 2, 5
"""Of a layout, before anything is built on it: of steps whose collectives the device timed, which are few
and exact; and of those that the host's clock timed."""
KEPT_LAYOUTS = 64
KEPT_SIZES, KEPT_OF_SIZE = 64, 64
"""Sizes of collectives, and of each the newest ones."""
SLOWDOWN_ROUNDS = 20
EVEN_PIECES = 1_000
"""Gradients that are too many to be listed one by one are taken to be so many of one size."""


@dataclass(frozen=True, slots=True)
class NoModel:
    """Why there is none yet, and what would help."""

    reason: str
    """One line without a full stop."""


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """The step with one bucket size."""

    cap_mb: float
    step_ns: int
    """Of the model and the offset together."""
    exposed_ns: int
    """Communication after backward, for which the step waits; of the model alone."""
    buckets: int


@dataclass(frozen=True, eq=False)
class StepModel:
    """A running job's step by its bucket size."""

    size_bytes: NDArray[np.int64]
    """Of each gradient, in the order of the buckets, shape (n,)."""
    ready: NDArray[np.float64]
    """When each is ready, as a share of backward, shape (n,)."""
    link: Fit
    compute: Compute
    """With the measured size. The backward of others differs by the slowdown, where that is known."""
    slowdown: Slowdown | None
    """What communication beside it does to backward; None: nothing beyond noise."""
    present_mb: float
    """The bucket size of the newest steps of which enough were seen: at it the model is held to what was
    measured. While the job changes to another one, that is the size before.
    """
    original_mb: float | None
    first_cap_bytes: int | None
    """With the original size, which the script made: the first bucket's own cap. With any other there is
    none."""
    measured_ns: int
    """The step with the present size, as `noise.estimate` has it."""
    steps: int
    """How many steps the model was made from, of all settings."""
    layouts: int
    """How many settings these had."""

    _predictions: dict[float, Prediction] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def offset_ns(self) -> int:
        """What the model alone lacks at the present setting: below 0, it predicts too much."""
        return self.measured_ns - self.alone(self.present_mb).step_ns

    def alone(self, cap_mb: float) -> Prediction:
        """The model without the offset, bucket by bucket. Raises ValueError for what cannot be a cap."""
        if cap_mb not in self._predictions:
            self._predictions[cap_mb] = self._predicted(cap_mb)
        return self._predictions[cap_mb]

    def _predicted(self, cap_mb: float) -> Prediction:
        cap_bytes = round(cap_mb * MIB)
        first_cap_bytes = self.first_cap_bytes if cap_mb == self.original_mb else None
        found = self._with_backward(self.compute.backward_ns, cap_bytes, first_cap_bytes)
        if self.slowdown is None:
            return found
        for _ in range(SLOWDOWN_ROUNDS):
            # A longer backward hides more, which makes it longer still: less so from round to round.
            backward_ns = self.slowdown.alone_ns + self.slowdown.factor * found.hidden_ns
            middle_ns = round((backward_ns + found.compute.backward_ns) / 2)
            found = self._with_backward(middle_ns, cap_bytes, first_cap_bytes)
        return found

    def _with_backward(self, backward_ns: int, cap_bytes: int, first_cap_bytes: int | None) -> Prediction:
        gradients = GradientList(self.size_bytes, np.rint(self.ready * backward_ns).astype(np.int64))
        compute = replace(self.compute, backward_ns=backward_ns)
        return predict(gradients, compute, self.link.model, cap_bytes, first_cap_bytes)

    def predict(self, cap_mb: float) -> PredictedStep:
        """The step with this bucket size in MiB. Raises ValueError for what cannot be a cap."""
        alone = self.alone(cap_mb)
        step_ns = max(1, alone.step_ns + self.offset_ns)
        return PredictedStep(cap_mb, step_ns, alone.exposed_ns, len(alone.end_ns))


class _Known:
    """What was gathered of steps that do the same but for the bucket size."""

    def __init__(self, done: int = -1) -> None:
        self.done = done
        """The newest step that was taken, or is not to be."""
        self.pending: dict[int, dict[int, StepDetail]] = {}
        """By step and rank."""
        self.layouts: OrderedDict[tuple[int, ...], deque[SeenStep]] = OrderedDict()
        """By the buckets' sizes, the newest last."""
        self.collectives: OrderedDict[int, deque[Observation]] = OrderedDict()
        """By size, the newest last."""
        self.useless = ""
        """Why the newest step was of no use that was of none."""

    def take(self, facts: GradientFacts, details: list[StepDetail], queued: bool) -> None:
        """Learn from one step, of which these are all ranks' timelines."""
        seen = read_step(details, facts.group, sum(facts.size_bytes), queued=queued)
        if isinstance(seen, str):
            self.useless = seen
            return
        self.layouts.setdefault(seen.bucket_bytes, deque(maxlen=KEPT_STEPS)).append(seen)
        self.layouts.move_to_end(seen.bucket_bytes)
        for each in seen.all_reduces:
            self.collectives.setdefault(each.size_bytes, deque(maxlen=KEPT_OF_SIZE)).append(each)
            self.collectives.move_to_end(each.size_bytes)
        while len(self.layouts) > KEPT_LAYOUTS:
            self.layouts.popitem(last=False)
        while len(self.collectives) > KEPT_SIZES:
            self.collectives.popitem(last=False)


class Collector:
    """Gathers what the model is made from. Feed it with each snapshot; all ranks have to be watched."""

    def __init__(self) -> None:
        self._knob: Knob | None = None
        """As all ranks last reported it: while they change, that is the value before."""
        self._facts: GradientFacts | None = None
        self._why = "nothing has been seen yet"
        """Why nothing can be learned at all; empty: it can."""
        self._changes: list[CommandView] = []
        """Of the bucket size, those on whose step the ranks have agreed, in its order."""
        self._job: object = None
        self._others: tuple[tuple[str, str], ...] = ()
        """The other knobs, and their values."""
        self._known = _Known()
        self._by_device = False
        """Collectives are timed on the device, where each starts when the one before it has ended."""

    def add(self, snapshot: Snapshot) -> None:
        """Take what is new of the ranks' timelines."""
        self._follow_knob(snapshot)
        job = (
            snapshot.job.job if snapshot.job is not None else None,
            tuple(view.info.pid for view in snapshot.ranks if view.info is not None),
        )
        others = tuple(
            (each.knob.name, each.knob.value_text)
            for each in snapshot.knobs
            if each.knob.name != BUCKET_CAP_MB
        )
        if job != self._job:
            self._known = _Known()
        elif others != self._others:
            self._known = _Known(self._known.done)  # from now on its steps do something else
        self._job, self._others = job, others
        ranks = [view for view in snapshot.ranks if not view.ended]
        self._facts = next((view.gradients for view in ranks if view.gradients is not None), None)
        self._why = _objection(self._facts, ranks)
        if self._facts is None or self._why:
            return
        known = self._known
        for view in ranks:
            for detail in view.details:
                if detail.step > known.done and not _is_disturbed(view, detail.step):
                    known.pending.setdefault(detail.step, {})[view.rank] = detail
        self._by_device = all(view.info is not None and view.info.source != "host" for view in ranks)
        for step in sorted(step for step, of in known.pending.items() if len(of) == len(ranks)):
            known.take(self._facts, [*known.pending.pop(step).values()], self._by_device)
            known.done = step
        while len(known.pending) > PENDING_STEPS:
            del known.pending[min(known.pending)]

    def _follow_knob(self, snapshot: Snapshot) -> None:
        reported = next((each for each in snapshot.knobs if each.knob.name == BUCKET_CAP_MB), None)
        if reported is None or not reported.differs:
            self._knob = reported.knob if reported is not None else None
        self._changes = _agreed_changes(snapshot.commands)

    def model(self) -> StepModel | NoModel:
        """The model as far as it can be made now."""
        try:
            found = self._model()
            if isinstance(found, StepModel):
                found.predict(found.present_mb)
        except ValueError as error:  # figures from elsewhere that make no step
            return NoModel(str(error))
        return found

    def _model(self) -> StepModel | NoModel:
        facts, known = self._facts, self._known
        if facts is None or self._why:
            return NoModel(self._why)
        fewest = FEWEST_STEPS if self._by_device else FEWEST_BY_HOST
        enough = [steps for steps in known.layouts.values() if len(steps) >= fewest]
        if not enough:
            most = max(map(len, known.layouts.values()), default=0)
            seen = f"{most} of {fewest} steps were seen on all ranks at once"
            return NoModel(f"{seen}: {known.useless}" if known.useless else seen)
        newest = ((steps, self._megabytes_at(steps[-1].number)) for steps in reversed(enough))
        layout, present_mb = next((each for each in newest if each[1] is not None), (enough[-1], None))
        if present_mb is None:
            return NoModel("the bucket size of the steps that were seen is not known")
        found = fit_groups(chain.from_iterable(known.collectives.values()))
        link = found.get((ALL_REDUCE, facts.group))
        if not isinstance(link, Fit):
            return NoModel(_advice(link))
        now = estimate([step.step_ns for step in layout])
        assert now is not None
        compute = Compute(
            backward_ns=round(median(step.backward_ns for step in layout)),
            forward_ns=round(median(step.forward_ns for step in layout)),
            optimizer_ns=round(median(step.after_ns for step in layout)),
        )
        shares, at = curve(chain.from_iterable(_usual_ready(steps) for steps in enough))
        sizes = np.array(facts.size_bytes or _pieces(sum(layout[-1].bucket_bytes)), dtype=np.int64)
        sizes = sizes[sizes > 0]
        return StepModel(
            size_bytes=sizes,
            ready=np.interp(np.cumsum(sizes) / sizes.sum(), shares, at),
            link=link,
            compute=compute,
            slowdown=slowdown(
                ([step.backward_ns for step in steps], [step.hidden_ns for step in steps])
                for steps in enough
            ),
            present_mb=present_mb,
            original_mb=_megabytes(self._knob.original_text) if self._knob is not None else None,
            first_cap_bytes=facts.first_cap_bytes,
            measured_ns=round(now.centre),
            steps=sum(map(len, enough)),
            layouts=len(enough),
        )

    def _megabytes_at(self, step: int) -> float | None:
        """The bucket size with which a step ran; None: not known, or not yet."""
        made = [each for each in self._changes if _step_of(each) <= step]
        to_come = self._changes[len(made) :]
        if made and (made[-1].becomes or not made[-1].done):
            return _megabytes(made[-1].becomes)  # while ranks still change, it is not reported
        if to_come and to_come[0].was:
            return _megabytes(to_come[0].was)
        return _megabytes(self._knob.value_text) if self._knob is not None else None


def _agreed_changes(given: Iterable[CommandView]) -> list[CommandView]:
    """Changes of the bucket size that are made or will be, by their steps."""
    changes = [
        each
        for each in given
        if each.knob == BUCKET_CAP_MB and each.step is not None and each.state != FAILED
    ]
    return sorted(changes, key=lambda each: (_step_of(each), each.at_ns))


def _step_of(change: CommandView) -> int:
    """From which on it is made."""
    assert change.step is not None, "it was agreed on"
    return change.step


def _objection(facts: GradientFacts | None, ranks: list[RankView]) -> str:
    """Why nothing can be learned from these ranks; empty: it can."""
    if facts is None:
        return "no rank has reported the gradients of a DistributedDataParallel model"
    if facts.world_size != len(ranks):
        return f"gradients are reduced among {facts.world_size} ranks, and {len(ranks)} are seen"
    if facts.world_size < 2:
        return "one rank alone reduces nothing"
    return ""


def _is_disturbed(view: RankView, step: int) -> bool:
    return next((each.disturbed for each in reversed(view.history) if each.step == step), False)


def _usual_ready(steps: deque[SeenStep]) -> list[Ready]:
    """Of each bucket of a layout, when it usually starts."""
    usual = []
    for of_bucket in zip(*(step.ready for step in steps), strict=True):
        exact = sorted(ready.exact for ready in of_bucket)[len(of_bucket) // 2]
        usual.append(Ready(of_bucket[0].share, median(ready.at for ready in of_bucket), exact))
    return usual


def _advice(link: NoFit | None) -> str:
    reason = link.reason if link is not None else "no all-reduce was timed"
    return f"{reason}; a search measures other bucket sizes too, and they will show it"


def _pieces(total_bytes: int) -> list[int]:
    pieces = min(EVEN_PIECES, total_bytes)
    each_bytes, larger = divmod(total_bytes, pieces)
    return [each_bytes + 1] * larger + [each_bytes] * (pieces - larger)


def _megabytes(text: str) -> float | None:
    try:
        cap_mb = float(text)
    except ValueError:
        return None
    return cap_mb if 0 < cap_mb < 2**33 else None

"""Runs trials on a job: tries candidates in random order, each against the present state, until it is known
what they do or the steps are spent.

The job takes a trial back by itself, so there is nothing to undo: a runner may stop, or die, at any moment.
It is driven by ``tick`` with each new Snapshot, never blocks, and needs nothing but a session.

One trial is one pair of `effect.Pair`. Before it the job makes steps with the present value, in which the
ranks agree on the trial's first step; after it as many again. Left out are steps that a capture or a switch
disturbed, and the first few after one. Each round tries every candidate once that is not known yet, in an
order drawn anew, so that nothing periodic meets one candidate only.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, pstdev

from overlaptop.fleet.commands import FAILED, CommandView
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.trials.effect import LOOKS, Effect, Pair
from overlaptop.trials.steps import JobStep, StepReader
from overlaptop.wire.commands import (
    ABOUT_KNOBS,
    MAX_TRIAL_STEPS,
    TRIED,
    UNKNOWN,
    Command,
    argument,
    is_delay,
)

SETTLE_STEPS = 2
"""Left out after a switch besides those that it disturbs: a GPU's CPU regains its lead, caches fill."""
WARM_UP_STEPS = 20
"""A job's first steps take longer."""
BLOCK_STEPS = 10
"""Steps that a mean is of, at least."""
BLOCK_NS = 1_000_000_000
"""And as long, for ranks need about as long to agree on the next trial."""
SWITCH_STEPS = 2
"""That a switch disturbs, as DDP builds its buckets anew."""
BUDGET_STEPS, BUDGET_NS = 1_000, 90_000_000_000
"""For each candidate, where no budget is given: so many steps, or steps for so long, if that is more."""
AGAIN_NS = 1_000_000_000
"""Before a trial that failed is asked for again."""
TRIES = 3
BUSY_NS = 60_000_000_000
"""Somebody's capture takes no longer."""
LOST_NS = 120_000_000_000
"""A connection to another host is tried every 30 s or so."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is tried against the present state of the job."""

    key: int
    """A knob's value, or the rank that is delayed."""
    name: str
    """For a person: ``50 MiB``, ``rank 1``."""
    make: Callable[[int], Command]
    """The command that tries it for so many steps."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What is known of a candidate."""

    candidate: Candidate
    pairs: tuple[Pair, ...]
    """One for each trial."""
    effect: Effect | None
    """None before the first."""
    known: bool
    steps: int
    """In which it was measured."""
    refused: str = ""
    """Why the job does not try it; empty: it does."""


@dataclass(frozen=True, slots=True)
class TrialsState:
    """All trials at one moment."""

    tried: tuple[Tried, ...]
    """In the candidates' order."""
    present_ns: float | None
    """The mean step with the present value, of all pairs; None before the first."""
    doing: str
    """One line."""
    over: bool
    why: str
    """Why they ended early; empty: they did not, or go on."""
    failed: bool
    """They ended neither by themselves nor because a person wished so."""
    spent_steps: int
    budget_steps: int | None
    """None: not known yet."""


@dataclass(slots=True)
class _Progress:
    candidate: Candidate
    pairs: list[Pair] = field(default_factory=list)
    effect: Effect | None = None
    known: bool = False
    steps: int = 0
    refused: str = ""

    @property
    def open(self) -> bool:
        return not (self.known or self.refused or len(self.pairs) >= LOOKS[-1])


@dataclass(slots=True)
class _Asked:
    """A trial that was asked for."""

    progress: _Progress
    command: Command
    steps: int
    asked_before: int
    """The first step that had not been seen yet."""
    first: int | None = None
    """Of its steps, once agreed on."""
    done: bool = False
    """All ranks have reported that they took it back."""
    delay_ns: int = 0
    """As the delayed rank timed it."""


def trial_steps(step_ns: float) -> int:
    """Steps that one trial takes in a job with steps of this length."""
    return _block_steps(step_ns) + SWITCH_STEPS + SETTLE_STEPS


class Trials:
    """Call ``tick`` with each new Snapshot of the job; ``state`` is what to show."""

    def __init__(
        self,
        session: Session,
        candidates: Sequence[Candidate],
        measure: Callable[[Sequence[Pair]], Effect | None],
        is_known: Callable[[Effect], bool],
        *,
        budget_steps: int | None = None,
        seed: int = 0,
    ) -> None:
        """``measure``: a candidate's effect from its pairs. ``is_known``: whether more pairs are no use.
        ``budget_steps``: no trial begins after so many; None: as BUDGET_STEPS says.
        """
        self._session, self._measure, self._is_known = session, measure, is_known
        self._all = [_Progress(candidate) for candidate in candidates]
        self._budget_steps = budget_steps
        self._chance = random.Random(seed)  # noqa: S311 - an order, not a secret
        self._round: list[_Progress] = []
        """Still to be tried in this round; the next one is last."""
        self._reader = StepReader()
        self._steps: dict[int, JobStep] = {}
        """Since the last pair was measured."""
        self._free_from = WARM_UP_STEPS
        """The first step that may stand for the present value before the next trial."""
        self._asked: _Asked | None = None
        self._lags: deque[int] = deque(maxlen=4)
        self._again_ns = self._busy_since_ns = 0
        self._failures = 0
        self._spent = 0
        self._job = ""
        self._pids: dict[int, int] = {}
        self._earlier: frozenset[str] | None = None
        self._own: set[str] = set()
        self._doing, self._why, self._failed, self._over = "waits for the job's next step", "", False, False

    @property
    def over(self) -> bool:
        """Nothing more is tried."""
        return self._over

    def stop(self, why: str = "stopped") -> None:
        """Try nothing more. A trial under way ends by itself."""
        self._end(why, failed=False)

    def tick(self, snapshot: Snapshot) -> None:
        """Look at the job, and have it try what comes next."""
        if self._over or snapshot.job is None or snapshot.replaying:
            return
        if self._earlier is None:
            self._job = snapshot.job.job
            self._earlier = frozenset(view.id for view in snapshot.commands)
        if why := self._interruption(snapshot):
            self._end(why, failed=True)
            return
        steps = self._reader.read(snapshot)
        self._steps.update((step.number, step) for step in steps)
        self._spent += len(steps)
        if snapshot.hub_state is not HubState.LIVE:
            self._doing = "waits: there is no connection to the job"
            if snapshot.at_ns - snapshot.hub_since_ns > LOST_NS:
                self._end("the connection to the job broke and did not come back", failed=True)
            return
        self._follow(snapshot)
        if self._asked is not None and self._asked.done:
            self._take_pair(self._asked)
        if self._asked is None and not self._over:
            self._go_on(snapshot)

    @property
    def state(self) -> TrialsState:
        """The trials as they are now."""
        pairs = [pair for each in self._all for pair in each.pairs]
        return TrialsState(
            tried=tuple(
                Tried(each.candidate, tuple(each.pairs), each.effect, each.known, each.steps, each.refused)
                for each in self._all
            ),
            present_ns=fmean(pair.present_ns for pair in pairs) if pairs else None,
            doing=self._doing,
            over=self._over,
            why=self._why,
            failed=self._failed,
            spent_steps=self._spent,
            budget_steps=self._budget_steps,
        )

    # What the job and others do

    def _interruption(self, snapshot: Snapshot) -> str:
        """Why nothing can be compared any more; empty: it can."""
        if snapshot.job is None or snapshot.job.job != self._job:
            return "the job was replaced by another one"
        if snapshot.hub_state in (HubState.ENDED, HubState.TRACE):
            return "the job ended"
        for view in snapshot.ranks:
            if view.ended:
                return f"rank {view.rank} ended"
            if view.info is not None and self._pids.setdefault(view.rank, view.info.pid) != view.info.pid:
                return f"rank {view.rank} was started again"
        for other in snapshot.commands:
            if other.id not in self._own | (self._earlier or frozenset()) and _changes(other):
                return f"somebody else changed the job: {other.words} ({other.by})"
        return ""

    def _follow(self, snapshot: Snapshot) -> None:
        """What has become of the trial that was asked for."""
        asked = self._asked
        if asked is None or asked.done:
            return
        view = snapshot.command(asked.command.id)
        if view is None:
            self._fail("the trial was lost on the way", snapshot.at_ns)
            return
        if view.step is not None and asked.first is None:
            asked.first = view.step
            self._lags.append(view.step - asked.asked_before)
            self._doing = f"tries {asked.progress.candidate.name} from step {view.step:,} on"
        if view.state == TRIED:
            asked.done = view.done
            if is_delay(asked.command):
                timed = view.becomes if view.becomes.isdecimal() else "0"
                asked.delay_ns = int(timed) or argument(asked.command, "delay_ns")
            self._failures = self._busy_since_ns = 0
        elif view.state == UNKNOWN:
            self._end(f"not known whether the trial was made: {view.reason}", failed=True)
        elif view.state == FAILED and view.busy:
            self._wait_for_others(view, snapshot.at_ns)
        elif view.state == FAILED and view.step is not None:
            self._end(f"the trial failed: {view.reason}", failed=True)
        elif not asked.progress.pairs and any(rank.state == "refused" for rank in view.ranks):
            asked.progress.refused, self._asked = view.reason, None
        elif view.state == FAILED:
            self._fail(view.reason, snapshot.at_ns)

    def _wait_for_others(self, view: CommandView, now_ns: int) -> None:
        self._asked, self._again_ns = None, now_ns + AGAIN_NS
        self._busy_since_ns = self._busy_since_ns or now_ns
        self._doing = "waits: another command is under way"
        if now_ns - self._busy_since_ns > BUSY_NS:
            self._end(view.reason, failed=True)

    def _fail(self, why: str, now_ns: int) -> None:
        """Ask again in a moment, or give up."""
        self._asked, self._again_ns = None, now_ns + AGAIN_NS
        self._failures += 1
        if self._failures > TRIES:
            self._end(why, failed=True)

    def _end(self, why: str, *, failed: bool) -> None:
        if not self._over:
            self._over, self._why, self._failed, self._doing = True, why, failed, why or "done"

    # Trying and measuring

    def _go_on(self, snapshot: Snapshot) -> None:
        """Ask for the next trial, once enough steps of the present value are there."""
        self._round = [each for each in self._round if each.open]
        if not self._round:
            self._round = [each for each in self._all if each.open]
            self._chance.shuffle(self._round)
        if not self._round:
            self._end("", failed=False)
            return
        before = self._present(self._free_from, None)
        if len(before) < BLOCK_STEPS // 2:
            self._doing = "waits for steps to compare with"
            return
        step_ns = median(step.step_ns for step in before)
        if self._budget_steps is None:
            self._budget_steps = len(self._all) * max(BUDGET_STEPS, round(BUDGET_NS / step_ns))
        if self._spent >= self._budget_steps:
            self._end(f"{self._budget_steps:,} steps were spent", failed=False)
            return
        # Ranks take a while to agree, in which the job goes on with the present value.
        soon = len(before) + max(0, min(self._lags, default=0) - 1)
        if (
            soon < _block_steps(step_ns) // 2
            or snapshot.at_ns < self._again_ns
            or self._reader.next is None
        ):
            return
        progress = self._round.pop()
        steps = trial_steps(step_ns)
        try:
            command = progress.candidate.make(steps)
        except ValueError as error:
            progress.refused = str(error)
            return
        if why := self._session.send(command):
            self._fail(why, snapshot.at_ns)
            return
        self._own.add(command.id)
        self._asked = _Asked(progress, command, steps, self._reader.next)
        self._doing = f"ranks agree on a step to try {progress.candidate.name}"

    def _take_pair(self, asked: _Asked) -> None:
        """Measure the trial, once as many steps have come after it as count of those before."""
        assert asked.first is not None, "all ranks have tried it"
        end = asked.first + asked.steps
        tried = _settled(self._between(asked.first, end), in_trial=True)
        before = self._present(self._free_from, asked.first)
        half = min(len(tried) // 2, len(before))
        after = self._present(end, None, settle=SETTLE_STEPS)
        if len(after) < half:
            return
        if half >= BLOCK_STEPS // 4:
            around = (*before[-half:], *after[:half])
            progress = asked.progress
            jitter_ns = pstdev(step.step_ns for step in around)
            pair = Pair(_mean_ns(tried[: 2 * half]), _mean_ns(around), asked.delay_ns, jitter_ns)
            progress.pairs.append(pair)
            progress.steps += 2 * half
            progress.effect = self._measure(progress.pairs)
            progress.known = progress.effect is not None and self._is_known(progress.effect)
        self._free_from = after[half - 1].number + 1 if half else end
        self._steps = {number: step for number, step in self._steps.items() if number >= self._free_from}
        self._asked = None

    def _present(self, first: int, end: int | None, settle: int = 0) -> list[JobStep]:
        """Steps of the present value."""
        return _settled(self._between(first, end), settle, in_trial=False)

    def _between(self, first: int, end: int | None) -> list[JobStep]:
        last = max(self._steps, default=-1) + 1 if end is None else end
        return [step for number, step in self._steps.items() if first <= number < last]


def _settled(steps: Iterable[JobStep], settle: int = SETTLE_STEPS, *, in_trial: bool) -> list[JobStep]:
    """Those that nothing disturbed, nor one shortly before. ``settle``: left out at the beginning."""
    found = []
    for step in steps:
        if step.disturbed or step.in_trial is not in_trial:
            settle = SETTLE_STEPS
        elif settle:
            settle -= 1
        else:
            found.append(step)
    return found


def _block_steps(step_ns: float) -> int:
    """Steps that a trial's mean is of: an even number."""
    most = MAX_TRIAL_STEPS - SWITCH_STEPS - SETTLE_STEPS
    return min(max(BLOCK_STEPS, round(BLOCK_NS / step_ns / 2) * 2), most)


def _mean_ns(steps: Sequence[JobStep]) -> float:
    return fmean(step.step_ns for step in steps)


def _changes(view: CommandView) -> bool:
    """Whether a command changes the job's pace, for good or for a while."""
    begun = view.step is not None or view.state == UNKNOWN
    return view.name in ABOUT_KNOBS and view.state != FAILED and begun

"""Runs trials on a job: tries candidates in random order, each against the present state, until their
effects are known or the steps are spent.

The job undoes a trial by itself, so a runner may stop, or die, at any moment. The caller passes each new
Snapshot to ``tick``. It never blocks, and needs only a session.

One trial is one pair of `effect.Pair`. Before it, the job makes steps with the present value, during which
the ranks agree on the trial's first step. After it, the job makes the same number of steps. Steps that a
capture or a switch disturbed are left out, and so are the first few after one. Each round tries every
candidate once that is not known yet, in a new random order, so that no periodic disturbance affects only
one candidate.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf
from statistics import fmean, median, pstdev

from overlaptop.fleet.commands import FAILED, CommandView
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.trials.effect import LOOKS, Effect, Pair
from overlaptop.wire.commands import (
    ABOUT_KNOBS,
    MAX_TRIAL_STEPS,
    TRIED,
    UNKNOWN,
    Command,
    argument,
    is_delay,
)

SETTLE_STEPS = 2  # Steps left out after the disturbed ones: a GPU's CPU regains its lead, and caches fill
WARM_UP_STEPS = 20  # A job's first steps take longer
BLOCK_STEPS = 10  # Minimum number of steps in a mean
BLOCK_NS = 1_000_000_000
"""Minimum duration of these steps: ranks need about as long to agree on the next trial."""
SWITCH_STEPS = 2  # Steps that a switch disturbs, for example while DDP rebuilds its buckets
BUDGET_STEPS, BUDGET_NS = 1_000, 90_000_000_000
"""Default budget for each candidate: this many steps, or steps for this long, whichever is more."""
AGAIN_NS, FAILING_NS = 2_000_000_000, 30_000_000_000
"""Pause before a failed trial is requested again, such as during a capture. Time of failures that ends
trials."""
LOST_NS = 120_000_000_000  # Maximum time without a connection. A host is retried every 30 s or so.


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change to try against the present state of the job."""

    key: int  # A knob's value, or the delayed rank
    name: str  # As text: ``50 MiB``, ``rank 1``
    make: Callable[[int], Command]  # Returns the command that tries it for a number of steps


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate and its results so far."""

    candidate: Candidate
    pairs: tuple[Pair, ...] = ()  # One for each trial
    effect: Effect | None = None  # None before the first pair
    known: bool = False
    steps: int = 0  # Number of steps that it was measured in
    refused: str = ""  # Why the job refuses to try it. Empty if it does not.

    @property
    def open(self) -> bool:
        return not (self.known or self.refused or len(self.pairs) >= LOOKS[-1])


@dataclass(slots=True)
class TrialsState:
    """The present state of all trials."""

    by_key: dict[int, Tried]  # By the candidates' keys, in their order
    budget_steps: int | None  # None if not known yet
    doing: str = "waits for the job's next step"  # Current activity as one line
    over: bool = False
    why: str = ""  # Why they ended early. Empty if they did not, or still run.
    failed: bool = False  # They were neither completed nor stopped by a person
    spent_steps: int = 0
    step_ns: float | None = None  # Length of a step with the present value. None if not known yet.

    @property
    def tried(self) -> tuple[Tried, ...]:
        return tuple(self.by_key.values())

    @property
    def present_ns(self) -> float | None:
        """Mean step with the present value, over all pairs. None before the first pair."""
        pairs = [pair for each in self.tried for pair in each.pairs]
        return fmean(pair.present_ns for pair in pairs) if pairs else None

    @property
    def left_ns(self) -> int | None:
        """Length of the steps left of the budget. None if not known yet."""
        if self.budget_steps is None or self.step_ns is None:
            return None
        return round(max(0, self.budget_steps - self.spent_steps) * self.step_ns)

    def end(self, why: str, *, failed: bool) -> None:
        if not self.over:
            self.over, self.why, self.failed, self.doing = True, why, failed, why or "done"


@dataclass(frozen=True, slots=True)
class _JobStep:
    """A step that all ranks have finished."""

    number: int
    step_ns: int  # Median over the ranks
    disturbed: bool  # A capture, or the switch between two values, disturbed it on some rank
    in_trial: bool  # A trial was running on some rank


@dataclass(slots=True)
class _Asked:
    key: int  # The candidate's
    command: Command
    steps: int
    asked_before: int  # First step that had not been seen at the request
    first: int | None = None  # First step of the trial, once the ranks have agreed
    done: bool = False  # All ranks have reported that they undid it
    delay_ns: int = 0  # As timed by the delayed rank


def trial_steps(step_ns: float) -> int:
    """Return the number of steps of one trial, for steps of this length."""
    return _block_steps(step_ns) + SWITCH_STEPS + SETTLE_STEPS


def longest_ns(step_ns: float) -> int:
    """Return the longest time that trying one candidate may take, for steps of this length."""
    return round(max(BUDGET_STEPS * step_ns, BUDGET_NS))


class Trials:
    """Runs trials. Call ``tick`` with each new Snapshot of the job, and show ``state``."""

    def __init__(
        self,
        session: Session,
        candidates: Sequence[Candidate],
        measure: Callable[[Sequence[Pair]], Effect | None],
        is_known: Callable[[Effect], bool],
        *,
        budget_steps: int | None = None,
    ) -> None:
        """``measure``: returns a candidate's effect from its pairs. ``is_known``: whether to
        stop measuring it.
        ``budget_steps``: no trial begins that would end after this many. None: BUDGET_STEPS and BUDGET_NS
        apply.
        """
        self.state = TrialsState({each.key: Tried(each) for each in candidates}, budget_steps)
        self._session, self._measure, self._is_known = session, measure, is_known
        self._chance = random.Random(0)  # noqa: S311 - an order, not a secret
        self._round: list[int] = []  # Keys of the candidates left in this round; the next one is last
        self._next: int | None = None
        """Number of the next step to read. None before the first Snapshot with steps."""
        self._steps: dict[int, _JobStep] = {}  # Steps since the last pair was measured
        self._free_from = WARM_UP_STEPS  # First step that may count as present value before the next trial
        self._asked: _Asked | None = None
        self._lags: deque[int] = deque(maxlen=4)  # Steps from the latest requests to their trials
        self._again_ns = 0
        self._failing_since_ns: int | None = None
        self._job = ""
        self._pids: dict[int, int] = {}
        self._known_commands: set[str] = set()  # Those from before the trials, and the trials' own

    @property
    def over(self) -> bool:
        return self.state.over

    def stop(self, why: str = "stopped") -> None:
        """Start no more trials. A trial under way ends by itself."""
        self.state.end(why, failed=False)

    def tick(self, snapshot: Snapshot) -> None:
        """Read the job's new steps, and start the next trial if possible."""
        if self.over or snapshot.job is None or snapshot.replaying:
            return
        if not self._job:
            self._job = snapshot.job.job
            self._known_commands = {view.id for view in snapshot.commands}
        if why := self._interruption(snapshot):
            self.state.end(why, failed=True)
            return
        self._read(snapshot)
        if snapshot.hub_state is not HubState.LIVE:
            self.state.doing = "waits: there is no connection to the job"
            if snapshot.at_ns - snapshot.hub_since_ns > LOST_NS:
                self.state.end("the connection to the job broke and did not come back", failed=True)
            return
        if self._asked is not None and not self._asked.done:
            self._follow(self._asked, snapshot)
        if self._asked is not None and self._asked.done:
            self._take_pair(self._asked)
        if self._asked is None and not self.over:
            self._go_on(snapshot)

    def _read(self, snapshot: Snapshot) -> None:
        """Add the steps that all running ranks finished since the last call; none on the first call."""
        views = [view for view in snapshot.ranks if view.last is not None and not view.ended]
        done = min((view.last.step for view in views if view.last is not None), default=None)
        if done is None:
            return
        first, self._next = self._next, done + 1
        if first is None or self._next < first:  # another process counts from 0 again
            return
        of_rank = [
            {step.step: step for step in takewhile(lambda step: step.step >= first, reversed(view.history))}
            for view in views
        ]
        for number in range(first, self._next):
            seen = [steps[number] for steps in of_rank if number in steps]
            if seen:  # some were lost if the connection was broken for long
                self.state.spent_steps += 1
                self._steps[number] = _JobStep(
                    number,
                    round(median(step.step_ns for step in seen)),
                    any(step.captured or step.transitional for step in seen),
                    any(step.trial for step in seen),
                )

    # Events of the job and of other users

    def _interruption(self, snapshot: Snapshot) -> str:
        """Return why comparisons are no longer possible. Empty if they are."""
        if snapshot.job is None or snapshot.job.job != self._job:
            return "the job is over: it was started again, or another one has taken its place"
        if snapshot.hub_state in (HubState.ENDED, HubState.TRACE):
            return "the job ended"
        for view in snapshot.ranks:
            if view.ended:
                return f"rank {view.rank} ended"
            if view.info is not None and self._pids.setdefault(view.rank, view.info.pid) != view.info.pid:
                return f"rank {view.rank} was started again"
        for other in snapshot.commands:
            if other.id not in self._known_commands and _changes(other):
                return f"somebody else changed the job: {other.words} ({other.by})"
        return ""

    def _follow(self, asked: _Asked, snapshot: Snapshot) -> None:
        view = snapshot.command(asked.command.id)
        if view is None:
            self._try_again("the trial was lost on the way", snapshot.at_ns)
            return
        tried = self.state.by_key[asked.key]
        if view.step is not None and asked.first is None:
            asked.first = view.step
            self._lags.append(view.step - asked.asked_before)
            self.state.doing = f"tries {tried.candidate.name} from step {view.step:,} on"
        if view.state == TRIED:
            asked.done = view.done
            if is_delay(asked.command):
                timed = view.new if view.new.isdecimal() else "0"
                asked.delay_ns = int(timed) or argument(asked.command, "delay_ns")
            self._failing_since_ns = None
        elif view.state == UNKNOWN:
            self.state.end(f"not known whether the trial was made: {view.reason}", failed=True)
        elif view.state == FAILED and view.busy:
            self._try_again(view.reason, snapshot.at_ns)
        elif view.state == FAILED and view.step is not None:
            self.state.end(f"the trial failed: {view.reason}", failed=True)
        elif not tried.pairs and any(rank.state == "refused" for rank in view.ranks):
            self._refuse(asked.key, view.reason)
            self._asked = None
        elif view.state == FAILED:
            self._try_again(view.reason, snapshot.at_ns)

    def _try_again(self, why: str, now_ns: int) -> None:
        self._asked, self._again_ns = None, now_ns + AGAIN_NS
        self.state.doing = f"waits: {why}"
        if self._failing_since_ns is None:
            self._failing_since_ns = now_ns
        if now_ns - self._failing_since_ns > FAILING_NS:
            self.state.end(why, failed=True)

    # Trying and measuring

    def _go_on(self, snapshot: Snapshot) -> None:
        state, by_key = self.state, self.state.by_key
        self._round = [key for key in self._round if by_key[key].open]
        if not self._round:
            self._round = [key for key, each in by_key.items() if each.open]
            self._chance.shuffle(self._round)
        if not self._round:
            state.end("", failed=False)
            return
        before = self._settled(self._free_from)
        if len(before) < BLOCK_STEPS // 2:
            state.doing = "waits for steps to compare with"
            return
        step_ns = state.step_ns = median(step.step_ns for step in before)
        if state.budget_steps is None:
            state.budget_steps = len(by_key) * round(longest_ns(step_ns) / step_ns)
        half, steps = _block_steps(step_ns) // 2, trial_steps(step_ns)
        needed = max(self._lags, default=0) + steps + SETTLE_STEPS + half
        if state.spent_steps + needed > state.budget_steps:
            state.end(f"the budget of {state.budget_steps:,} steps is used up", failed=False)
            return
        # While the ranks agree, the job continues with the present value.
        soon = len(before) + max(0, min(self._lags, default=0) - 1)
        if soon < half or snapshot.at_ns < self._again_ns or self._next is None:
            return
        key = self._round.pop()
        candidate = by_key[key].candidate
        try:
            command = candidate.make(steps)
        except ValueError as error:
            self._refuse(key, str(error))
            return
        if why := self._session.send(command):
            self._try_again(why, snapshot.at_ns)
            return
        self._known_commands.add(command.id)
        self._asked = _Asked(key, command, steps, self._next)
        state.doing = f"ranks agree on a step to try {candidate.name}"

    def _take_pair(self, asked: _Asked) -> None:
        """Measure the trial once it is followed by as many steps as count before it."""
        assert asked.first is not None, "all ranks have tried it"
        end = asked.first + asked.steps
        tried = self._settled(asked.first, end, settle=SETTLE_STEPS, in_trial=True)
        before = self._settled(self._free_from, asked.first)
        half = min(len(tried) // 2, len(before))
        after = self._settled(end, settle=SETTLE_STEPS)
        if len(after) < half:
            return
        if half >= BLOCK_STEPS // 4:
            around = [step.step_ns for step in (*before[-half:], *after[:half])]
            tried_ns = fmean(step.step_ns for step in tried[: 2 * half])
            pair = Pair(tried_ns, fmean(around), asked.delay_ns, pstdev(around))
            earlier = self.state.by_key[asked.key]
            pairs, steps = (*earlier.pairs, pair), earlier.steps + 2 * half
            effect = self._measure(pairs)
            is_known = effect is not None and self._is_known(effect)
            self.state.by_key[asked.key] = Tried(earlier.candidate, pairs, effect, is_known, steps)
        self._free_from = after[half - 1].number + 1 if half else end
        self._steps = {number: step for number, step in self._steps.items() if number >= self._free_from}
        self._asked = None

    def _refuse(self, key: int, why: str) -> None:
        self.state.by_key[key] = replace(self.state.by_key[key], refused=why)

    def _settled(
        self, first: int, end: float = inf, *, settle: int = 0, in_trial: bool = False
    ) -> list[_JobStep]:
        """Return these steps without a disturbance in or shortly before them. ``settle``: steps to skip."""
        found = []
        for step in (step for number, step in self._steps.items() if first <= number < end):
            if step.disturbed or step.in_trial is not in_trial:
                settle = SETTLE_STEPS
            elif settle:
                settle -= 1
            else:
                found.append(step)
        return found


def _block_steps(step_ns: float) -> int:
    """Return the number of steps in a trial's mean: an even number."""
    most = MAX_TRIAL_STEPS - SWITCH_STEPS - SETTLE_STEPS
    return min(max(BLOCK_STEPS, round(BLOCK_NS / step_ns / 2) * 2), most)


def _changes(view: CommandView) -> bool:
    """Whether a command changes the job's pace, permanently or for a while."""
    begun = view.step is not None or view.state == UNKNOWN
    return view.name in ABOUT_KNOBS and view.state != FAILED and begun

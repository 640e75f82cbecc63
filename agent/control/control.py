"""Obeys commands: checks them once more, agrees with the other ranks on a step, acts there, and reports.

Three threads meet here. The agent's own thread takes commands (`Control.serve`), each command has a
thread of its own that speaks to the job's store and writes what there is to write (`CommandExecution.run`),
and the training thread acts (`CommandExecution.on_boundary`). Nothing but acting happens on the training
thread, and while nothing is armed it asks for one attribute at each boundary.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

from overlaptop.agent.clock import now_ns
from overlaptop.agent.control.action import Action, Outcome
from overlaptop.agent.control.participant import find_participant
from overlaptop.agent.control.two_phase_commit import (
    NO_MARK,
    Decision,
    KeyValueStore,
    Mark,
    Pace,
    TwoPhaseCommit,
)
from overlaptop.agent.hooks.after_optimizer import AfterOptimizer
from overlaptop.agent.isolation.job_exceptions import carried_through, is_the_jobs
from overlaptop.agent.isolation.threads import Thread
from overlaptop.wire import commands
from overlaptop.wire.messages import UNKNOWN, Command, CommandReport

NOT_ALLOWED = "start the job with --control to allow commands"
LATE_S = 10.0
"""A command that took longer from the hub to here is no longer waited for by anybody."""
STORE_SILENT_S = 45.0
"""An agreement takes no longer than its patience allows, unless the store itself does not answer."""
STORE_SILENT = "the job's store does not answer"
MAX_THREADS = 4
"""Of commands whose store does not answer; past that a refusal is not told to the other ranks."""
FINISH_S = 20.0
"""The longest that the job's end may wait for a trace that is being written."""
GIVE_UP_S = 1.0
"""The same for a word to the other ranks that this one takes no part any more."""
MAX_DISTURBED = 8
NOTHING_YET = Outcome("")


class _FailureError(Exception):
    """Why it came to nothing, in words for the screen."""


class _IndeterminateError(Exception):
    """Why this rank does not know whether the others act; it does not."""


class CommandExecution:
    """One command on this rank, from its arrival to its last report."""

    def __init__(self, control: Control, command: Command, action: Action) -> None:
        self.command = command
        self.step: int | None = None
        """The step from which on this rank acts."""
        self.writes = False
        """All that is left is what its own thread does."""
        self._control = control
        self._action = action
        self._agreement: TwoPhaseCommit | None = None
        self._after_optimizer = AfterOptimizer()
        self._plan = -1
        self._acted = threading.Event()
        self._acted_at = -1
        self._stretch: _Stretch | None = None
        self._failure = ""
        """Why acting came to nothing."""
        self._given_up = ""
        """Why this rank wants to take no part any more."""
        self._job_ends = False

    @property
    def owes(self) -> bool:
        """Whether others may be about to act, or have acted, and would wait for ever for this rank."""
        return self._action.course.together and not self._acted.is_set()

    def on_boundary(self, step: int) -> None:
        """A step begins. On the training thread; raises nothing of ours."""
        if step >= self._plan:
            self._after_optimizer.call(lambda: carried_through(lambda: self._on_step(step)))

    def _on_step(self, step: int) -> None:
        if self._acted.is_set() or step == self._acted_at:
            return
        try:
            more = self._act(step)
        except Exception as fault:  # the job must not hear of it
            if is_the_jobs(fault):
                raise
            self._failure = _brief(fault)
            with contextlib.suppress(Exception):
                self._action.abandon()
            more = False
        self._acted_at = step
        if not more:
            self._control.armed = None
            if self._stretch is not None and not self._failure and not self._action.course.finishes:
                self._stretch.last = max(self._stretch.first, step - 1)
            self._acted.set()

    def run(self) -> None:
        """All that is not done on the training thread."""
        report = self._control.report
        report(self.command, "accepted")
        try:
            self._agreement = agreement = self._control.sit_down(
                self.command, self._arm, self._action.mark, self._action.course.resolve_s
            )
            decision = self._agree(agreement)
            if decision.step is None:
                self._acted.set()
                raise _FailureError(self._given_up or decision.reason)
            report(self.command, "agreed", decision.step)
            self._acted.wait()
            if self._failure:
                raise _FailureError(self._failure)
            course = self._action.course
            if course.finishes:
                self.writes = True
                report(self.command, course.finishes, decision.step)
            report(self.command, course.done, decision.step, self._action.finish())
        except _FailureError as failure:
            report(self.command, "failed", None, Outcome(str(failure)))
        except _IndeterminateError as doubt:
            report(self.command, UNKNOWN, None, Outcome(str(doubt)))
        except Exception as fault:  # noqa: BLE001 - said, and the job goes on
            report(self.command, "failed", None, Outcome(_brief(fault)))
        self._acted.set()
        if self._control.armed is self:
            self._control.armed = None
        self._after_optimizer.stop()
        self._control.done(self)
        if self._agreement is not None and not self._job_ends:
            with contextlib.suppress(Exception):  # the store has gone, and the keys with it
                self._agreement.clean_up()

    def _agree(self, agreement: TwoPhaseCommit) -> Decision:
        if given_up := self._given_up:
            return agreement.refuse(_parting_words(given_up))
        try:
            return agreement.reach()
        except Exception as fault:
            if self.in_doubt:
                raise _IndeterminateError(_brief(fault)) from fault
            raise

    @property
    def undecided(self) -> bool:
        """Whether this rank still waits to learn if all act."""
        return not self._acted.is_set() and (self._agreement is None or not self._agreement.decided)

    @property
    def in_doubt(self) -> bool:
        """Whether others may act, or have acted, although this rank gave up."""
        agreement = self._agreement
        return self._action.course.together and agreement is not None and agreement.voted

    def give_up(self, reason: str) -> None:
        """Take no part, unless all have agreed already. Any thread."""
        self._given_up = reason
        if self._agreement is not None:
            self._agreement.abandon(_parting_words(reason), job_ends=self._job_ends)

    def end(self, reason: str) -> None:
        """The job or the agent ends: let go of what is not done. On the training thread."""
        self._job_ends = True
        if self._acted.is_set():
            return  # only the writing is left
        self.give_up(reason)
        self._failure = reason
        self._after_optimizer.stop()
        if self.step is not None:
            self._action.abandon()
        self._acted.set()

    def _arm(self, step: int) -> None:
        self._after_optimizer.start()
        self._plan = step
        self._control.armed = self

    def _act(self, step: int) -> bool:
        if self.step is None:
            assert self._agreement is not None, "who is armed has sat down"
            course = self._action.course
            limit_s = self._agreement.doubt_s
            decision = self._agreement.resolve(limit_s)
            if decision is None:
                self._failure = f"the job's store did not say within {limit_s:g} s what was decided"
                if course.together:
                    self._control.report(self.command, UNKNOWN, None, Outcome(self._failure))
                return False
            if decision.step is None:
                return False
            self.step = step
            self._stretch = _Stretch(self.command.name, step)
            self._control.disturbed.append(self._stretch)
            self._control.report(self.command, course.acts, step)
        return self._action.boundary(step)


@dataclass(slots=True)
class _Stretch:
    """Steps that did not go at the job's own pace."""

    command: str
    first: int
    last: int | None = None
    """None: it still goes on."""


class Control:
    """One per rank. See the module's words for which thread calls what."""

    def __init__(
        self,
        rank: int,
        allowed: bool,
        pace: Callable[[], Pace | None],
        makers: Mapping[str, Callable[[Command], Action]],
    ) -> None:
        """``pace()``: where this rank is; None before it has measured a step. ``makers``: by command; they
        raise ValueError with one line where there is nothing to act on.
        """
        self.armed: CommandExecution | None = None
        """Whom the training thread has to tell of its boundaries; None nearly always."""
        self.reports: deque[CommandReport] = deque()
        """To be sent, oldest first."""
        self.latest: CommandReport | None = None
        """Said again to a hub that may not have heard it."""
        self.disturbed: deque[_Stretch] = deque(maxlen=MAX_DISTURBED)
        self._rank = rank
        self._allowed = allowed
        self._pace = pace
        self._makers = makers
        self._known: deque[str] = deque(maxlen=64)
        self._current: CommandExecution | None = None
        self._silent_at_s = float("inf")
        self._threads: list[Thread] = []
        self._ending = False

    def serve(self, waiting: deque[Command]) -> list[Command]:
        """Take what the hub passed on, and see to it that nothing goes on in silence. Agent's thread.

        Returns the commands that this rank has accepted.
        """
        self._threads = [thread for thread in self._threads if thread.is_alive]
        accepted = []
        while waiting and not self._ending:
            command = waiting.popleft()
            if command.id not in self._known:
                self._known.append(command.id)
                if self._take(command):
                    accepted.append(command)
        current = self._current
        if current is not None and monotonic() > self._silent_at_s:
            self._silent_at_s = float("inf")
            if current.undecided:
                current.give_up(STORE_SILENT)
                state = UNKNOWN if current.in_doubt else "failed"
                self.report(current.command, state, None, Outcome(STORE_SILENT))
        return accepted

    def disturbed_by(self, step: int) -> str:
        """The command that kept this step from its own pace; empty: none did."""
        for each in tuple(self.disturbed):
            if each.first <= step and (each.last is None or step <= each.last):
                return each.command
        return ""

    def close(self) -> None:
        """The job ends: stop what goes on, let a trace be written. On the thread that ends it."""
        current = self._current
        self.let_go("the job ended first")
        writes = current is not None and current.writes
        give_up_s = monotonic() + (FINISH_S if writes else GIVE_UP_S)
        for thread in self._threads:
            # One that is inside the store's C++ when Python ends would end the process with an abort.
            thread.join(max(0.0, give_up_s - monotonic()))

    @property
    def owes(self) -> bool:
        """Whether boundaries have to be told to what is under way, even by an agent that stepped aside."""
        current = self._current
        return current is not None and current.owes

    def part(self, reason: str) -> bool:
        """The agent has stepped aside: take nothing more, let go of all that is not owed to other ranks.

        On any of the job's threads, again and again until it returns True: nothing is left.
        """
        self._ending = True
        if self.owes:
            assert self._current is not None, "who owes is under way"
            self._current.give_up(reason)
            return False
        if threading.current_thread() is not threading.main_thread():
            return False  # what holds torch.profiler can be stopped there only
        self.let_go(reason)
        return True

    def let_go(self, reason: str) -> None:
        """Stop what goes on, and take nothing more. On the training thread."""
        self._ending = True
        self.armed = None
        if self._current is not None:
            self._current.end(reason)

    def report(
        self, command: Command, state: str, step: int | None = None, outcome: Outcome = NOTHING_YET
    ) -> None:
        """Say how far it is. Any thread."""
        self.latest = CommandReport(
            self._rank, command.id, command.name, now_ns(), state, step,
            outcome.text, outcome.was, outcome.becomes,
        )  # fmt: skip
        self.reports.append(self.latest)

    def sit_down(
        self,
        command: Command,
        arm: Callable[[int], None],
        mark: Callable[[int], Mark],
        doubt_s: float = 0.0,
    ) -> TwoPhaseCommit:
        """Take this rank's place in the agreement on a command. On the command's thread: it may block.

        ``doubt_s``: how long to look for the decision should the store fail, if the other ranks wait for so
        long. Raises RuntimeError where the job has no store to agree through.
        """
        seat = find_participant(command.id)

        def renew() -> KeyValueStore:
            board = find_participant(command.id).board
            assert board is not None, "there were others a moment ago"
            return board

        return TwoPhaseCommit(
            seat.board, seat.rank, seat.world_size, self._present, arm, mark,
            renew=renew, doubt_s=min(doubt_s, seat.stands_s),
        )  # fmt: skip

    def done(self, undertaking: CommandExecution) -> None:
        """Its last report is out: the next command may come."""
        pace = self._pace()
        for stretch in self.disturbed:
            if stretch.last is None:
                stretch.last = pace.step if pace is not None else stretch.first
        if self._current is undertaking:
            self._current = None

    def _take(self, command: Command) -> bool:
        """Accept a command, or refuse it and let the other ranks know."""
        action: Action | None = None
        state, why = self._objection(command)
        if not why:
            state = "refused"
            try:
                action = self._makers[command.name](command)
            except ValueError as fault:
                why = str(fault)
            else:
                why = action.refusal()
        if why or action is None:
            self.report(command, state, None, Outcome(why))
            self._start(lambda: self._decline(command, why))
            return False
        self._current = CommandExecution(self, command, action)
        self._silent_at_s = monotonic() + STORE_SILENT_S
        self._start(self._current.run)
        return True

    def _objection(self, command: Command) -> tuple[str, str]:
        """The state to report and why, before anything is asked of the action; empty: nothing."""
        if why := commands.fault(command):
            return "refused", why
        if command.name not in self._makers:
            return "refused", f"this agent does not know how to {command.name}"
        if not self._allowed:
            return "refused", NOT_ALLOWED
        if len(self._threads) >= MAX_THREADS:
            return "refused", f"{STORE_SILENT}: earlier commands still wait for it"
        if self._current is not None:
            return "busy", f"another command is under way: {commands.in_words(self._current.command)}"
        if (late_s := (now_ns() - command.at_ns) / 1e9) > LATE_S:
            return "refused", f"it came {late_s:.0f} s late"
        if self._pace() is None:
            return "refused", "no step has been measured yet: try again when steps are counted"
        return "", ""

    def _decline(self, command: Command, why: str) -> None:
        with contextlib.suppress(Exception):  # then the others wait for this rank, and give up
            agreement = self.sit_down(command, lambda _step: None, lambda _step: NO_MARK)
            agreement.refuse(f"refuses: {why}")
            agreement.clean_up()

    def _start(self, run: Callable[[], None]) -> None:
        if len(self._threads) < MAX_THREADS:
            self._threads.append(Thread(run))

    def _present(self) -> Pace:
        pace = self._pace()
        assert pace is not None, "asked before the command was accepted"
        return pace


def _parting_words(reason: str) -> str:
    """What the other ranks are told."""
    return f"gave up: {reason}"


def _brief(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}".splitlines()[0][:300]

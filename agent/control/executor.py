"""Executes commands: checks them once more, agrees with the other ranks on a step, acts there, and reports.

Three threads meet here. The agent's own thread takes commands (`CommandExecutor.serve`). Each command has a
thread that talks to the job's key-value store and writes files (`LocalExecution.run`). The training
thread acts (`LocalExecution.on_boundary`), and does nothing else: while no command is armed it reads one
attribute at each boundary.
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
    ANY_POSITION,
    Decision,
    KeyValueStore,
    Position,
    StepProgress,
    TwoPhaseCommit,
)
from overlaptop.agent.hooks.after_optimizer import AfterOptimizer
from overlaptop.agent.isolation.job_exceptions import raised_by_job, run_to_completion
from overlaptop.agent.isolation.threads import Thread
from overlaptop.wire import commands
from overlaptop.wire.commands import UNKNOWN, Command, CommandReport

NOT_ALLOWED = "start the job with --control to allow commands"
LATE_S = 10.0
"""A command that took longer from the hub to here has been given up by its sender."""
STORE_SILENT_S = 45.0
"""A two-phase commit takes no longer than its timeouts, unless the store itself does not answer."""
STORE_SILENT = "the job's store does not answer"
MAX_THREADS = 4
"""Of commands whose store does not answer; beyond that a refusal is not sent to the other ranks."""
FINISH_S = 20.0
"""The longest that the job's end waits for a trace that is being written."""
GIVE_UP_S = 1.0
"""The longest that it waits for this rank's withdrawal to reach the others."""
MAX_DISTURBED = 8
NOTHING_YET = Outcome("")


class _FailureError(Exception):
    """Why the command failed, in words for the screen."""


class _IndeterminateError(Exception):
    """Why this rank, which does not act, cannot know whether the others do."""


@dataclass(slots=True)
class _DisturbedSteps:
    """Steps that did not run at the job's own pace."""

    command: str
    first: int
    last: int | None = None
    """None: it still goes on."""


class LocalExecution:
    """One command on this rank, from its arrival to its last report."""

    def __init__(self, executor: CommandExecutor, command: Command, action: Action) -> None:
        self.command = command
        self.step: int | None = None
        """The step from which on this rank acts."""
        self.writes = False
        """All that is left is what its own thread does."""
        self._executor = executor
        self._action = action
        self._commit: TwoPhaseCommit | None = None
        self._after_optimizer = AfterOptimizer()
        self._armed_step = -1
        self._acted = threading.Event()
        self._acted_at = -1
        self._disturbed: _DisturbedSteps | None = None
        self._failure = ""
        """Why acting failed."""
        self._withdrawn = ""
        """Why this rank withdraws from the commit."""
        self._job_ends = False

    @property
    def pending(self) -> bool:
        """Whether others act, or may be about to, and would wait for this rank for ever."""
        return self._action.lifecycle.together and not self._acted.is_set()

    @property
    def undecided(self) -> bool:
        """Whether this rank still waits for the decision."""
        return not self._acted.is_set() and (self._commit is None or not self._commit.decided)

    @property
    def indeterminate(self) -> bool:
        """Whether others may act, or have acted, although this rank withdrew."""
        commit = self._commit
        return self._action.lifecycle.together and commit is not None and commit.voted

    def on_boundary(self, step: int) -> None:
        """A step begins. On the training thread; raises nothing of ours."""
        if step >= self._armed_step:
            self._after_optimizer.call(lambda: run_to_completion(lambda: self._on_step(step)))

    def run(self) -> None:
        """Everything that does not happen on the training thread."""
        report, lifecycle = self._executor.report, self._action.lifecycle
        report(self.command, "accepted")
        try:
            self._commit = self._executor.join_commit(
                self.command, self._arm, self._action.position, lifecycle.resolve_s
            )
            decision = self._decide(self._commit)
            if decision.step is None:
                self._acted.set()
                raise _FailureError(self._withdrawn or decision.reason)
            report(self.command, "agreed", decision.step)
            self._acted.wait()
            if self._failure:
                raise _FailureError(self._failure)
            if lifecycle.finishes:
                self.writes = True
                report(self.command, lifecycle.finishes, decision.step)
            report(self.command, lifecycle.done, decision.step, self._action.finish())
        except _FailureError as failure:
            report(self.command, "failed", None, Outcome(str(failure)))
        except _IndeterminateError as reason:
            report(self.command, UNKNOWN, None, Outcome(str(reason)))
        except Exception as fault:  # noqa: BLE001 - reported, and the job goes on
            report(self.command, "failed", None, Outcome(_brief(fault)))
        self._acted.set()
        if self._executor.armed is self:
            self._executor.armed = None
        self._after_optimizer.stop()
        self._executor.done(self)
        if self._commit is not None and not self._job_ends:
            with contextlib.suppress(Exception):  # the store has gone, and the keys with it
                self._commit.clean_up()

    def withdraw(self, reason: str) -> None:
        """Take no part, unless all have agreed already. Any thread."""
        self._withdrawn = reason
        if self._commit is not None:
            self._commit.abandon(_withdrawal(reason), job_ends=self._job_ends)

    def end(self, reason: str) -> None:
        """The job or the agent ends: release what is not done. On the training thread."""
        self._job_ends = True
        if self._acted.is_set():
            return  # only the writing is left
        self.withdraw(reason)
        self._failure = reason
        self._after_optimizer.stop()
        if self.step is not None:
            self._action.abandon()
        self._acted.set()

    def _decide(self, commit: TwoPhaseCommit) -> Decision:
        if self._withdrawn:
            return commit.refuse(_withdrawal(self._withdrawn))
        try:
            return commit.run()
        except Exception as fault:
            if self.indeterminate:
                raise _IndeterminateError(_brief(fault)) from fault
            raise

    def _arm(self, step: int) -> None:
        self._after_optimizer.start()
        self._armed_step = step
        self._executor.armed = self

    def _on_step(self, step: int) -> None:
        if self._acted.is_set() or step == self._acted_at:
            return
        try:
            more = self._act(step)
        except Exception as fault:  # the job must not see it
            if raised_by_job(fault):
                raise
            self._failure = _brief(fault)
            with contextlib.suppress(Exception):
                self._action.abandon()
            more = False
        self._acted_at = step
        if not more:
            self._executor.armed = None
            if self._disturbed is not None and not self._failure and not self._action.lifecycle.finishes:
                self._disturbed.last = max(self._disturbed.first, step - 1)
            self._acted.set()

    def _act(self, step: int) -> bool:
        if self.step is None:
            assert self._commit is not None, "armed by its commit"
            lifecycle = self._action.lifecycle
            limit_s = self._commit.resolve_limit_s
            decision = self._commit.resolve(limit_s)
            if decision is None:
                self._failure = f"the job's store did not say within {limit_s:g} s what was decided"
                if lifecycle.together:
                    self._executor.report(self.command, UNKNOWN, None, Outcome(self._failure))
                return False
            if decision.step is None:
                return False
            self.step = step
            self._disturbed = _DisturbedSteps(self.command.name, step)
            self._executor.disturbed.append(self._disturbed)
            self._executor.report(self.command, lifecycle.acts, step)
        return self._action.boundary(step)


class CommandExecutor:
    """One per rank. The module's docstring says which thread calls what."""

    def __init__(
        self,
        rank: int,
        allowed: bool,
        pace: Callable[[], StepProgress | None],
        makers: Mapping[str, Callable[[Command], Action]],
    ) -> None:
        """``pace()``: this rank's; None before it has measured a step. ``makers``: of actions, by command;
        they raise ValueError with one line where there is nothing to act on.
        """
        self.armed: LocalExecution | None = None
        """What the training thread calls at its boundaries; None nearly always."""
        self.reports: deque[CommandReport] = deque()
        """To be sent, oldest first."""
        self.disturbed: deque[_DisturbedSteps] = deque(maxlen=MAX_DISTURBED)
        self._rank = rank
        self._allowed = allowed
        self._pace = pace
        self._makers = makers
        self._known: deque[str] = deque(maxlen=64)
        self._current: LocalExecution | None = None
        self._silent_at_s = float("inf")
        self._threads: list[Thread] = []
        self._ending = False

    def serve(self, waiting: deque[Command]) -> list[Command]:
        """Take what the hub passed on, and time out a store that does not answer. Agent's thread.

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
                current.withdraw(STORE_SILENT)
                state = UNKNOWN if current.indeterminate else "failed"
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
        self._stop("the job ended first")
        writes = current is not None and current.writes
        give_up_s = monotonic() + (FINISH_S if writes else GIVE_UP_S)
        for thread in self._threads:
            # One that is inside the store's C++ when Python ends would end the process with an abort.
            thread.join(max(0.0, give_up_s - monotonic()))

    @property
    def pending(self) -> bool:
        """Whether a command needs the step boundaries, even after the agent has disabled itself."""
        current = self._current
        return current is not None and current.pending

    def disable(self, reason: str) -> bool:
        """The agent has disabled itself: take no more commands, stop all that other ranks do not wait for.

        On any of the job's threads, again and again until it returns True: nothing is left.
        """
        self._ending = True
        if self.pending:
            assert self._current is not None, "it is what is pending"
            self._current.withdraw(reason)
            return False
        if threading.current_thread() is not threading.main_thread():
            return False  # what holds torch.profiler can be stopped there only
        self._stop(reason)
        return True

    def report(
        self, command: Command, state: str, step: int | None = None, outcome: Outcome = NOTHING_YET
    ) -> None:
        """Report how far it is. Any thread."""
        self.reports.append(
            CommandReport(
                self._rank, command.id, command.name, now_ns(), state, step,
                outcome.text, outcome.was, outcome.becomes,
            )
        )  # fmt: skip

    def join_commit(
        self,
        command: Command,
        arm: Callable[[int], None],
        position: Callable[[int], Position],
        resolve_limit_s: float = 0.0,
    ) -> TwoPhaseCommit:
        """Join the two-phase commit of a command. On the command's thread: it may block.

        ``resolve_limit_s``: how long to look for the decision should the store fail, if the other ranks
        wait for so long. Raises RuntimeError where the job has no store.
        """
        participant = find_participant(command.id)

        def reconnect() -> KeyValueStore:
            store = find_participant(command.id).store
            assert store is not None, "there were others a moment ago"
            return store

        return TwoPhaseCommit(
            participant.store, participant.rank, participant.world_size, self._present, arm, position,
            reconnect=reconnect, resolve_limit_s=min(resolve_limit_s, participant.max_stall_s),
        )  # fmt: skip

    def done(self, execution: LocalExecution) -> None:
        """Its last report is out: the next command may come."""
        pace = self._pace()
        for disturbed in self.disturbed:
            if disturbed.last is None:
                disturbed.last = pace.step if pace is not None else disturbed.first
        if self._current is execution:
            self._current = None

    def _stop(self, reason: str) -> None:
        """Stop what goes on, and take no more. On the training thread."""
        self._ending = True
        self.armed = None
        if self._current is not None:
            self._current.end(reason)

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
        self._current = LocalExecution(self, command, action)
        self._silent_at_s = monotonic() + STORE_SILENT_S
        self._start(self._current.run)
        return True

    def _objection(self, command: Command) -> tuple[str, str]:
        """The state to report and why, before anything is asked of the action; empty: nothing."""
        if why := command.inconsistency():
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
        with contextlib.suppress(Exception):  # then the others wait for this rank, and time out
            commit = self.join_commit(command, lambda _step: None, lambda _step: ANY_POSITION)
            commit.refuse(f"refuses: {why}")
            commit.clean_up()

    def _start(self, run: Callable[[], None]) -> None:
        if len(self._threads) < MAX_THREADS:
            self._threads.append(Thread(run))

    def _present(self) -> StepProgress:
        pace = self._pace()
        assert pace is not None, "asked before the command was accepted"
        return pace


def _withdrawal(reason: str) -> str:
    """What the other ranks read."""
    return f"gave up: {reason}"


def _brief(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}".splitlines()[0][:300]

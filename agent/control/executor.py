"""Executes commands: checks them, agrees with the other ranks on a step, acts there, and reports.

Three threads take part. The agent's thread takes commands (`CommandExecutor.serve`). Each command has a
thread that talks to the job's key-value store and writes files (`LocalExecution.run`). The training thread
acts (`LocalExecution.on_boundary`) and does nothing else: without an armed command it reads one attribute
at each boundary.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from time import monotonic

from overlaptop.agent.clock import now_ns
from overlaptop.agent.control.action import Action, KnobProvider, KnobTrial, Outcome, StepMarks, brief
from overlaptop.agent.control.delay import make_delay
from overlaptop.agent.control.two_phase_commit import (
    ANY_POSITION,
    RESOLVE_S,
    RESOLVE_TOGETHER_S,
    StepProgress,
    TwoPhaseCommit,
    join_commit,
)
from overlaptop.agent.hooks.after_optimizer import AfterOptimizer
from overlaptop.agent.isolation.job_exceptions import raised_by_job, run_to_completion
from overlaptop.agent.isolation.threads import Thread
from overlaptop.agent.placement import RankPlacement
from overlaptop.wire import commands
from overlaptop.wire.commands import (
    ACCEPTED,
    CHANGED,
    ENDED_BADLY,
    ENDED_WELL,
    FAILED,
    UNKNOWN,
    Command,
    CommandReport,
)
from overlaptop.wire.knobs import MAX_KNOBS, Knob, KnobFacts
from overlaptop.wire.schema import Message

NOT_ALLOWED = f"{commands.HOW_TO_ALLOW} commands"
LATE_S = 10.0  # If a command took longer from the hub to this rank, its sender has given it up
MAX_THREADS = 4
"""Threads of commands while the job's store does not answer. Beyond that, other ranks are not told of a
refusal."""
FINISH_S = 20.0  # Longest wait at the job's end for a trace that is being written
GIVE_UP_S = 1.0  # Longest wait at the job's end for this rank's withdrawal to reach the others
MAX_KNOWN = 64
LOOK_S = 2.0  # Seconds between two checks for knobs that changed without a command


class LocalExecution:
    """One command on this rank, from arrival to its last report."""

    def __init__(self, executor: "CommandExecutor", command: Command, action: Action) -> None:
        self.command = command
        self.writes = False  # True once only its own thread has work left
        self._executor = executor
        self._action = action
        self._commit: TwoPhaseCommit | None = None
        self._after_optimizer = AfterOptimizer()
        self.armed_step = -1
        self._acted = threading.Event()
        self._acted_at = -1
        self._marked = ""  # The mark of this rank's steps while it acts; empty: it has not acted yet
        self._failure = ""
        self._withdrawn = ""
        self._job_ends = False

    @property
    def pending(self) -> bool:
        """Whether other ranks act, or are about to, and would wait for this rank forever."""
        return self._action.together and not self._acted.is_set()

    def changes_settings(self, step: int) -> bool:
        return step >= self.armed_step and self._action.changes_settings(step)

    def on_boundary(self, step: int) -> None:
        """A step begins. On the training thread; raises none of our faults."""
        if step >= self.armed_step:
            self._after_optimizer.call(lambda: run_to_completion(lambda: self._on_step(step)))

    def run(self) -> None:
        self._report(ACCEPTED)
        decision = None
        try:
            self._commit = join_commit(
                self.command.id,
                self._executor.present_pace,
                self._arm,
                self._action.position,
                RESOLVE_TOGETHER_S if self._action.together else RESOLVE_S,
            )
            if self._withdrawn:
                decision = self._commit.refuse(f"gave up: {self._withdrawn}")
            else:
                decision = self._commit.run()
            if decision.step is None:
                self._report(FAILED, text=self._withdrawn or decision.reason)
            else:
                self._report("agreed", decision.step)
                self._acted.wait()
                self._finish(decision.step)
        except Exception as fault:  # noqa: BLE001 - reported, and the job goes on
            voted = self._commit is not None and self._commit.voted
            others_may_act = decision is None and voted and self._action.together
            self._report(UNKNOWN if others_may_act else FAILED, text=brief(fault))
        self._acted.set()
        if self._executor.armed is self:
            self._executor.armed = None
        self._after_optimizer.stop()
        self._executor.done(self)
        if self._commit is not None and not self._job_ends:
            with contextlib.suppress(Exception):  # if the store is gone, so are the keys
                self._commit.clean_up()

    def withdraw(self, reason: str) -> None:
        """Take no part, unless all ranks have agreed already. Any thread."""
        self._withdrawn = reason
        if self._commit is not None:
            self._commit.abandon(f"gave up: {reason}", job_ends=self._job_ends)

    def end(self, reason: str) -> None:
        """The job or the agent ends: release unfinished work. On the training thread."""
        self._job_ends = True
        if self._acted.is_set():
            return  # only the writing is left
        self.withdraw(reason)
        self._failure = reason
        self._after_optimizer.stop()
        if self._marked:
            self._action.abandon()
        self._acted.set()

    def _finish(self, step: int) -> None:
        if self._failure:
            self._report(FAILED, text=self._failure)
            return
        if self._action.finishes:
            self.writes = True
            self._report(self._action.finishes, step)
        outcome = self._action.finish()
        self._executor.report(self.command, self._action.done, step, outcome)

    def _report(self, state: str, step: int | None = None, text: str = "") -> None:
        self._executor.report(self.command, state, step, Outcome(text))

    def _arm(self, step: int) -> None:
        self._after_optimizer.start()
        self.armed_step = step
        self._executor.armed = self

    def _on_step(self, step: int) -> None:
        if self._acted.is_set() or step == self._acted_at:
            return
        try:
            more = self._act(step)
        except Exception as fault:  # the job must not see it
            if raised_by_job(fault):
                raise
            self._failure = brief(fault)
            with contextlib.suppress(Exception):
                self._action.abandon()
            more = False
        self._acted_at = step
        if not more:
            self._executor.armed = None
            if self._marked and not self._failure and not self._action.finishes:
                self._executor.marks.end(step - 1)
            self._acted.set()

    def _act(self, step: int) -> bool:
        if not self._marked:
            assert self._commit is not None, "armed by its commit"
            decision = self._commit.resolve()
            if decision is None:
                limit_s = self._commit.resolve_limit_s
                self._failure = f"the job's store gave no decision within {limit_s:g} s"
                if self._action.together:
                    self._report(UNKNOWN, text=self._failure)
                return False
            if decision.step is None:
                return False
            self._mark(step)
            self._report(self._action.acts, step)
        more = self._action.boundary(step)
        self._mark(step)
        return more

    def _mark(self, step: int) -> None:
        if self._marked != self._action.mark:
            self._marked = self._action.mark
            self._executor.marks.begin(self._marked, step)


class CommandExecutor:
    """Executes the commands of one rank. The module's docstring says which thread calls what."""

    def __init__(
        self,
        place: RankPlacement,
        knobs: Sequence[KnobProvider],
        *,
        allowed: bool,
        pace: Callable[[], StepProgress | None],
        capture: Callable[[Command], Action],
        notice: Callable[[str, str], None],
    ) -> None:
        """``pace()``: this rank's progress; None before it has measured a step. ``capture``: makes the
        action of such a command. ``notice(level, text)`` shows a text on the dashboard; it is called on any
        thread.
        """
        self.armed: LocalExecution | None = None
        """The command that the training thread calls at boundaries; None nearly always."""
        self.marks = StepMarks()
        self._place = place
        self._knobs = knobs
        self._allowed = allowed
        self._pace = pace
        self._capture = capture
        self._notice = notice
        self._reports: deque[CommandReport] = deque()
        self._known: deque[str] = deque(maxlen=MAX_KNOWN)
        self._current: LocalExecution | None = None
        self._threads: list[Thread] = []
        self._ending = False
        self._knobs_due_s = 0.0
        self._has_knobs = False

    def serve(self, waiting: deque[Command], put_state: Callable[[Message], None]) -> None:
        """Take the hub's commands, and send reports and knobs. In each round of the agent's thread."""
        self._threads = [thread for thread in self._threads if thread.is_alive]
        while waiting and not self._ending:
            command = waiting.popleft()
            if command.id not in self._known:
                self._known.append(command.id)
                self._take(command)
        self.send_reports(put_state)
        current = self._current
        is_trying = current is not None and current.command.name == commands.TRIAL  # no lasting value
        if not is_trying and self._pace() is not None and monotonic() >= self._knobs_due_s:
            self._knobs_due_s = monotonic() + LOOK_S
            known = tuple(knob for knob, _ in self._all_knobs())
            self._has_knobs = self._has_knobs or bool(known)
            if self._has_knobs:
                put_state(KnobFacts(self._place.rank, known))

    def send_reports(self, put_state: Callable[[Message], None]) -> None:
        while self._reports:
            # The newest report is sent again to the next hub, as this hub may be ending.
            put_state(self._reports.popleft())

    def close(self) -> None:
        """The job ends: stop commands, but let a trace be written. On the thread that ends the job."""
        current = self._current
        self._stop("the job ended first")
        writes = current is not None and current.writes
        give_up_s = monotonic() + (FINISH_S if writes else GIVE_UP_S)
        for thread in self._threads:
            # If Python ends while a thread is inside the store's C++, the process aborts.
            thread.join(max(0.0, give_up_s - monotonic()))

    @property
    def pending(self) -> bool:
        """Whether a command needs step boundaries, even after the agent has disabled itself."""
        current = self._current
        return current is not None and current.pending

    def disable(self, reason: str) -> bool:
        """The agent has disabled itself: take no more commands, and stop those no other rank waits for.

        Called on the job's threads until it returns True: nothing is left.
        """
        self._ending = True
        current = self._current
        if current is not None and current.pending:
            current.withdraw(reason)
            return False
        if threading.current_thread() is not threading.main_thread():
            return False  # torch.profiler can be stopped on the main thread only
        self._stop(reason)
        return True

    def report(self, command: Command, state: str, step: int | None, outcome: Outcome) -> None:
        """Report a command's state to the hub and in a notice. Any thread."""
        self._reports.append(
            CommandReport(
                self._place.rank, command.id, command.name, now_ns(), state, step,
                outcome.text, outcome.old, outcome.new,
            )
        )  # fmt: skip
        if state in (*ENDED_WELL, *ENDED_BADLY):
            self._knobs_due_s = 0.0
        speaks_for_node = self._place.starts_hub  # a text that names a rank is alike on all ranks
        if state in ENDED_BADLY and (speaks_for_node or not commands.names_a_rank(outcome.text)):
            self._notice("warning", f"no {command.name}: {outcome.text}")
        elif state == UNKNOWN:
            self._notice("warning", f"not known whether {command.name} was obeyed: {outcome.text}")
        elif state == ACCEPTED and speaks_for_node:
            self._notice("info", f"{commands.describe(command)}, asked by {command.by}")
        elif state == CHANGED and speaks_for_node:
            self._notice("info", f"{outcome.text}, asked by {command.by}")

    def present_pace(self) -> StepProgress:
        pace = self._pace()
        assert pace is not None, "a command is accepted only after a measured step"
        return pace

    def done(self, execution: LocalExecution) -> None:
        pace = self._pace()
        self.marks.end(pace.step if pace is not None else 0)
        if self._current is execution:
            self._current = None

    def _stop(self, reason: str) -> None:
        self._ending = True
        self.armed = None
        if self._current is not None:
            self._current.end(reason)

    def _take(self, command: Command) -> None:
        state, why, action, current = "refused", self._objection(command), None, self._current
        if self._allowed and current is not None:
            state, why = "busy", f"another command is under way: {commands.describe(current.command)}"
        if not why:
            try:
                action = self._make_action(command)
                why = action.refusal()
            except ValueError as fault:
                why = str(fault)
        if why or action is None:
            self.report(command, state, None, Outcome(why))
            if len(self._threads) < MAX_THREADS:
                self._threads.append(Thread(lambda: self._decline(command, why)))
            return
        self._current = LocalExecution(self, command, action)
        self._threads.append(Thread(self._current.run))

    def _objection(self, command: Command) -> str:
        if not self._allowed:
            return NOT_ALLOWED
        if (late_s := (now_ns() - command.at_ns) / 1e9) > LATE_S:
            return f"it came {late_s:.0f} s late"
        return "" if self._pace() else "no step has been measured yet: try again when steps are counted"

    def _make_action(self, command: Command) -> Action:
        """Raises ValueError with one line if there is no such knob or rank, or the value is refused."""
        if command.name == commands.CAPTURE:
            return self._capture(command)
        if commands.is_delay(command):
            return make_delay(command, self._place.rank, self._place.world_size)
        known = {knob.name: (knob, provider) for knob, provider in self._all_knobs()}
        if command.knob not in known:
            raise ValueError(f"there is no knob {command.knob}; there is: {', '.join(known) or 'none'}")
        knob, provider = known[command.knob]
        if command.name == commands.RESTORE:
            return provider.action(knob.name, None)
        value = commands.argument(command, "value")
        # The bounds of a knob that refuses may be meaningless.
        if why := knob.refusal or knob.fault(value):
            raise ValueError(why)
        setting = provider.action(knob.name, value)
        is_trial = command.name == commands.TRIAL
        return KnobTrial(setting, commands.argument(command, "steps")) if is_trial else setting

    def _all_knobs(self) -> list[tuple[Knob, KnobProvider]]:
        known = ((knob, provider) for provider in self._knobs for knob in provider.knobs())
        return list(islice(known, MAX_KNOBS))

    def _decline(self, command: Command, why: str) -> None:
        with contextlib.suppress(Exception):  # if it fails, the others time out waiting for this rank
            join_commit(
                command.id, self.present_pace, lambda _step: None, lambda _step: ANY_POSITION, RESOLVE_S
            ).refuse(f"refuses: {why}")

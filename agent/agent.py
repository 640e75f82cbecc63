"""The agent of one rank: hooks on the job's threads, and one thread of its own that measures and sends."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
import threading
from collections import deque
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from overlaptop.agent import placement
from overlaptop.agent.clock import now_ns
from overlaptop.agent.control.action import Action
from overlaptop.agent.control.capture import Capture, ProfilerWatch, write_trace
from overlaptop.agent.control.delay import make_delay
from overlaptop.agent.control.executor import CommandExecutor
from overlaptop.agent.control.two_phase_commit import StepProgress
from overlaptop.agent.hang_watch import HangWatch
from overlaptop.agent.hooks.process_groups import collectives_begun, members_of
from overlaptop.agent.isolation.compiling import uncompiled
from overlaptop.agent.isolation.fault_barrier import FaultBarrier, discard_deferred, flush_log
from overlaptop.agent.isolation.job_exceptions import raised_by_job, run_to_completion
from overlaptop.agent.isolation.threads import Thread, signals_blocked
from overlaptop.agent.knobs.change_bucket_size import BucketKnob
from overlaptop.agent.knobs.ddp_models import DdpModels
from overlaptop.agent.knobs.fsdp_units import FsdpUnits
from overlaptop.agent.knobs.prefetch import PrefetchKnobs
from overlaptop.agent.knobs.registry import Knobs
from overlaptop.agent.knobs.script_knobs import DECLARED
from overlaptop.agent.measuring import Measuring
from overlaptop.agent.options import AgentOptions
from overlaptop.agent.placement import RankPlacement
from overlaptop.agent.reporting.sender import Sender
from overlaptop.agent.script.failure import failure_at_exit, failure_under_way
from overlaptop.agent.stacks import StackSampler, rounds_s
from overlaptop.agent.telemetry.telemetry import Telemetry
from overlaptop.wire import commands
from overlaptop.wire.commands import Command
from overlaptop.wire.messages import (
    AGENT_DISABLED,
    ENVIRONMENT,
    EnvironmentFacts,
    EnvironmentVariable,
    Notice,
    RankEnd,
    RankInfo,
)

if TYPE_CHECKING:  # torch and numpy come with the job, not before it
    from overlaptop.agent.hooks.steps import StepHooks
    from overlaptop.agent.hooks.training_thread import TrainingThread
    from overlaptop.agent.sources.base import Source

PERIOD_S = 0.1
EXIT_FLUSH_S = 2.0
"""The longest that the job's end waits for the last messages to leave, where the hub does not read them."""
OUTSTANDING_S = 60.0
"""The longest that it waits for collectives still under way, for which torch waits at its end too."""
LEAVE_PYTHON_S = 0.1
"""Then for torch's thread, on which the last one ended: C++ ends a process a thread of which is stopped by
Python's end while it returns from a callback."""
LAST_OF_ALL = -1000
"""The priority of an exit function of multiprocessing's: the job's own come before."""
MAX_NOTICES = 64
RECENT_STEPS = 8
"""The shortest of so many is the length of a step."""
MAX_DETAILS = 4
"""Of measured steps that come together, the details that are sent."""
MAX_MEMBERS = 64
"""Of a group, with which it is sent: far more ranks than a dashboard compares."""


class Agent:
    """One per process."""

    def __init__(self, options: AgentOptions, script: str) -> None:
        """``script``: the job's script as it was named on the command line."""
        self.barrier = FaultBarrier(self._notice)
        self._steps: StepHooks | None = None
        self._thread_times: TrainingThread | None = None
        self._measuring = Measuring(self.barrier, self._notice)
        self._profilers = ProfilerWatch()
        self._models = DdpModels(self.barrier)
        self._units = FsdpUnits(self.barrier)
        buckets = BucketKnob(self._models)
        self._knobs = Knobs(buckets.gradients, buckets, PrefetchKnobs(self._units), DECLARED)
        self.barrier.pending = lambda: self._executor is not None and self._executor.pending
        self._begin(options, script)
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self._at_exit)

    def _begin(self, options: AgentOptions, script: str) -> None:
        """All that belongs to one process; the hooks belong to whatever process has forked off it."""
        self._options = options
        self._script = script
        self._place = placement.from_environment()
        self._place_confirmed = False
        """A process group has said so, not the environment alone."""
        self._sender: Sender | None = None
        self._notices: deque[tuple[int, str, str]] = deque(maxlen=MAX_NOTICES)
        self._step = -1
        """The step that is under way, counted as StepTotals does; -1 before the first boundary."""
        self._fragment: int | None = None
        """What an optimizer began as a step and the job's first mark by hand ended."""
        self._begun_by_optimizer = False
        self._recent_ns: deque[int] = deque(maxlen=RECENT_STEPS)
        self._details_due = 0
        """Steps whose detail may be sent: one a round, and what rounds without any have left."""
        self._comparisons = 0
        """Of the cost meter, when the cost was sent last."""
        self._training_thread = 0
        self._executor: CommandExecutor | None = None
        # After a fault, nothing but this ends a command that is under way on the job's own thread.
        self.barrier.on_disabled = lambda: self._executor is None or self._executor.disable(AGENT_DISABLED)
        self._environment: EnvironmentFacts | None = None
        self._cwd = placement.working_directory()
        self._hangs = HangWatch(self._cwd, self._notice)
        self._stacks = StackSampler(self._cwd)
        self._telemetry = Telemetry(self._notice, enabled=options.telemetry)
        self._measuring.begin(options, self._telemetry.follow)
        if self._thread_times is not None:
            self._thread_times.begin()
        self._pid = os.getpid()
        self.failure = ""
        """What ended the script, as RankEnd has it."""
        self._ending = threading.Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the agent's thread and put the hooks into torch, which must have been imported.

        A job whose launcher numbers its ranks is seen from here on. No thread is there before: with one a
        process cannot enter a user namespace, and Python warns when it forks.
        """
        if self._thread is None:
            self._thread = self.barrier.guarded("starting its thread", lambda: Thread(self._run))()
            self.barrier.guarded("looking at multiprocessing", self._end_with_multiprocessing)()
        self.barrier.guarded("putting the hooks in", self._hook_torch)()

    @property
    def is_forked_copy(self) -> bool:
        """Whether this is the copy that a fork left in a child, inactive until `restart`."""
        return self._pid != os.getpid()

    def restart(self, options: AgentOptions, script: str) -> None:
        """Let `start` measure this forked child as a rank of its own, by the hooks that it inherited."""
        self._begin(options, script)
        self.barrier.active = True

    def step(self) -> None:
        """End a step here. See `overlaptop.agent.step`."""
        if self._steps is not None:
            self._steps.end_step()

    def _hook_torch(self) -> None:
        if self._steps is not None:
            return
        uncompiled(self.barrier.guarded("", now_ns))  # and all that is guarded: they share one code object
        # All that the agent's threads need is imported here, on the job's: a child that is forked in the
        # middle of another thread's import is left with half a module. Also numpy, which starts threads.
        signals_blocked(partial(importlib.import_module, "overlaptop.agent.reporting.reporter"))
        from overlaptop.agent.hooks.steps import StepHooks
        from overlaptop.agent.hooks.training_thread import TrainingThread

        self._thread_times = TrainingThread(self.barrier)
        self._thread_times.install()
        self._steps = StepHooks(self.barrier, self._on_boundary, self._measuring.edge)
        self._steps.install()
        self._profilers.install()
        self._models.install()
        self._units.install()
        self._measuring.install()

    # On the job's threads.

    def _on_boundary(self, optimizer: Any) -> None:
        """A step ends and the next one begins.

        Called on a disabled agent too, while other ranks wait for what it has agreed to do.
        """
        from overlaptop.agent.sources.graph_captures import captures_a_graph

        if captures_a_graph():
            return  # such a step runs later and without its hooks: nobody counts it
        if optimizer is None and self._begun_by_optimizer:
            self._fragment = self._step
        self._begun_by_optimizer = optimizer is not None
        try:
            if self._options.control:  # only commands compare the ranks' positions
                self._knobs.note_step(self._step + 1)  # before anybody can know that it has begun
            if self.barrier.active:
                self._measuring.boundary(self._step + 1, optimizer)
                if self._thread_times is not None:
                    self._thread_times.boundary(self._step + 1)
        finally:
            self._step += 1
            self._training_thread = threading.get_ident()
            if self._executor is not None and (armed := self._executor.armed) is not None:
                if armed.changes_settings(self._step):
                    # Before anybody can measure it. A trial's steps are measured as those around it.
                    burst = armed.command.name != commands.TRIAL
                    self._measuring.settings_changed(self._step, burst=burst)
                armed.on_boundary(self._step)

    def _notice(self, level: str, text: str) -> None:
        self._notices.append((now_ns(), level, text))

    # On the agent's own thread.

    def _run(self) -> None:
        work = self.barrier.guarded("the agent's thread", self._work)
        waits_s = rounds_s(PERIOD_S)
        while self.barrier.active and not self._ending.wait(next(waits_s)):
            work()
        self._telemetry.stop()
        if not self.barrier.active and self._measuring.source is not None:
            with contextlib.suppress(Exception):  # it may be what broke
                self._measuring.source.stop()
        while not self.barrier.active:
            self._report_fault()
            if self._ending.wait(1.0):
                break
        self._close()

    def _work(self) -> None:
        """One round: take finished steps and commands, send what there is to send."""
        self._look_for_place()
        sender, executor = self._sender, self._executor
        if sender is None or executor is None:
            return
        self._introduce(sender)
        self._send_stacks(sender)
        self._send_steps(sender, executor)
        executor.serve(sender.commands)
        self._send_reports(sender)
        self._send_standstill(sender)
        if self._step >= 0:  # until then the script is still making what it will train
            if not executor.trying:  # a knob is told with the value that lasts
                self._knobs.serve(sender, sender.place.rank)
            self._send_environment(sender)
        self._telemetry.serve(sender, sender.place)
        self._send_notices(sender)
        sender.pump()

    def _look_for_place(self) -> None:
        """Which rank this is, as is known now; a process group may come late, and another after it."""
        found = self._present_place()
        if found is None or (found == self._place and self._sender is not None):
            return
        before, sender = self._place, self._sender
        self._place = found
        if sender is not None and before is not None:
            if (before.job, before.rank) == (found.job, found.rank):
                sender.place = found
                return
            if self._executor is not None and self._executor.pending:
                self._place = before  # until what ranks change together is changed, and changed back
                return
            self._say_end(sender)  # of the rank that it was taken for
        self._executor = CommandExecutor(
            found.rank,
            allowed=self._options.control,
            pace=self._pace,
            make_action=partial(self._make_action, rank=found.rank, world_size=found.world_size),
            notice=self._notice,
            on_end=self._knobs.refresh,
            speaks_for_node=found.starts_hub,
        )
        self._sender = Sender(found, self._script)

    def _present_place(self) -> RankPlacement | None:
        """From the process group; else from the launcher, or this process is alone once it makes steps."""
        if self._steps is None:
            return self._place  # torch may be in the middle of its import, on another thread
        found = placement.in_process_group(self._place, confirmed=self._place_confirmed)
        if found is not None:
            self._place_confirmed = True
            return found
        if self._place is None and self._measuring.source is not None:
            return placement.alone()
        return self._place

    def _pace(self) -> StepProgress | None:
        return StepProgress(self._step, min(self._recent_ns)) if self._recent_ns else None

    def _make_action(self, command: Command, rank: int, world_size: int) -> Action:
        if command.name == commands.CAPTURE:
            write = partial(write_trace, cwd=self._cwd, key=command.id, rank=rank, notice=self._notice)
            return Capture(commands.argument(command, "steps"), self._profilers, write)
        if commands.is_delay(command):
            return make_delay(command, rank, world_size)
        return self._knobs.change(command)

    def _send_steps(self, sender: Sender, executor: CommandExecutor) -> None:
        source, rank = self._measuring.source, sender.place.rank
        if source is None:
            return
        from overlaptop.agent.reporting import reporter

        own = []
        schedule = source.schedule
        schedule.follow(sender.wanted)
        taken = source.take()
        while source.remarks:
            self._notice("warning", source.remarks.popleft())
        if self._thread_times is not None:
            self._thread_times.sample()
        for measured in taken:
            if measured.step == self._fragment:
                continue
            mark = executor.marks.of(measured.step)
            totals = reporter.totals(measured, rank, sender.dropped + source.lost, mark, self._thread_times)
            sender.put_step(totals)
            if not mark:
                self._recent_ns.append(totals.step_ns)
                own.append(measured)
        if schedule.cost.comparisons != self._comparisons:
            self._comparisons = schedule.cost.comparisons
            if (cost := reporter.own_cost(schedule, rank)) is not None:
                sender.put_state(cost)
        if not sender.wanted.detail:
            return
        self._details_due = min(self._details_due + 1, MAX_DETAILS)
        best = reporter.best_detailed(own, self._details_due)
        for measured in best:
            titles = {each.group for each in measured.collectives}
            members = members_of(titles, MAX_MEMBERS)
            sender.put_step(reporter.detail(measured, rank, members))
            self._details_due -= 1

    def _send_stacks(self, sender: Sender) -> None:
        if not self._options.stacks or self._step < 0:
            return
        asleep = self._thread_times is not None and self._thread_times.is_asleep()
        self._stacks.sample(self._training_thread, now_ns(), asleep=asleep)
        if (taken := self._stacks.take(sender.place.rank, now_ns())) is not None:
            sender.put_state(taken)

    def _send_standstill(self, sender: Sender) -> None:
        """Where nothing moves any more: what this rank stands in."""
        now_s, rank, thread = monotonic(), sender.place.rank, self._training_thread
        if self._recent_ns:
            moving = self._step, self._measuring.issued
            last_calls = self._measuring.last_calls
            said = self._hangs.between_steps(rank, thread, moving, self._recent_ns, last_calls, now_s)
        else:
            thread = thread or threading.main_thread().ident or 0
            said = self._hangs.before_first_step(rank, thread, self._collectives_begun(), now_s)
        if said is not None:
            sender.put_state(said)

    def _collectives_begun(self) -> tuple[int, ...] | None:
        """In the group of all ranks: before the first step no hook counts them."""
        dist = sys.modules["torch.distributed"] if self._steps is not None else None
        group = dist.group.WORLD if dist is not None and dist.is_available() else None
        return collectives_begun(group) if group is not None else None

    def _send_environment(self, sender: Sender) -> None:
        """As it is once the first step has begun: the script may have set variables before."""
        if self._environment is None:
            known = ((name, os.environ.get(name)) for name in ENVIRONMENT)
            variables = [EnvironmentVariable(name, value) for name, value in known if value is not None]
            threads = sys.modules["torch"].get_num_threads()
            self._environment = EnvironmentFacts(sender.place.rank, tuple(variables), threads)
        sender.put_state(self._environment)

    def _send_reports(self, sender: Sender) -> None:
        while self._executor is not None and self._executor.reports:
            # The newest goes again to the next hub: this one may be ending.
            sender.put_state(self._executor.reports.popleft())

    def _send_notices(self, sender: Sender) -> None:
        while self._notices:
            at_ns, level, text = self._notices.popleft()
            sender.put(Notice(sender.place.rank, at_ns, level, text))

    def _introduce(self, sender: Sender) -> None:
        sender.introduce(self._info(sender.place))

    def _info(self, place: RankPlacement) -> RankInfo:
        source = self._measuring.source if self.barrier.active else None
        return RankInfo(
            job=place.job,
            rank=place.rank,
            local_rank=place.local_rank,
            world_size=place.world_size,
            host=place.host,
            pid=self._pid,
            script=self._script,
            device=self._measuring.device,
            backend=self._measuring.backend,
            source=source.name if source is not None else "none",
            source_reason=self._source_reason(source),
            compute_exact=source is not None and source.compute_exact,
            detail_every=source.detail_every if source is not None else 0,
            torch_version=str(getattr(sys.modules.get("torch"), "__version__", "")),
            control_allowed=self._options.control and self.barrier.active,
            local_world_size=place.local_world_size,
        )

    def _source_reason(self, source: Source | None) -> str:
        if source is None:
            return self._why_no_source()
        sign = self._steps.sign if self._steps is not None else ""
        return "; ".join(filter(None, (source.reason, sign)))

    def _why_no_source(self) -> str:
        if not self.barrier.active:
            return AGENT_DISABLED
        return "no step seen yet: an optimizer's step, or overlaptop.agent.step(), ends one"

    def _report_fault(self) -> None:
        """After a fault: report it to the dashboard, for as long as the job runs.

        The fault may lie in any of these, so each is tried, whatever became of the others.
        """
        for send in (self._introduce, self._send_reports, self._send_notices, Sender.pump):
            with contextlib.suppress(Exception):  # the log has it
                if self._sender is None:
                    self._look_for_place()
                if self._sender is not None:
                    send(self._sender)

    def _close(self) -> None:
        """Send what is left, and that this rank ends; the job waits for this a moment at most."""
        try:
            if self._measuring.source is not None:
                self._measuring.source.stop()
            if self.barrier.active:
                self._work()
            else:
                self._report_fault()
            if self._sender is not None:
                self._say_end(self._sender, self.failure or failure_at_exit())
        except Exception as fault:  # noqa: BLE001 - nothing may break the job's end
            self.barrier.disable("the agent's end", fault)

    def _say_end(self, sender: Sender, failure: str = "") -> None:
        sender.put(RankEnd(sender.place.rank, now_ns(), clean=True, failure=failure))
        sender.flush(EXIT_FLUSH_S)
        sender.disconnect()

    # At the end of the process, and in a forked child.

    def _end_with_multiprocessing(self) -> None:
        """A child that multiprocessing has forked ends by os._exit, which calls no atexit function."""
        process, util = map(sys.modules.get, ("multiprocessing.process", "multiprocessing.util"))
        if process is not None and util is not None and process.parent_process() is not None:
            util.Finalize(None, run_to_completion, (self._at_childs_exit,), exitpriority=LAST_OF_ALL)

    def _at_childs_exit(self) -> None:
        if not self.failure:
            self.failure = failure_under_way()
        self._at_exit()

    def _at_exit(self) -> None:
        """Let the last messages leave, and the last callbacks come.

        A thread of gloo's that wants to call Python after Python has ended aborts the process. Torch
        itself waits at exit for what gloo still has under way, so this takes no longer.
        """
        if os.getpid() != self._pid:
            return
        try:
            run_to_completion(self._end)
        except Exception as fault:
            if raised_by_job(fault):
                raise
            self.barrier.disable("the job's end", fault)

    def _end(self) -> None:
        if self._executor is not None:
            with contextlib.suppress(Exception):  # nothing may break the job's end
                self._executor.close()
        self._ending.set()
        if self._thread is not None:
            self._thread.join(EXIT_FLUSH_S)
        flush_log()
        give_up_s = monotonic() + OUTSTANDING_S
        source = self._measuring.source
        if source is not None and source.outstanding:
            while source.outstanding and monotonic() < give_up_s:
                sleep(0.005)
            sleep(LEAVE_PYTHON_S)

    def _after_fork(self) -> None:
        """In a DataLoader worker or another child: measure nothing, close the copied connection."""
        self.barrier.active = False
        discard_deferred()
        self._executor = None
        if self._sender is not None:
            with contextlib.suppress(Exception):  # Python would write it to the job's stderr
                self._sender.disconnect()

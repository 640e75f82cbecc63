"""The agent of one rank: hooks on the job's threads, and one thread of its own that measures and sends."""

import atexit
import contextlib
import importlib
import os
import sys
import threading
from collections import deque
from functools import partial
from random import Random
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from overlaptop.agent import placement
from overlaptop.agent.clock import now_ns
from overlaptop.agent.control.capture import Capture, write_trace
from overlaptop.agent.control.executor import CommandExecutor
from overlaptop.agent.control.two_phase_commit import StepProgress
from overlaptop.agent.gather import HubGathering
from overlaptop.agent.hang_watch import HangWatch
from overlaptop.agent.hooks.process_groups import collectives_begun, group_of_all
from overlaptop.agent.isolation.fault_barrier import FaultBarrier, discard_deferred, flush_log
from overlaptop.agent.isolation.job_exceptions import raised_by_job, run_to_completion
from overlaptop.agent.isolation.patching import uncompiled
from overlaptop.agent.isolation.threads import Thread, signals_blocked
from overlaptop.agent.knobs.change_bucket_size import BucketKnob
from overlaptop.agent.knobs.prefetch import PrefetchKnobs
from overlaptop.agent.knobs.script_knobs import DECLARED
from overlaptop.agent.measuring import Measuring
from overlaptop.agent.options import AgentOptions
from overlaptop.agent.placement import RankPlacement
from overlaptop.agent.reporting.sender import Sender
from overlaptop.agent.script.failure import failure_at_exit, failure_under_way
from overlaptop.agent.stacks import StackSampler
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
    from overlaptop.agent.reporting.reporter import StepReports

PERIOD_S = 0.1
EXIT_FLUSH_S = 2.0  # Longest wait at the job's end for the last messages, if the hub does not read them
OUTSTANDING_S = 60.0
"""Longest wait at the job's end for collectives in flight. Torch waits for them at exit, too."""
LEAVE_PYTHON_S = 0.1
"""Wait for the torch thread of the last callback: if Python ends meanwhile, C++ aborts the process."""
LAST_OF_ALL = -1000  # Priority of a multiprocessing exit function: the job's own exit functions run first
MAX_NOTICES = 64
RECENT_STEPS = 8  # Steps kept; the shortest one counts as the length of a step
NO_STEP = "no step seen yet: an optimizer's step, or overlaptop.agent.step(), ends one"


class Agent:
    """The agent of this process; there is one."""

    def __init__(self, options: AgentOptions, script: str) -> None:
        """``script``: the job's script as it was named on the command line."""
        self.barrier = FaultBarrier(self._notice)
        self._steps: StepHooks | None = None
        self._thread_times: TrainingThread | None = None
        self._measuring = Measuring(self.barrier, self._notice)
        self._prefetch = PrefetchKnobs(self.barrier)
        self._buckets = BucketKnob(self.barrier)
        self._knobs = self._buckets, self._prefetch, DECLARED
        self.barrier.pending = lambda: self._executor is not None and self._executor.pending
        self._begin(options, script)
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self._at_exit)

    def _begin(self, options: AgentOptions, script: str) -> None:
        """Set all state of one process. The hooks are shared with forked children."""
        self._options = options
        self._script = script
        self._place = placement.from_environment()
        self._place_confirmed = False
        """True if a process group confirmed it; False: it is from the environment alone."""
        self._sender: Sender | None = None
        self._notices: deque[tuple[int, str, str]] = deque(maxlen=MAX_NOTICES)
        self._step = -1
        """The step in progress, numbered as in StepTotals; -1 before the first boundary."""
        self._reports: StepReports | None = None
        self._recent_ns: deque[int] = deque(maxlen=RECENT_STEPS)
        """Lengths of the last undisturbed steps."""
        self._training_thread = 0
        self._executor: CommandExecutor | None = None
        # After a fault, only this ends a command that runs on the job's thread.
        self.barrier.on_disabled = lambda: self._executor is None or self._executor.disable(AGENT_DISABLED)
        self._environment: EnvironmentFacts | None = None
        self._cwd = placement.working_directory()
        self._recording: tuple[str, ...] = ()
        if options.record:
            self._recording = (f"--record={self._cwd / options.record}", f"--keep={options.keep}")
        self._hangs = HangWatch(self._cwd, self._notice)
        self._stacks = StackSampler(self._cwd)
        self._telemetry = Telemetry(self._notice, enabled=options.telemetry)
        self._measuring.begin(options, self._telemetry.follow)
        if self._thread_times is not None:
            self._thread_times.begin()
        self._pid = os.getpid()
        self.failure = ""  # why the script ended, for RankEnd
        self._ending = threading.Event()
        self._gathering = HubGathering(self._notice, self._ending) if options.gather else None
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the agent's thread and put the hooks into torch, which must have been imported.

        From here on the dashboard shows a job whose launcher numbers its ranks. The thread does not start
        earlier: a process with threads cannot enter a user namespace, and Python warns when it forks.
        """
        if self._thread is None:
            self._thread = self.barrier.guarded("starting its thread", lambda: Thread(self._run))()
            self.barrier.guarded("looking at multiprocessing", self._end_with_multiprocessing)()
        self.barrier.guarded("putting the hooks in", self._hook_torch)()

    def begin_in_fork(self, options: AgentOptions, script: str) -> None:
        """Let `start` measure a forked child as its own rank, with the inherited hooks. Until then, the
        agent's copy is inactive there.
        """
        if self._pid != os.getpid():
            self._begin(options, script)
            self.barrier.active = True

    def step(self) -> None:
        if self._steps is not None:
            self._steps.end_step()

    def _hook_torch(self) -> None:
        if self._steps is not None:
            return
        uncompiled(self.barrier.guarded("", now_ns))  # all guarded functions share one code object
        # Import on the job's thread all that the agent's threads need: a child that forks during another
        # thread's import inherits half a module. This includes numpy, which starts threads.
        signals_blocked(partial(importlib.import_module, "overlaptop.agent.reporting.reporter"))
        from overlaptop.agent.hooks.steps import StepHooks
        from overlaptop.agent.hooks.training_thread import TrainingThread

        self._thread_times = TrainingThread(self.barrier)
        self._thread_times.install()
        self._steps = StepHooks(self.barrier, self._on_boundary, self._measuring.edge)
        self._steps.install()
        self._measuring.profilers.install()
        self._buckets.install()
        self._prefetch.install()

    # On the job's threads.

    def _on_boundary(self, optimizer: Any) -> None:
        """A step ends and the next one begins.

        Also called on a disabled agent while other ranks wait for an agreed action.
        """
        from overlaptop.agent.sources.graph_captures import captures_a_graph

        if captures_a_graph():
            return  # a captured graph replays later without hooks: no step is counted
        try:
            if self._options.control:  # only commands compare the ranks' positions
                for knobs in self._knobs:
                    knobs.note_step(self._step + 1)  # before another thread can see the new step
            if self.barrier.active:
                self._measuring.boundary(self._step + 1, optimizer)
                if self._thread_times is not None:
                    self._thread_times.boundary(self._step + 1)
        finally:
            self._step += 1
            self._training_thread = threading.get_ident()
            if self._executor is not None and (armed := self._executor.armed) is not None:
                if armed.changes_settings(self._step):
                    # Before the step is measured. A trial's steps are measured like those around it.
                    burst = armed.command.name != commands.TRIAL
                    self._measuring.settings_changed(self._step, burst=burst)
                armed.on_boundary(self._step)

    def _notice(self, level: str, text: str) -> None:
        self._notices.append((now_ns(), level, text))

    # On the agent's own thread.

    def _run(self) -> None:
        work = self.barrier.guarded("the agent's thread", self._work)
        # Even rounds would always hit the same place of a step that is as long as the period.
        chance = Random()  # noqa: S311 - the global one is the job's
        while self.barrier.active and not self._ending.wait(PERIOD_S * chance.uniform(0.5, 1.5)):
            work()
        self._telemetry.stop()
        if not self.barrier.active and self._measuring.source is not None:
            with contextlib.suppress(Exception):  # the source itself may have failed
                self._measuring.source.stop()
        while not (self.barrier.active or self._ending.wait(1.0)):
            self._report_fault()
        self._close()

    def _work(self) -> None:
        self._look_for_place()
        sender, executor = self._sender, self._executor
        if sender is None or executor is None:
            return
        self._introduce(sender)
        self._send_stacks(sender)
        self._send_steps(sender, executor)
        executor.serve(sender.commands, sender.put_state)
        self._send_stalled(sender)
        if self._step >= 0:  # before that, the script is still building its model
            self._send_settings(sender)
        if sender.connections:
            self._telemetry.serve(sender.put_state, sender.place)
        if self._gathering is not None and self._place_confirmed:
            self._gathering.serve(sender)
        self._send_notices(sender)
        sender.pump()

    def _look_for_place(self) -> None:
        """Update this process's rank. A process group may come late, and another one later."""
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
                self._place = before  # keep it until a joint change is applied and restored
                return
            self._say_end(sender)  # end the rank that it was wrongly taken for
        self._executor = CommandExecutor(
            found,
            self._knobs,
            allowed=self._options.control,
            pace=self._pace,
            capture=partial(self._capture, found.rank),
            notice=self._notice,
        )
        self._sender = Sender(found, self._script, self._recording)

    def _present_place(self) -> RankPlacement | None:
        """From the process group, else from the launcher; a process with steps and neither is alone."""
        if self._steps is None:
            return self._place  # another thread may be importing torch
        found = placement.in_process_group(self._place, confirmed=self._place_confirmed)
        if found is not None:
            self._place_confirmed = True
            return found
        if self._place is None and self._measuring.source is not None:
            return placement.alone()
        return self._place

    def _pace(self) -> StepProgress | None:
        return StepProgress(self._step, min(self._recent_ns)) if self._recent_ns else None

    def _capture(self, rank: int, command: Command) -> Capture:
        write = partial(write_trace, cwd=self._cwd, key=command.id, rank=rank, notice=self._notice)
        return Capture(commands.argument(command, "steps"), self._measuring.profilers, write)

    def _send_steps(self, sender: Sender, executor: CommandExecutor) -> None:
        if (source := self._measuring.source) is not None:
            if self._reports is None:
                from overlaptop.agent.reporting.reporter import StepReports

                self._reports = StepReports(self._recent_ns)
            self._reports.send(source, sender, executor.marks, self._thread_times)
            while source.remarks:
                self._notice("warning", source.remarks.popleft())

    def _send_stacks(self, sender: Sender) -> None:
        if not self._options.stacks or self._step < 0:
            return
        asleep = self._thread_times is not None and self._thread_times.is_asleep()
        self._stacks.sample(self._training_thread, now_ns(), asleep=asleep)
        if (taken := self._stacks.take(sender.place.rank, now_ns())) is not None:
            sender.put_state(taken)

    def _send_stalled(self, sender: Sender) -> None:
        now_s, rank, thread = monotonic(), sender.place.rank, self._training_thread
        if self._recent_ns:
            moving, last_calls = (self._step, self._measuring.issued), self._measuring.last_calls
            said = self._hangs.between_steps(rank, thread, moving, self._recent_ns, last_calls, now_s)
        else:
            thread = thread or threading.main_thread().ident or 0
            group = group_of_all() if self._steps is not None else None
            begun = collectives_begun(group) if group is not None else None  # no hook counts them yet
            said = self._hangs.before_first_step(rank, thread, begun, now_s)
        if said is not None:
            sender.put_state(said)

    def _send_settings(self, sender: Sender) -> None:
        """Send the environment as it is after the first step began: the script may set some before."""
        if self._environment is None:
            known = ((name, os.environ.get(name)) for name in ENVIRONMENT)
            variables = [EnvironmentVariable(name, value) for name, value in known if value is not None]
            threads = sys.modules["torch"].get_num_threads()
            self._environment = EnvironmentFacts(sender.place.rank, tuple(variables), threads)
        sender.put_state(self._environment)
        if (gradients := self._buckets.gradients(sender.place.rank)) is not None:
            sender.put_state(gradients)

    def _send_notices(self, sender: Sender) -> None:
        while self._notices:
            sender.put(Notice(sender.place.rank, *self._notices.popleft()))

    def _introduce(self, sender: Sender) -> None:
        place, measuring = sender.place, self._measuring
        source = measuring.source if self.barrier.active else None
        reason = NO_STEP if self.barrier.active else AGENT_DISABLED
        if source is not None:
            sign = self._steps.sign if self._steps is not None else ""
            reason = "; ".join(filter(None, (source.reason, sign)))
        info = RankInfo(
            job=place.job,
            rank=place.rank,
            local_rank=place.local_rank,
            world_size=place.world_size,
            host=place.host,
            pid=self._pid,
            script=self._script,
            device=measuring.device,
            backend=measuring.backend,
            source=source.name if source is not None else "none",
            source_reason=reason,
            compute_exact=source is not None and source.compute_exact,
            detail_every=source.detail_every if source is not None else 0,
            torch_version=str(getattr(sys.modules.get("torch"), "__version__", "")),
            control_allowed=self._options.control and self.barrier.active,
            local_world_size=place.local_world_size,
        )
        sender.introduce(info)

    def _report_fault(self) -> None:
        """After a fault: report it to the dashboard for the rest of the job.

        Each sender is tried on its own, because any of them may be the one that failed.
        """
        for send in (self._introduce, self._send_reports, self._send_notices, Sender.pump):
            with contextlib.suppress(Exception):  # it is in the log
                if self._sender is None:
                    self._look_for_place()
                if self._sender is not None:
                    send(self._sender)

    def _send_reports(self, sender: Sender) -> None:
        if self._executor is not None:
            self._executor.send_reports(sender.put_state)

    def _close(self) -> None:
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
        """Register an exit function: multiprocessing's forked children skip atexit (os._exit)."""
        process, util = map(sys.modules.get, ("multiprocessing.process", "multiprocessing.util"))
        if process is not None and util is not None and process.parent_process() is not None:
            util.Finalize(None, run_to_completion, (self._at_childs_exit,), exitpriority=LAST_OF_ALL)

    def _at_childs_exit(self) -> None:
        if not self.failure:
            self.failure = failure_under_way()
        self._at_exit()

    def _at_exit(self) -> None:
        """Wait for the last messages and the last callbacks.

        If a gloo thread calls Python after Python has ended, the process aborts. Torch waits at exit for
        gloo's pending work anyway, so this adds no time.
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
        """In a DataLoader worker or another child: stop measuring, close the copied connection."""
        self.barrier.active = False
        discard_deferred()
        self._executor = None
        if self._sender is not None:
            with contextlib.suppress(Exception):  # Python would write it to the job's stderr
                self._sender.disconnect()

"""The hub's main loop: one thread, one selector, a tick a second."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

from msgspec.structs import replace

from overlaptop.hub.black_box import HubBlackBox
from overlaptop.hub.dashboards import DashboardServer
from overlaptop.hub.executions import CommandExecutions, log_change
from overlaptop.hub.gathering import GatherRoot, RootLink
from overlaptop.hub.history import FromRank, JobHistory
from overlaptop.hub.log import log_line
from overlaptop.hub.options import HubOptions
from overlaptop.hub.ranks import RankServer
from overlaptop.jobs import last_end
from overlaptop.jobs.folder import LOCK_NAME, job_dir, remove_job_files
from overlaptop.jobs.gather_key import GatherError
from overlaptop.jobs.hub_command import import_path
from overlaptop.jobs.last_end import LastEnd
from overlaptop.jobs.processes import parent_of, process_start_time, raise_descriptor_limit
from overlaptop.jobs.record import JobRecord, read_job, write_job
from overlaptop.jobs.sockets import dashboards_socket, ranks_socket, view_socket
from overlaptop.wire.codec import decode, encode
from overlaptop.wire.joining import Gather, Gathered
from overlaptop.wire.messages import RESTARTED, Notice, RankEnd, StepDetail, Welcome
from overlaptop.wire.protocol import PROTOCOL_VERSION

_TICK_S = 1.0
_EXITING_FACTOR = 5
"""Factor on the linger time while processes are about to end, to learn their exit codes, or while other
hubs are connected."""


class RecorderProcess:
    """Runs ``overlaptop record`` on this hub's job, in a process of its own: a slow or full disk does not
    stop the hub. It ends by itself, after the job. ``complain`` is called with one line if it cannot begin,
    or ends before the job.
    """

    def __init__(self, options: HubOptions, complain: Callable[[str], None]) -> None:
        self._options, self._complain = options, complain
        self._process: subprocess.Popen[str] | None = None

    def start(self, job: JobRecord) -> None:
        self._has_all_nodes = job.is_root
        name = f"{job.job}-{job.host}-{time.strftime('%Y%m%d-%H%M%S')}.mcap"
        self._path = Path(self._options.record) / name
        command = [sys.executable, "-P", "-m", "overlaptop", "record", "--job", job.job]
        try:
            self._process = subprocess.Popen(
                [*command, f"--output={self._path}", f"--keep={self._options.keep}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        except OSError as fault:
            self._complain(f"the job is not recorded: {fault.strerror}")

    def tick(self, job: JobRecord) -> None:
        """Record anew once other nodes can be reached through this hub. The new recording begins with the
        history.
        """
        if self._process is None:
            return
        is_replaced = job.is_root and not self._has_all_nodes
        if self._process.poll() is None:
            if is_replaced:
                self._process.terminate()
            return
        _, errors = self._process.communicate()
        status, self._process = self._process.returncode, None
        if is_replaced:
            if status == 128 + signal.SIGTERM:  # otherwise the file may be another one's
                with suppress(OSError):
                    self._path.unlink()
            self.start(job)
        elif status:
            why = errors.rstrip().rpartition("\n")[2].removeprefix("overlaptop: ") or f"status {status}"
            self._complain(f"the job is not recorded any more: {why}")


class Hub:
    """Collects the ranks' frames and passes them on until the job is over."""

    def __init__(self, options: HubOptions, listener: socket.socket, lock: int) -> None:
        raise_descriptor_limit()
        self._options, self._lock = options, lock
        self._folder = job_dir(options.job)
        now_s = self._idle_since_s = time.monotonic()  # When the last rank disconnected
        self._written: JobRecord | None = None  # The record in job.json
        self._terminated = False
        self._gathered: Gathered | None = None
        self._history = JobHistory()
        self._selector = DefaultSelector()
        earlier = read_job(options.job)
        if earlier is not None and not earlier.starter_alive:
            earlier = None  # another job had the key, as with the same port
        self._record = self._first_record(earlier)
        paths = self._record.dashboard_path, view_socket(options.job, os.getpid())
        self._socket_paths = ranks_socket(options.job), *paths
        restarts = _elastic("RESTART_COUNT")
        if restarts:
            words = f"{RESTARTED} after a failure (restart {restarts}): steps count from 0"
            notice = Notice(0, self._record.started_ns, "warning", words)
            self._history.keep(notice, encode(notice), now_s)
        job = self._record
        welcome = Welcome(PROTOCOL_VERSION, job.job, job.host, job.script, job.world_size, job.started_ns)
        self._commands = CommandExecutions(partial(log_change, self._record))
        self._ranks = RankServer(options.job, listener, self._selector, self._commands, self._deliver)
        self._black_box = HubBlackBox(
            welcome, self._history, commands=self._commands.replay, status=self._ranks.status
        )
        self._dashboards = DashboardServer(
            *paths, welcome, self._history, self._commands, self._ranks, self._black_box.ask
        )
        # A recorder outlives its hub, and follows the job to the next hub or restart.
        self._recorder_due = bool(options.record) and earlier is None and not restarts
        self._recorder = RecorderProcess(options, self._complain)
        self._listen_to_dashboards()
        self._listen_to_signals()

    def run(self) -> None:
        """Run until the job is over. Then remove the job's folder if it still belongs to this hub."""
        now_s = next_tick_s = time.monotonic()
        while not self._is_over(now_s):
            due_s = min(next_tick_s, self._deadline_s or next_tick_s)
            wait_s = 0.0 if self._dashboards.has_input else max(0.0, due_s - time.monotonic())
            ready = self._selector.select(wait_s)
            now_s = time.monotonic()
            for key, events in ready:
                key.data(events)
            self._dashboards.receive(now_s)
            if now_s >= next_tick_s:
                next_tick_s = now_s + _TICK_S
                self._tick(now_s)
            self._dashboards.flush(now_s)
            if self._ranks.numbers:
                self._idle_since_s = now_s
        self._end()

    def _deliver(self, message: FromRank, payload: bytes) -> None:
        """Process a message from a rank, or the hub's own RankEnd after a broken connection."""
        if isinstance(message, Gather):
            self._gather(message)
            return
        now_s = time.monotonic()
        frame = self._history.keep(message, payload, now_s)
        self._black_box.see(message, now_s)
        if isinstance(message, StepDetail):
            self._dashboards.publish_detail(message.rank, frame)
            return
        self._dashboards.publish(frame)

    def _gather(self, message: Gather) -> None:
        """Bind the root's port or connect to it, once. Answer all ranks."""
        if self._gathered is None or self._gathered.refusal:
            try:
                at = message.host, message.port
                place = GatherRoot(*at) if message.is_root else RootLink(*at, self._folder)
            except GatherError as refusal:
                self._gathered = Gathered("", 0, str(refusal))
            else:
                self._gathered = Gathered(place.address, place.port)
                self._dashboards.gather(place)
                self._listen_to_dashboards()
                self._record = replace(
                    self._record, is_root=message.is_root, root_host=place.address, root_port=place.port
                )
            log_line(self._gathered.refusal or f"gathering: {self._gathered.host}:{self._gathered.port}")
        self._ranks.command(encode(self._gathered))

    def _listen_to_dashboards(self) -> None:
        # Checked in every round, whatever woke it.
        for descriptor in self._dashboards.descriptors:
            if descriptor not in self._selector.get_map():
                self._selector.register(descriptor, EVENT_READ, lambda _events: None)

    def _tick(self, now_s: float) -> None:
        self._ranks.tick()
        self._commands.tick(now_s)
        self._black_box.tick(now_s)
        self._recorder.tick(self._record)
        self._dashboards.tick(now_s)
        self._write_record()
        if not (self._owns_folder() and all(path.exists() for path in self._socket_paths)):
            log_line("the job's folder was taken away: ending, so that the ranks start another hub")
            self._terminated = True

    @property
    def _deadline_s(self) -> float | None:
        """When the hub ends if no rank comes. None while there are ranks."""
        if self._ranks.numbers:
            return None
        options = self._options
        if not self._ranks.seen:
            return self._idle_since_s + options.wait_s
        lingers = self._ranks.exiting or self._dashboards.has_hubs  # their last messages come through here
        return self._idle_since_s + options.linger_s * (_EXITING_FACTOR if lingers else 1)

    def _is_over(self, now_s: float) -> bool:
        deadline_s = self._deadline_s
        if self._terminated or deadline_s is None:
            return self._terminated
        if now_s >= deadline_s:
            return True
        # If no rank has come, none will after the starter's death. After a job, the hub lingers.
        return not self._ranks.seen and not self._record.starter_alive

    def _owns_folder(self) -> bool:
        try:
            there = (self._folder / LOCK_NAME).lstat()
        except OSError:
            return False
        return there.st_ino == os.fstat(self._lock).st_ino

    def _first_record(self, earlier: JobRecord | None) -> JobRecord:
        options, pid = self._options, os.getpid()
        may_restart = _elastic("MAX_RESTARTS") > _elastic("RESTART_COUNT")
        restarter_pid = (may_restart and parent_of(options.starter_pid)) or 0
        return JobRecord(
            protocol=PROTOCOL_VERSION,
            job=options.job,
            script=options.script,
            cwd=options.cwd,
            host=socket.gethostname(),
            world_size=options.world_size,
            python=sys.executable,
            starter_pid=options.starter_pid,
            starter_start_ticks=process_start_time(options.starter_pid),
            hub_pid=pid,
            hub_start_ticks=process_start_time(pid) or 0,
            started_ns=earlier.started_ns if earlier is not None else time.time_ns(),
            dashboard_socket=dashboards_socket(options.job, pid).name,
            rank_pids=(),
            import_path=tuple(import_path()),
            restarter_pid=restarter_pid,
            restarter_start_ticks=process_start_time(restarter_pid),
        )

    def _write_record(self) -> None:
        self._record = replace(self._record, rank_pids=self._ranks.pids, ended=self._ranks.ended)
        if self._record == self._written:
            return
        try:
            write_job(self._record)
        except OSError as error:
            log_line(f"cannot write job.json: {error.strerror}")
            return
        self._written = self._record
        if self._recorder_due:  # the recorder finds the job by its record
            self._recorder_due = False
            self._recorder.start(self._record)

    def _complain(self, why: str) -> None:
        log_line(why)
        notice = Notice(0, time.time_ns(), "warning", why)
        self._deliver(notice, encode(notice))

    def _listen_to_signals(self) -> None:
        def terminate(_signal: int, _frame: object) -> None:
            self._terminated = True  # noticed at the next tick

        signal.signal(signal.SIGTERM, terminate)
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _end(self) -> None:
        self._commands.close()
        self._dashboards.finish()
        job = self._record
        try:
            if self._ranks.ended:
                ends = tuple(end for end in map(decode, self._history.ends) if isinstance(end, RankEnd))
                hung = self._history.is_hung
                last_end.write(LastEnd(job.script, time.time_ns(), ends, job.job, hung=hung))
                self._black_box.end(time.monotonic())
        except Exception as error:  # noqa: BLE001 - the folder must be removed after any error
            log_line(f"cannot write how the job ended: {error!r}")
        with suppress(OSError):
            if self._owns_folder():
                remove_job_files(self._folder)
        self._ranks.close()
        self._dashboards.close()
        self._selector.close()


def _elastic(name: str) -> int:
    """Return a number that torchrun gives its ranks. 0 if it does not."""
    number = os.environ.get(f"TORCHELASTIC_{name}", "")
    return int(number) if number.isdecimal() else 0

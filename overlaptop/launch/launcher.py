"""Starts a script under torchrun with an agent in each rank, watches the job and ends it.

Nothing here imports torch: the dashboard can start workloads, and must open fast.
"""

import fcntl
import functools
import importlib.util
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from overlaptop.jobs import last_end
from overlaptop.jobs.folder import JobFolderError
from overlaptop.jobs.record import JobRecord, list_jobs
from overlaptop.launch import supervisor
from overlaptop.launch.request import LaunchError
from overlaptop.workloads.catalog import Workload
from overlaptop.workloads.options import Defaults

GRACE_S = 4.0  # Time for torchrun to end its ranks, and for the hub to send its last status
STOP_LIMIT_S = 3 * GRACE_S + 2.0
TAIL_BYTES = 64 << 10

_TORCHRUN_REPORT = re.compile(r"^[EW]\d{4} \S+ \d+ \S*torch/distributed/elastic/")
_RANK_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\)")
_RANK_PREFIX = re.compile(r"^\[rank(\d+)\]:\s?")


@dataclass(frozen=True, slots=True)
class JobPlacement:
    """The devices of a job's ranks."""

    nproc: int
    backend: str  # ``nccl``, on GPUs, or ``gloo``, all on the CPU
    shared_gpus: int = 0
    """Number of GPUs if there are fewer than processes. 0 if each process has its own, or none."""

    @property
    def defaults(self) -> Defaults:
        if self.backend == "gloo":
            return "cpu"
        return "shared" if self.shared_gpus else "cuda"

    @property
    def describe(self) -> str:
        """``2 GPUs, NCCL``."""
        if self.backend == "gloo":
            return f"the CPU, {self.nproc} process{'es' * (self.nproc > 1)}, gloo"
        gpus = self.shared_gpus or self.nproc
        shared = f" shared by {self.nproc} processes" if self.shared_gpus else ""
        return f"{gpus} GPU{'s' * (gpus > 1)}{shared}, NCCL"


def place(nproc: int | None = None, device: str = "auto", *, may_share: bool = True) -> JobPlacement:
    """Choose NCCL on this machine's GPUs, else gloo on two processes.

    ``nproc``: number of processes; None: one a GPU, but at least two. ``device``: a workload's option:
    ``cpu`` always runs on gloo. ``may_share``: the script lets several ranks share a GPU, as bundled
    workloads do. Other scripts with more processes than GPUs run on gloo, and on one GPU they get one
    process. Raises LaunchError for ``cuda`` on a machine without a GPU.
    """
    gpus = usable_gpus()
    if device == "cuda" and not gpus:
        raise LaunchError("--device cuda: there is no GPU")
    if nproc is None:
        nproc = max(2, gpus) if may_share or not gpus else gpus
    if not gpus or device == "cpu" or (nproc > gpus and not may_share):
        return JobPlacement(nproc, "gloo")
    return JobPlacement(nproc, "nccl", gpus if nproc > gpus else 0)


@functools.cache
def usable_gpus() -> int:
    """Return how many GPUs a job started here would see: 0 with a CPU build of torch. Slow on first use."""
    if not _torch_has_cuda():
        return 0
    installed, shown = _installed_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return installed
    entries = shown.partition("-1")[0].split(",")  # CUDA shows no GPU after a -1
    return min(installed, sum(bool(entry.strip()) for entry in entries))


def _installed_gpus() -> int:
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # noqa: BLE001 (no driver, no permission)
        return 0


def _torch_folder() -> Path:
    # Finding a top-level package does not import it.
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise LaunchError(
            "torch is not installed here, and a workload needs it: pip install 'overlaptop[torch]'"
        )
    return Path(spec.origin).parent


def _torch_has_cuda() -> bool:
    try:
        version = (_torch_folder() / "version.py").read_text()
    except OSError:
        return True  # an unusual build: let the GPUs decide
    return re.search(r"^(?:cuda|hip)\b.*= *'", version, re.MULTILINE) is not None


class Launcher:
    """One job: a script with its options, and an agent in each of its ranks. Call ``start`` once.

    ``end`` has all its remaining processes ended, and ``stop`` waits for that. Both may be called at any
    time and repeatedly. The job is also a context manager that stops it at the end of the block.
    """

    def __init__(
        self,
        script: Path | str,
        options: Sequence[str],
        placement: JobPlacement,
        *,
        agent_options: Sequence[str] = (),
    ) -> None:
        self.placement = placement
        # --: otherwise torchrun takes the script's options for abbreviations of its own: --n, --numa.
        self._of_agent = ("-m", "--", "overlaptop.agent", *agent_options, str(script), *options)
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._log = -1
        self._ended: tuple[str, int, float] | None = None
        """The key of the job that we had ended, when, in Unix time, and when it is killed."""

    @property
    def command(self) -> list[str]:
        nproc = f"--nproc-per-node={self.placement.nproc}"
        # Its own rendezvous on a free port, so that any number of jobs can run side by side.
        name = f"--rdzv-id=demo-{secrets.token_hex(4)}"
        rendezvous = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", name)
        torchrun = ("-m", "torch.distributed.run", *rendezvous, "--local-addr=localhost", nproc)
        # -P: import nothing from the current folder.
        return [sys.executable, "-P", *torchrun, *self._of_agent]

    @property
    def command_line(self) -> str:
        """The command that a person would type for the same job, without the rendezvous."""
        words = ["torchrun", f"--nproc-per-node={self.placement.nproc}", *self._of_agent]
        hides_gpus = self.placement.backend == "gloo" and usable_gpus() > 0
        return ("CUDA_VISIBLE_DEVICES= " if hides_gpus else "") + shlex.join(words)

    def start(self) -> None:
        """Run the command in its own session. Raises LaunchError if that fails."""
        _torch_folder()
        with tempfile.TemporaryFile(prefix="overlaptop-") as log:
            self._log = os.dup(log.fileno())
        fcntl.fcntl(self._log, fcntl.F_SETFL, fcntl.fcntl(self._log, fcntl.F_GETFL) | os.O_APPEND)
        try:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", supervisor.__file__, str(GRACE_S), *self.command],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                env=self._environment(),
            )
        except OSError as error:
            raise LaunchError(f"cannot start {sys.executable}: {error.strerror}") from error

    def poll(self) -> int | None:
        """Return the job's exit status, as a shell would. None while any of its processes is left."""
        if self._supervisor is None:
            return None
        status = self._supervisor.poll()
        if self._ended is not None:
            key, ended_ns, limit_s = self._ended
            if status is None and time.monotonic() > limit_s:
                for pid in (*supervisor.descendants(self._supervisor.pid), self._supervisor.pid):
                    supervisor.send(pid, signal.SIGKILL)
            elif status is not None and key:
                with suppress(OSError, JobFolderError):
                    last_end.note_stop(key, ended_ns)
                self._ended = ("", ended_ns, limit_s)
        # Negative: the supervisor was killed itself.
        return 128 - status if status is not None and status < 0 else status

    def wait(self, limit_s: float) -> int | None:
        """Return the exit status once no process of the job is left. None: some are after this time."""
        if self._supervisor is not None:
            with suppress(subprocess.TimeoutExpired):
                self._supervisor.wait(limit_s)
        return self.poll()

    def end(self) -> None:
        """Have the supervisor end the job, without waiting for it."""
        if self._supervisor is not None and self._ended is None:
            key = self.key if self.poll() is None else ""
            self._ended = key, time.time_ns(), time.monotonic() + STOP_LIMIT_S
            assert self._supervisor.stdin is not None
            self._supervisor.stdin.close()

    def stop(self) -> None:
        """End the job and wait until all its processes have ended (usually well under a second)."""
        self.end()
        while self._supervisor is not None and self.poll() is None:
            self.wait(1.0)

    @property
    def key(self) -> str:
        """The running job's key. Empty without a hub."""
        with suppress(JobFolderError):
            return next((record.job for record in list_jobs() if self.owns(record)), "")
        return ""

    def output(self) -> list[str]:
        """Return the last lines that the job wrote to stdout and stderr."""
        if self._log < 0:
            return []
        size_bytes = os.fstat(self._log).st_size
        tail = os.pread(self._log, TAIL_BYTES, max(0, size_bytes - TAIL_BYTES))
        return tail.decode(errors="replace").splitlines()

    def owns(self, record: JobRecord) -> bool:
        """Whether `record` describes this job: its hub or its ranks run below our supervisor."""
        if self._supervisor is None:
            return False
        own = self._supervisor.pid
        return any(own in supervisor.ancestors(pid) for pid in (record.hub_pid, record.starter_pid) if pid)

    @property
    def how_it_ended(self) -> str:
        """How the first failed rank, else torchrun, ended: ``exit status 1``. Empty while the job runs."""
        status = self.poll()
        if status is None:
            return ""
        failed = next((match for line in self.output() if (match := _RANK_FAILED.search(line))), None)
        if failed is not None:
            status = int(failed[1])
            status = 128 - status if status < 0 else status
        if status > 128:
            with suppress(ValueError):
                return f"killed by {signal.Signals(status - 128).name}"
        return f"exit status {status}"

    @property
    def usage_error(self) -> bool:
        """Whether the job failed because its script refused its options (exit status 2)."""
        return any("(exitcode: 2)" in line for line in self.output())

    def complaint(self, max_lines: int = 12) -> list[str]:
        """Return the last lines of a failed job's output that name the reason: each failed rank writes the
        same lines, and torchrun adds a page about itself.
        """
        lines: list[str] = []
        rank: str | None = None
        for line in self.output():
            if _TORCHRUN_REPORT.match(line) and lines:
                break
            prefix = _RANK_PREFIX.match(line)
            if prefix:
                rank = rank or prefix[1]
                if prefix[1] == rank:
                    lines.append(line[prefix.end() :])
            elif line.strip() and line not in lines:
                lines.append(line)
        return lines[-max_lines:]

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        environment["PYTHONUNBUFFERED"] = "1"
        # Leave one core of each rank's share for communication.
        share = len(os.sched_getaffinity(0)) // self.placement.nproc
        environment.setdefault("OMP_NUM_THREADS", str(max(1, share - 1)))
        if self.placement.backend == "gloo":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        if self.placement.shared_gpus:
            # The default except under MPS, where 2 makes streams share a queue.
            environment.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "8")
        return environment

    def __del__(self) -> None:
        if self._log >= 0:
            os.close(self._log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def of_workload(workload: Workload, options: Sequence[str], nproc: int | None = None) -> Launcher:
    """Return a launcher for `workload`. ``nproc``: as in `place`. Raises OptionsError if the workload would
    refuse the options, and LaunchError.
    """
    placement = place(nproc, str(workload.check(options).get("device", "auto")))
    workload.check_on(options, placement.nproc, placement.defaults)
    # As a person would have typed it, since the dashboard shows this name.
    here, path = Path.cwd(), workload.path.resolve()
    script = path.relative_to(here) if path.is_relative_to(here) else path
    # An agent that is found in the current folder does not know the workloads of another copy.
    return Launcher(script, options, placement, agent_options=("--control",))

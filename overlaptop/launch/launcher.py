"""Starts a workload under torchrun with an agent in each rank, and ends it with all that it started.

The job runs below a supervisor process (supervisor.py) that ends it when we are gone, however we went.
Nothing here imports torch: the dashboard offers to start a workload, and is quick to open.
"""

from __future__ import annotations

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from overlaptop.launch import supervisor
from overlaptop.wire.endpoints import JobRecord
from overlaptop.workloads import catalog
from overlaptop.workloads.catalog import Workload

GRACE_S = 4.0
"""For torchrun to end its ranks, and for the hub to say goodbye."""
STOP_LIMIT_S = 3 * GRACE_S + 2.0
TAIL_BYTES = 64 << 10

_TORCHRUN_REPORT = re.compile(r"^[EW]\d{4} \S+ \d+ \S*torch/distributed/elastic/")
_RANK_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\)")
_RANK_PREFIX = re.compile(r"^\[rank(\d+)\]:\s?")
_TORCHRUN_ADVICE = re.compile(r"^(\*+|Setting OMP_NUM_THREADS .*|\s*)$")


class LaunchError(Exception):
    """The job cannot be started; the message is one clear line."""


@dataclass(frozen=True, slots=True)
class JobPlacement:
    """On what a job's ranks run."""

    nproc: int
    backend: str
    """``nccl``, each rank on a GPU of its own, or ``gloo``, all on the CPU."""

    @property
    def in_words(self) -> str:
        """``2 GPUs, NCCL``."""
        if self.backend == "gloo":
            return f"the CPU, {self.nproc} process{'es' * (self.nproc > 1)}, gloo"
        return f"{self.nproc} GPU{'s' * (self.nproc > 1)}, NCCL"


def place(nproc: int | None = None, device: str = "auto") -> JobPlacement:
    """Choose NCCL on the GPUs there are, else gloo on two processes.

    More processes than GPUs run on gloo: NCCL takes no two ranks on one GPU. `device` is what a workload
    was told: ``cpu`` runs on gloo in any case. Raises LaunchError where ``cuda`` finds too few GPUs.
    """
    gpus = usable_gpus()
    if nproc is None:
        nproc = gpus or 2
    if device == "cuda" and nproc > gpus:
        each = f"{nproc} process{'es' * (nproc > 1)} need a GPU each"
        raise LaunchError(
            f"--device cuda: {each}, and there {'is' if gpus == 1 else 'are'} {gpus or 'none'}"
        )
    return JobPlacement(nproc, "nccl" if nproc <= gpus and device != "cpu" else "gloo")


@functools.cache
def usable_gpus() -> int:
    """How many GPUs a job started here would see: 0 with a CPU build of torch. Slow the first time."""
    if not _torch_has_cuda():
        return 0
    return visible_gpus(_installed_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible_gpus(installed: int, cuda_visible_devices: str | None) -> int:
    """How many of the `installed` GPUs CUDA shows under this CUDA_VISIBLE_DEVICES (None: not set).

    As CUDA reads it: the list ends at the first entry that names no device.
    """
    if cuda_visible_devices is None:
        return installed
    count = 0
    for entry in cuda_visible_devices.split(","):
        name = entry.strip()
        if name.isdigit():
            if int(name) >= installed:
                break
        elif not name.startswith(("GPU-", "MIG-")):
            break
        count += 1
    return count


def _installed_gpus() -> int:
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # noqa: BLE001 (no driver, no library, no permission: then the device files tell)
        return sum(re.fullmatch(r"nvidia\d+", entry.name) is not None for entry in Path("/dev").iterdir())


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
    built_for = re.search(r"^(?:cuda|hip)\b.*= *'", version, re.MULTILINE)
    return built_for is not None


class Launcher:
    """One job: a script with its options, an agent in each of its ranks.

    ``start`` once, then ``poll`` now and then; ``stop`` ends whatever is left and may be called at any
    time, any number of times. Also a context manager that stops at the end of its block.
    """

    def __init__(
        self,
        script: Path | str,
        options: Sequence[str] = (),
        placement: JobPlacement | None = None,
        *,
        agent_options: Sequence[str] = (),
    ) -> None:
        self.placement = placement or place()
        self._rendezvous = f"demo-{secrets.token_hex(4)}"
        self._script = str(script)
        self._options = tuple(options)
        self._agent_options = tuple(agent_options)
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._log: BinaryIO | None = None

    @property
    def command(self) -> list[str]:
        """The torchrun command line that is run."""
        return [
            sys.executable,
            "-P",  # nothing of the folder we are in
            "-m",
            "torch.distributed.run",
            # A rendezvous of its own on a free port: any number of jobs side by side.
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=localhost:0",
            f"--rdzv-id={self._rendezvous}",
            "--local-addr=localhost",
            f"--nproc-per-node={self.placement.nproc}",
            "-m",
            "overlaptop.agent",
            *self._agent_options,
            self._script,
            *self._options,
        ]

    @property
    def command_line(self) -> str:
        """What a person would type for the same job; a rendezvous of its own is left out."""
        words = [
            "torchrun",
            f"--nproc-per-node={self.placement.nproc}",
            *self.command[self.command.index("overlaptop.agent") - 1 :],
        ]
        hides_gpus = self.placement.backend == "gloo" and usable_gpus() > 0
        return ("CUDA_VISIBLE_DEVICES= " if hides_gpus else "") + shlex.join(words)

    def start(self) -> None:
        """Start the job in a session of its own. Raises LaunchError where that cannot work."""
        _torch_folder()
        self._log = tempfile.TemporaryFile(prefix="overlaptop-")  # noqa: SIM115 (lives as long as the job)
        flags = fcntl.fcntl(self._log, fcntl.F_GETFL)
        fcntl.fcntl(self._log, fcntl.F_SETFL, flags | os.O_APPEND)
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
        """Return the job's exit status, or None while it runs."""
        return self._supervisor.poll() if self._supervisor else None

    def stop(self) -> None:
        """End the job and wait until nothing of it is left (mostly well under a second)."""
        if self._supervisor is None:
            return
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()  # the lifeline
        try:
            self._supervisor.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            for pid in supervisor.descendants(self._supervisor.pid):
                supervisor.send(pid, signal.SIGKILL)
            self._supervisor.kill()
            self._supervisor.wait()

    def output(self) -> list[str]:
        """Return the last lines that the job wrote to stdout and stderr."""
        if self._log is None:
            return []
        size_bytes = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), TAIL_BYTES, max(0, size_bytes - TAIL_BYTES))
        return tail.decode(errors="replace").splitlines()

    def owns(self, record: JobRecord) -> bool:
        """Whether `record` describes this job: its hub or its ranks run below our supervisor."""
        if self._supervisor is None:
            return False
        return any(
            self._supervisor.pid in supervisor.ancestors(pid)
            for pid in (record.hub_pid, record.starter_pid)
            if pid
        )

    @property
    def how_it_ended(self) -> str:
        """The first rank to fail, else torchrun, in words: ``exit status 1``; empty while the job runs."""
        status = self.poll()
        return "" if status is None else how_it_ended(status, self.output())

    @property
    def usage_error(self) -> bool:
        """Whether the job failed because its script refused its options (exit status 2)."""
        return any("(exitcode: 2)" in line for line in self.output())

    def complaint(self, max_lines: int = 12) -> list[str]:
        """Return what the job said of its failure: the end of one rank's words, without torchrun's."""
        return complaint(self.output(), max_lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        environment["PYTHONUNBUFFERED"] = "1"
        # One core of each rank's share is left to communication.
        share = len(os.sched_getaffinity(0)) // self.placement.nproc
        environment.setdefault("OMP_NUM_THREADS", str(max(1, share - 1)))
        if self.placement.backend == "gloo":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        return environment


def bundled(name: str, options: Sequence[str] = (), placement: JobPlacement | None = None) -> Launcher:
    """Return a launcher for the bundled workload `name`; LaunchError where none is called so."""
    workload = catalog.find(name)
    if workload is None:
        raise LaunchError(f"no workload is called {name!r}")
    return of_workload(workload, options, placement)


def of_workload(
    workload: Workload, options: Sequence[str] = (), placement: JobPlacement | None = None
) -> Launcher:
    """Return a launcher for `workload`."""
    # As a person would have typed it: this is the name that the dashboard shows.
    here, path = Path.cwd(), workload.path.resolve()
    return Launcher(path.relative_to(here) if path.is_relative_to(here) else path, options, placement)


def how_it_ended(status: int, output: Iterable[str]) -> str:
    """A job's exit in words: that of the first rank of which torchrun said that it failed, else `status`,
    as a shell has it.
    """
    failed = next((match for line in output if (match := _RANK_FAILED.search(line))), None)
    if failed is not None:
        status = int(failed[1])
        status = 128 - status if status < 0 else status
    if status > 128:
        try:
            return f"killed by {signal.Signals(status - 128).name}"
        except ValueError:
            pass
    return f"exit status {status}"


def complaint(output: Iterable[str], max_lines: int) -> list[str]:
    """Pick from a failed job's output the lines that say why it failed.

    Each rank that fails says the same, and torchrun adds a page about itself: one rank's words are
    kept, each line once.
    """
    lines: list[str] = []
    speaker: str | None = None
    for line in output:
        if _TORCHRUN_REPORT.match(line) and lines:
            break
        if _TORCHRUN_ADVICE.match(line):
            continue
        prefix = _RANK_PREFIX.match(line)
        if prefix:
            speaker = speaker or prefix[1]
            if prefix[1] != speaker:
                continue
            lines.append(line[prefix.end() :])
        elif line not in lines:
            lines.append(line)
    return lines[-max_lines:]

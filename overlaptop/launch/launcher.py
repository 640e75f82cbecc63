"""Starts a workload under torchrun with an agent in each rank.

Nothing here imports torch: the dashboard can start workloads, and must open fast.
"""

import functools
import importlib.util
import itertools
import os
import re
import secrets
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from overlaptop.launch.request import LaunchError
from overlaptop.launch.supervised import SupervisedJob
from overlaptop.workloads.catalog import Workload
from overlaptop.workloads.options import Defaults


@dataclass(frozen=True, slots=True)
class JobPlacement:
    """The devices of a job's ranks."""

    nproc: int
    backend: str
    """``nccl``, on GPUs, or ``gloo``, all on the CPU."""
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

    Args:
        nproc: number of processes. None: one a GPU, but at least two.
        device: a workload's option: ``cpu`` always runs on gloo.
        may_share: the script lets several ranks share a GPU, as bundled workloads do. Other scripts with
            more processes than GPUs run on gloo, and on one GPU they get one process.

    Raises:
        LaunchError: ``cuda`` on a machine without a GPU.
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
    return visible_gpus(_installed_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible_gpus(installed: int, cuda_visible_devices: str | None) -> int:
    """Return how many of the `installed` GPUs CUDA shows under this CUDA_VISIBLE_DEVICES (None: not set).

    As in CUDA, the list ends at the first entry that names no device.
    """
    if cuda_visible_devices is None:
        return installed

    def is_shown(entry: str) -> bool:
        name = entry.strip()
        return int(name) < installed if name.isdigit() else name.startswith(("GPU-", "MIG-"))

    return len(list(itertools.takewhile(is_shown, cuda_visible_devices.split(","))))


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


class Launcher(SupervisedJob):
    """One job: a script with its options, and an agent in each of its ranks. Call ``start`` once."""

    def __init__(
        self,
        script: Path | str,
        options: Sequence[str],
        placement: JobPlacement,
        *,
        agent_options: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.placement = placement
        self._rendezvous = f"demo-{secrets.token_hex(4)}"
        # --: otherwise torchrun takes the script's options for abbreviations of its own: --n, --numa.
        self._of_agent = ("-m", "--", "overlaptop.agent", *agent_options, str(script), *options)

    @property
    def command(self) -> list[str]:
        nproc = f"--nproc-per-node={self.placement.nproc}"
        # Its own rendezvous on a free port, so that any number of jobs can run side by side.
        rendezvous = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", f"--rdzv-id={self._rendezvous}")
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
        _torch_folder()
        self.supervise(self.command, self._environment())

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


def of_workload(workload: Workload, options: Sequence[str], placement: JobPlacement) -> Launcher:
    """Return a launcher for `workload`. Raises OptionsError if the workload would refuse the options."""
    workload.check_on(options, placement.nproc, placement.defaults)
    # As a person would have typed it, since the dashboard shows this name.
    here, path = Path.cwd(), workload.path.resolve()
    script = path.relative_to(here) if path.is_relative_to(here) else path
    # An agent that is found in the current folder does not know the workloads of another copy.
    return Launcher(script, options, placement, agent_options=("--control",))

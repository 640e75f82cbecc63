"""A listening hub and real ranks: scripts run under the agent, whose messages the test reads."""

import contextlib
import functools
import os
import select
import shutil
import socketserver
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partialmethod
from pathlib import Path
from typing import IO, TypeVar

import pytest

from overlaptop.agent.placement import job_key, process_key
from overlaptop.jobs.folder import job_dir
from overlaptop.jobs.sockets import ranks_socket
from overlaptop.wire import codec
from overlaptop.wire.joining import Watch
from overlaptop.wire.messages import Notice, RankInfo, StepDetail, StepTotals
from overlaptop.wire.schema import Message
from tests.agent.commanded import AGENT, PATIENT_S, CommandedJob, Dashboard, socket_directory
from tests.processes import eventually
from tests.warm import Warm, WarmProcess, environment, hold_port, place, text_of

M = TypeVar("M", bound=Message)

RANK_TIMEOUT_S = 200
OTHERS_TIMEOUT_S = 15  # For the other ranks once one has failed: they may wait for it without end

# By kind, what was sent to the hub: a job ends once that is all that its test looks for.
COUNTS_MESSAGES = """
    from collections import Counter
    from overlaptop.agent.reporting.sender import Sender

    sent = Counter()

    def counted(put):
        return lambda sender, message: (put(sender, message), sent.update([type(message).__name__]))

    Sender.put, Sender.put_state = map(counted, (Sender.put, Sender.put_state))
"""


@dataclass
class Finished:
    codes: list[int]
    outs: list[str]
    errs: list[str]
    messages: list[Message] = field(default_factory=list)

    @property
    def logged(self) -> list[str]:
        """The lines of the agent in the job's log. Others may name a path with its name in it."""
        return [line for err in self.errs for line in err.splitlines() if line.startswith("overlaptop:")]

    def of(self, kind: type[M], rank: int = 0) -> list[M]:
        return [m for m in self.messages if isinstance(m, kind) and getattr(m, "rank", None) == rank]

    steps = partialmethod(of, StepTotals)
    details = partialmethod(of, StepDetail)
    notices = partialmethod(of, Notice)

    def info(self, rank: int = 0) -> RankInfo:
        return self.of(RankInfo, rank)[-1]


class ListeningHub(socketserver.ThreadingUnixStreamServer):
    """Stands where a hub would: takes every frame of every rank, asks each for detail."""

    request_queue_size = 64

    def __init__(self, job: str) -> None:
        job_dir(job, create=True)
        self.messages: list[Message] = []
        super().__init__(str(ranks_socket(job)), RankReader)
        threading.Thread(target=self.serve_forever, args=(0.05,)).start()

    def close(self) -> None:
        """All ranks have ended: read what they have sent."""
        eventually(lambda: not select.select([self], [], [], 0)[0])
        self.shutdown()
        self.server_close()  # which waits for the readers
        Path(self.server_address).unlink(missing_ok=True)


class RankReader(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # it said all and has left
            self.request.sendall(codec.frame(codec.encode(Watch(detail=True))))
        frames = codec.FrameReader()
        with contextlib.suppress(ConnectionResetError):
            while data := self.request.recv(1 << 16):
                self.server.messages += map(codec.decode, frames.feed(data))


@pytest.fixture
def sockets() -> Iterator[Path]:
    with socket_directory() as path:
        yield path


@pytest.fixture
def mps() -> Iterator[dict[str, str]]:
    """What has CUDA connect to an MPS daemon: to the one that is there, or to the test's own. One for all
    would not do: a process that is killed there takes what others compute with it.
    """
    from overlaptop.agent.sources.events import under_mps  # with torch

    if under_mps():
        yield {}
        return
    if shutil.which("nvidia-cuda-mps-control") is None or not Path("/dev/nvidiactl").exists():
        pytest.skip("there is no GPU, or MPS is not installed")
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = os.environ | variables
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True)
        yield variables
        subprocess.run(["nvidia-cuda-mps-control"], env=environment, input=b"quit -t 10\n", check=True)


@pytest.fixture
def side_by_side(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of two ranks run at the same time: they have a GPU each, or share one under MPS."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if torch.cuda.device_count() < 2:
        for name, value in request.getfixturevalue("mps").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")


Run = Callable[..., Finished]


@pytest.fixture
def run_ranks(tmp_path: Path, sockets: Path, warm: Warm) -> Run:
    """Runs a script (its text, or where it is) on some ranks, with the agent unless told otherwise."""
    return functools.partial(run_job, warm, tmp_path)


@pytest.fixture(scope="module")
def run_ranks_once(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Iterator[Run]:
    with socket_directory():
        yield functools.partial(run_job, warm, tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory, warm) -> Iterator[CommandedJob]:
    """A job, for tests that leave it as it was."""
    with socket_directory():
        job = CommandedJob(tmp_path_factory.mktemp("shared"), warm=warm)
        yield job
        try:
            assert job.end() == 0, job.log()
        finally:
            job.close()


@pytest.fixture
def start(tmp_path, warm):
    """Starts jobs for one test, in a socket directory of its own. See CommandedJob for the options."""
    jobs = []
    with socket_directory():

        def launch(words=AGENT, **options):
            folder = tmp_path / str(len(jobs))
            folder.mkdir()
            jobs.append(CommandedJob(folder, words, **{"warm": warm, **options}))
            return jobs[-1]

        yield launch
        for job in jobs:
            job.close()


@pytest.fixture
def losses_alone(start):
    def train(job, **options):
        alone = start(words=(), steps=len(job.losses()[0].split()), **options)
        assert alone.process.wait(PATIENT_S) == 0, alone.log()
        return alone.losses()

    return train


@pytest.fixture
def watch():
    made = []

    def make():
        made.append(Dashboard())
        return made[-1]

    yield make
    for each in made:
        each.session.close()


@pytest.fixture
def dashboard(shared, watch) -> Dashboard:
    made = watch()
    made.until_it_trains()
    return made


def wait_for(processes: Sequence[subprocess.Popen[bytes] | WarmProcess]) -> None:
    """Wait until all have ended, or after a failure for a while. Raises AssertionError."""

    def codes() -> list[int | None]:
        return [process.poll() for process in processes]

    eventually(lambda: None not in codes() or any(codes()), RANK_TIMEOUT_S)
    with contextlib.suppress(AssertionError):
        eventually(lambda: None not in codes(), OTHERS_TIMEOUT_S)


def run_job(
    warm: Warm,
    folder: Path,
    script: str | Path,
    *,
    nproc: int = 2,
    agent: bool = True,
    options: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
    listen: bool = True,
    launched: bool = True,
    prefix: tuple[str, ...] = (),
    forked: bool | tuple[int, ...] = False,
) -> Finished:
    """Run one job to its end in this folder, each rank behind the words of ``prefix``.

    With ``launched=False`` nothing in the environment tells a process its rank, as when nobody uses a
    launcher. With ``forked=True`` its processes have torch already: for tests that are not about how a
    process begins or ends. Or those of some ranks do.
    """
    path = script if isinstance(script, Path) else folder / "train.py"
    if isinstance(script, str):
        path.write_text(textwrap.dedent(script))
    held = hold_port()
    port = {"MASTER_PORT": str(held.getsockname()[1])}
    places = [{**environment(), **(place(rank, nproc) | port if launched else {})} for rank in range(nproc)]
    hub = ListeningHub(job_key(places[0])) if listen and launched else None
    words = [*(("-m", "overlaptop.agent", *options) if agent else ()), str(path), *arguments]

    def start(rank: int, out: IO[str], err: IO[str]) -> subprocess.Popen[bytes] | WarmProcess:
        if forked is True or (forked and rank in forked):
            return warm.start(words, places[rank], folder, out.fileno(), err.fileno())
        return subprocess.Popen(
            [*prefix, sys.executable, *words], env=places[rank], cwd=folder, stdout=out, stderr=err
        )

    with held, contextlib.ExitStack() as stack:
        outs, errs = ([stack.enter_context(tempfile.TemporaryFile("w+")) for _ in places] for _ in range(2))
        processes = [start(*each) for each in zip(range(nproc), outs, errs, strict=True)]
        if listen and not launched:
            # The job is named by its pid; its agent looks for a hub after torch's import.
            hub = ListeningHub(process_key(processes[0].pid))
        try:
            wait_for(processes)
        finally:
            for process in processes:
                process.kill()
            codes = [process.wait() for process in processes]
            if hub is not None:
                hub.close()
        messages = hub.messages if hub is not None else []
        return Finished(codes, [*map(text_of, outs)], [*map(text_of, errs)], messages)

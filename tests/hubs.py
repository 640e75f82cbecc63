"""A real hub in a process of its own, ranks that speak to it as the agent does, and viewers."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
from msgspec.structs import replace

from overlaptop.jobs.folder import job_dir
from overlaptop.jobs.hub_command import hub_command
from overlaptop.jobs.hub_socket import LocalHubConnection
from overlaptop.jobs.processes import is_alive
from overlaptop.jobs.record import JobRecord, read_job
from overlaptop.jobs.sockets import ranks_socket
from overlaptop.wire.codec import FrameReader, decode, encode, frame
from overlaptop.wire.commands import Command, CommandOutcome, CommandReport
from overlaptop.wire.joining import Watch
from overlaptop.wire.messages import HubStatus, RankInfo, StepDetail, StepTotals
from overlaptop.wire.schema import Message
from tests.fleet.builders import info, step
from tests.processes import PATIENCE_S, eventually, runs

KEY = "job-1"
LANES_NS = ("compute_ns", "comm_ns", "hidden_ns", "exposed_ns", "compute_only_ns", "idle_ns", "stall_ns")

T = TypeVar("T")
M = TypeVar("M")


class Rank:
    def __init__(self, rank: int = 0, key: str = KEY) -> None:
        self.rank = rank
        of_process = {"pid": os.getpid(), "job": key, "host": "here"}
        self.info = info(rank, exact=False, device="cpu", backend="gloo", source="host", **of_process)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(ranks_socket(key)))
        self._reader = FrameReader()
        self._received: list[Message] = []

    def greet(self) -> "Rank":
        self.send(self.info)
        return self

    def send(self, *messages: Message) -> None:
        self.socket.sendall(b"".join(frame(encode(message)) for message in messages))

    def step(self, number: int) -> StepTotals:
        return step(self.rank, number, start_ns=number * 1000, step_ns=1000, **dict.fromkeys(LANES_NS, 100))

    def detail(self, step: int) -> StepDetail:
        return StepDetail(self.rank, step, step * 1000, 1000, (), (0, 700), (600, 900), (), (), ())

    def listen(self) -> None:
        self.socket.setblocking(False)
        try:
            while data := self.socket.recv(4096):
                self._received += map(decode, self._reader.feed(data))
        except BlockingIOError:
            pass
        finally:
            self.socket.settimeout(PATIENCE_S)

    @property
    def commands(self) -> list[Command]:
        """Those that came and were not given yet, in order."""
        return [message for message in self._received if isinstance(message, Command)]

    def next_command(self) -> Command:
        return self.receive(Command)

    def answer(self, command: Command, state: str = "changed", **changes: object) -> None:
        """Says this of a command: that it was changed at step 7, unless told otherwise."""
        step = 7 if state == "changed" else None
        report = CommandReport(self.rank, command.id, command.name, 1, state, step, "")
        self.send(replace(report, **changes))

    def receive(self, kind: type[M]) -> M:
        """The oldest message of this kind that this has not given yet; those before it are dropped."""
        while True:
            while self._received:
                if isinstance(message := self._received.pop(0), kind):
                    return message
            data = self.socket.recv(4096)
            assert data, "the hub hung up"
            self._received += map(decode, self._reader.feed(data))

    def next_watch(self) -> bool:
        return self.next_wanted().detail

    def next_wanted(self) -> Watch:
        return self.receive(Watch)

    def is_closed_by_hub(self) -> bool:
        """Whether the hub closes this connection; whatever it says before is passed over."""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while self.socket.recv(4096):
                pass
        return True

    def close(self) -> None:
        self.socket.close()


class Receiver:
    """Messages that have come; a subclass's `poll` takes more."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def poll(self) -> None:
        raise NotImplementedError

    def of(self, kind: type[M]) -> list[M]:
        return [message for message in self.messages if isinstance(message, kind)]

    def until(self, probe: Callable[[], T]) -> T:
        return eventually(lambda: self.poll() or probe())

    def receive(self, kind: type[M], where: Callable[[M], bool] = lambda _: True) -> M:
        return self.until(lambda: next(filter(where, self.of(kind)), None))


class Viewer(Receiver):
    """A dashboard without a screen: a hub connection and all that came over it."""

    def __init__(self, key: str = KEY) -> None:
        super().__init__()
        self.hub = LocalHubConnection(eventually(lambda: read_job(key)))

    def poll(self) -> None:
        self.messages += self.hub.poll()

    def ask(self, command: Command) -> Command:
        """Sends it; as the hub has published it."""
        assert self.hub.send(command)
        return self.receive(Command, lambda sent: sent.id == command.id)

    def await_statuses(self, count: int) -> None:
        """Waits until so many more have come: so many of the hub's seconds."""
        before = len(self.of(HubStatus))
        self.until(lambda: len(self.of(HubStatus)) >= before + count)

    def outcome_of(self, command: Command) -> CommandOutcome:
        return self.receive(CommandOutcome, lambda outcome: outcome.command == command.id and outcome.done)

    def await_ranks(self, count: int) -> None:
        """Waits until the hub has let this viewer in, and so many ranks."""
        self.until(lambda: len({info.rank for info in self.of(RankInfo)}) == count)

    def close(self) -> None:
        self.hub.close()


class Hubs:
    """Starts hubs, and sees to it that none outlives its test."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def command(self, key: str = KEY, starter_pid: int | None = None) -> tuple[list[str], dict[str, str]]:
        return hub_command(key, "train.py", 2, starter_pid or os.getpid(), "/some/where")

    def launch(self, *options: str, key: str = KEY, starter_pid: int | None = None) -> None:
        argv, environment = self.command(key, starter_pid)
        subprocess.run([*argv, *options], env=environment, check=True, timeout=PATIENCE_S)

    def start(self, *options: str, key: str = KEY, starter_pid: int | None = None) -> JobRecord:
        self.launch(*options, key=key, starter_pid=starter_pid)
        return self.record(key)

    def record(self, key: str = KEY) -> JobRecord:
        record = eventually(lambda: (record := read_job(key)) and record.hub_alive and record)
        self._seen[record.hub_pid] = record.hub_start_ticks
        return record

    def end_all(self) -> None:
        for folder in Path(os.environ["OVERLAPTOP_DIR"]).iterdir():
            if record := read_job(folder.name):
                self._seen[record.hub_pid] = record.hub_start_ticks
        for pid, start_ticks in self._seen.items():
            if is_alive(pid, start_ticks):
                os.kill(pid, signal.SIGKILL)
        for pid in self._seen:
            eventually(lambda pid=pid: not runs(pid))


@pytest.fixture(autouse=True)
def private_sockets(socket_dir: Path) -> None:
    """No test sees another one's jobs, nor the user's."""


@pytest.fixture
def hubs(socket_dir: Path) -> Iterator[Hubs]:
    hubs = Hubs()
    yield hubs
    hubs.end_all()


def made_and_closed(make: Callable[..., T]) -> Iterator[Callable[..., T]]:
    """For a fixture: makes any number of these, and closes them after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(contextlib.closing(make(*args, **kwargs)))


@pytest.fixture
def make_rank(hubs: Hubs) -> Iterator[Callable[..., Rank]]:
    yield from made_and_closed(Rank)


@pytest.fixture
def make_viewer(hubs: Hubs) -> Iterator[Callable[..., Viewer]]:
    yield from made_and_closed(Viewer)


class Watched(NamedTuple):
    """A hub with rank 0 and a viewer, which knows the rank."""

    record: JobRecord
    rank: Rank
    viewer: Viewer


@pytest.fixture
def watched(hubs: Hubs, make_rank: Callable[..., Rank], make_viewer: Callable[..., Viewer]) -> Watched:
    made = Watched(hubs.start(), make_rank().greet(), make_viewer())
    made.viewer.receive(RankInfo)
    return made


@pytest.fixture
def folder(socket_dir: Path) -> Path:
    return job_dir(KEY)

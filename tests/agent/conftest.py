"""A listening hub and real ranks: scripts run under the agent, whose messages the test reads."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from overlaptop.agent.placement import job_key
from overlaptop.wire import codec, endpoints
from overlaptop.wire.messages import Message, Notice, RankInfo, StepDetail, StepTotals, Watch

RANK_TIMEOUT_S = 100


@dataclass
class Finished:
    """How a job of some ranks ended."""

    codes: list[int]
    outs: list[str]
    errs: list[str]
    messages: list[Message] = field(default_factory=list)

    def steps(self, rank: int = 0) -> list[StepTotals]:
        return [m for m in self.messages if isinstance(m, StepTotals) and m.rank == rank]

    def details(self, rank: int = 0) -> list[StepDetail]:
        return [m for m in self.messages if isinstance(m, StepDetail) and m.rank == rank]

    def notices(self) -> list[Notice]:
        return [m for m in self.messages if isinstance(m, Notice)]

    def info(self, rank: int = 0) -> RankInfo:
        return [m for m in self.messages if isinstance(m, RankInfo) and m.rank == rank][-1]


class ListeningHub:
    """Stands where a hub would: takes every frame of every rank, asks each for detail."""

    def __init__(self, job: str) -> None:
        endpoints.job_dir(job, create=True)
        self.messages: list[Message] = []
        self._path = endpoints.ranks_socket(job)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._path))
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._readers: dict[socket.socket, codec.FrameReader] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        for line in self._readers:
            line.close()
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(timeout=0.05):
                line = key.fileobj
                assert isinstance(line, socket.socket)
                if line is self._listener:
                    self._welcome(line.accept()[0])
                    continue
                try:
                    data = line.recv(1 << 16)
                except ConnectionResetError:
                    data = b""
                if not data:
                    self._selector.unregister(line)
                    continue
                self.messages += map(codec.decode, self._readers[line].feed(data))

    def _welcome(self, line: socket.socket) -> None:
        self._readers[line] = codec.FrameReader()
        self._selector.register(line, selectors.EVENT_READ)
        line.sendall(codec.frame(codec.encode(Watch(detail=True))))


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A socket directory of this test's own, short enough for a unix socket's path."""
    with tempfile.TemporaryDirectory(prefix="ot-") as folder:
        monkeypatch.setenv("OVERLAPTOP_DIR", f"{folder}/s")
        yield Path(folder) / "s"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


Run = Callable[..., Finished]


@pytest.fixture
def run_ranks(tmp_path: Path, sockets: Path) -> Run:
    """Runs a script (its text, or where it is) on some ranks, with the agent unless told otherwise."""

    def run(
        script: str | Path,
        *,
        nproc: int = 2,
        agent: bool = True,
        options: tuple[str, ...] = (),
        arguments: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        listen: bool = True,
    ) -> Finished:
        if isinstance(script, Path):
            path = script
        else:
            path = tmp_path / "train.py"
            path.write_text(textwrap.dedent(script))
        shared = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(nproc),
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }
        hub = ListeningHub(job_key(shared)) if listen else None
        words = [sys.executable, *(("-m", "overlaptop.agent", *options) if agent else ())]
        processes = [
            subprocess.Popen(
                [*words, str(path), *arguments],
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(nproc)
        ]
        try:
            ends = [process.communicate(timeout=RANK_TIMEOUT_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
            if hub is not None:
                hub.close()
        return Finished(
            codes=[process.returncode for process in processes],
            outs=[out for out, _ in ends],
            errs=[err for _, err in ends],
            messages=hub.messages if hub is not None else [],
        )

    return run


def wait_until(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Poll until it holds; fails past the deadline."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)

"""Processes that have torch already: small jobs take a fraction of the time that its import takes.

A server imports what jobs import and forks a process for each request, which then is what a new Python with
the same words would be: it has the environment, the folder and the output that it is given, and runs the
script or the module as its main program. What differs: torch is there before the script's first line,
``/proc/PID/cmdline`` is the server's, and in the end, once Python's exit functions have been called, the
interpreter is not taken apart, which would take longer than most jobs. Tests about one of these start a
process of their own. And the agent is patient, at the job's end and with a job that stands still: on a
machine that does so for a moment it would else end without its last words, or tell of a hang.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import runpy
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from types import ModuleType
from typing import IO

LAUNCHER_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
)
MAX_REQUEST_BYTES = 1 << 17
PR_SET_PDEATHSIG = 1
START_LIMIT_S = 100.0
PATIENT_END_S, PATIENT_HANG_S = 60.0, 1000.0
WORD = struct.Struct("q")
"""What the server answers about a process: its number, and later its exit status."""


class WarmProcess:
    """One process of the server's: what tests use of a subprocess.Popen."""

    def __init__(self, words: list[str], answers: int) -> None:
        """``answers``: where the server's answers about it are read."""
        self.args = words
        self.returncode: int | None = None
        self._answers = answers
        self.pid = self._receive(START_LIMIT_S)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._receive(timeout)
            os.close(self._answers)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended since; the server answers so soon
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _receive(self, limit_s: float | None) -> int:
        if not select.select([self._answers], [], [], limit_s)[0]:
            raise subprocess.TimeoutExpired(self.args, limit_s or 0.0)
        word = os.read(self._answers, WORD.size)
        if not word:
            raise ConnectionError("the server of warm processes has ended")
        return int(WORD.unpack(word)[0])


class Warm:
    """Starts such processes. The server is there from the first one on, until `close`.

    The workers of one test run share a server, which ends when the last of them has closed.
    """

    def __init__(self) -> None:
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
        self._address = f"\0overlaptop-warm-{run}"
        self._connection: socket.socket | None = None

    def start(
        self,
        words: list[str],
        environment: dict[str, str],
        folder: Path,
        out: int,
        err: int,
        machine: int | None = None,
    ) -> WarmProcess:
        """As ``python WORDS...`` in this folder; ``out`` and ``err``: descriptors of open files.

        OMP_NUM_THREADS is 1 whatever the environment says: it was read before.

        ``machine``: a process in whose namespaces it is to be, as if nsenter had started it.
        """
        request = {"words": words, "environment": environment, "folder": str(folder), "machine": machine}
        frame = json.dumps(request).encode()
        try:
            return self._request(words, frame, [out, err])
        except ConnectionError:  # its last other user left just then, and the server ended
            self.close()
            return self._request(words, frame, [out, err])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _request(self, words: list[str], frame: bytes, outputs: list[int]) -> WarmProcess:
        """Raises ConnectionError where there is no server any more."""
        if self._connection is None:
            self._connection = self._find_server()
        answers, answering = os.pipe()
        try:
            socket.send_fds(self._connection, [frame], [*outputs, answering])
        finally:
            os.close(answering)
        return WarmProcess(words, answers)

    def _find_server(self) -> socket.socket:
        """A connection to the server, which is started by whoever binds its address first."""
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with contextlib.suppress(ConnectionRefusedError):
                connection.connect(self._address)
                return connection
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                try:
                    listener.bind(self._address)
                except OSError:  # somebody else has it since
                    connection.close()
                    continue
                listener.listen()
                connection.connect(self._address)  # first: the server goes when it has no client any more
                subprocess.Popen(
                    [sys.executable, __file__, str(listener.fileno())],
                    pass_fds=[listener.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
                return connection


class WarmRanks:
    """The ranks of a job, as torchrun starts and ends them: the first that fails ends the others.

    They are a process to the test, as torchrun is. Of torchrun itself there is nothing: rank 0 has the
    job's store.
    """

    def __init__(
        self, warm: Warm, words: list[str], ranks: int, folder: Path, out: IO[str], err: IO[str]
    ) -> None:
        """``ranks``: 0 is one process that no launcher started."""
        self._port = hold_port()
        port = str(self._port.getsockname()[1])
        shared = environment()
        places = [{**place(rank, ranks), "MASTER_PORT": port} for rank in range(ranks)] or [{}]
        self._processes = [
            warm.start(words, {**shared, **each}, folder, out.fileno(), err.fileno()) for each in places
        ]
        self.returncode: int | None = None
        self._failed = 0

    def poll(self) -> int | None:
        if self.returncode is None:
            codes = [process.poll() for process in self._processes]
            if not self._failed:
                self._failed = next((code for code in codes if code), 0)
                if self._failed:
                    self.terminate()
            if None not in codes:
                self.returncode = self._failed
                self._port.close()
        return self.returncode

    def wait(self, timeout: float) -> int:
        give_up_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > give_up_s:
                raise subprocess.TimeoutExpired(self._processes[0].args, timeout)
            time.sleep(0.005)
        return code

    def terminate(self) -> None:
        for process in self._processes:
            process.terminate()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()


def environment() -> dict[str, str]:
    """The tests' own, less what a launcher of theirs has set."""
    return {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}


def place(rank: int, ranks: int) -> dict[str, str]:
    """What torchrun tells a rank of a job on one node, less the port at which they meet."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
    }


def hold_port() -> socket.socket:
    """Bound to a port that nobody else is given while this is open, and at which rank 0 can listen."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held


def text_of(file: IO[str]) -> str:
    """All that was written to it."""
    file.seek(0)
    return file.read()


def serve(listener: socket.socket) -> tuple[dict, list[int]]:
    """Fork for each request until the last client has gone. Returns in the new processes alone.

    What it returns is the request, and the descriptors to write to.
    """
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, f"{len(threads)} threads: a fork loses all but one"
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        running: dict[int, tuple[int, int, socket.socket]] = {}
        connections: set[socket.socket] = set()
        while True:
            for key, _ in selector.select():
                if key.fd in running:
                    selector.unregister(key.fd)
                    pid, answers, _ = running.pop(key.fd)
                    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                        os.write(answers, WORD.pack(ended))
                    os.close(answers)
                    os.close(key.fd)
                    continue
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is listener:
                    connection = listener.accept()[0]
                    if peer_uid(connection) == os.geteuid():
                        connections.add(connection)
                        selector.register(connection, selectors.EVENT_READ)
                    continue
                request, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 3)
                if not request:
                    for pid, _, whose in running.values():
                        if whose is connection:
                            os.kill(pid, signal.SIGKILL)
                    selector.unregister(connection)
                    connection.close()
                    connections.remove(connection)
                    if not connections:
                        raise SystemExit
                    continue
                *outputs, answers = descriptors
                pid = os.fork()
                if pid == 0:
                    for each in (listener, *connections):
                        each.close()
                    return json.loads(request), outputs
                os.write(answers, WORD.pack(pid))
                for output in outputs:
                    os.close(output)
                descriptor = os.pidfd_open(pid)
                running[descriptor] = pid, answers, connection
                selector.register(descriptor, selectors.EVENT_READ)


def peer_uid(connection: socket.socket) -> int:
    """Whose process is at the other end."""
    told = struct.Struct("3i")  # its pid, uid and gid
    return int(told.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, told.size))[1])


def become(request: dict, outputs: list[int]) -> None:
    """Be the process that was requested, to its end."""
    for target, output in enumerate(outputs, start=1):
        os.dup2(output, target)
    os.closerange(3, 1 << 10)  # what is of the server's
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["machine"] is not None:
        enter(request["machine"])
    os.chdir(request["folder"])
    status = 1
    try:
        run(*request["words"])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - this is the end of the process
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        vars(sys.modules["__main__"]).clear()  # which closes what the script has left open
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def enter(pid: int) -> None:
    """Be in the namespaces of this process. Returns in a new process alone: none can change its own pid.

    The old one ends as the new one does, and the new one with the old one.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    spaces = [
        os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in ("net", "uts", "ipc", "pid", "mnt")
    ]
    for space in spaces:
        if libc.setns(space, 0):
            raise OSError(ctypes.get_errno(), "cannot enter the namespaces")
        os.close(space)
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(status if status >= 0 else 128 - status)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run(first: str, *others: str) -> None:
    """What Python does with these words."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    if first == "-m":
        module, *arguments = others
        sys.argv = ["-m", *arguments]
        sys.path[0] = str(Path.cwd())
        runpy._run_module_as_main(module)
    else:
        sys.argv = [first, *others]
        sys.path[0] = str(Path(first).parent)
        main.__file__ = first
        exec(compile(Path(first).read_bytes(), first, "exec"), vars(main))


if __name__ == "__main__":
    # What DDP, FSDP2, optimizers, Dynamo and the tests' jobs import, some of it in their first step only.
    import torch._dynamo.backends.debugging
    import torch.distributed.fsdp
    import torch.distributed.nn
    import torch.profiler  # noqa: F401

    import overlaptop.agent.agent
    import overlaptop.agent.hang_watch

    overlaptop.agent.agent.EXIT_FLUSH_S = PATIENT_END_S
    overlaptop.agent.hang_watch.HUNG_AFTER_S = PATIENT_HANG_S
    gc.collect()
    gc.freeze()  # else each process would write to, and so copy, all of it
    become(*serve(socket.socket(fileno=int(sys.argv[1]))))

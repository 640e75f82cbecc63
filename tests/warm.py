"""Processes that have torch already: small jobs take a fraction of the time that its import takes.

multiprocessing's forkserver imports what jobs import (preloaded.py) and forks a process for each request,
which runs a script or module as a new Python would. But torch is there before the script's first line,
``/proc/PID/cmdline`` is the server's, and the interpreter is not taken apart in the end. Tests about one of
these start a process of their own.
"""

import atexit
import ctypes
import multiprocessing.process
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import forkserver, reduction, resource_tracker
from pathlib import Path
from types import ModuleType
from typing import IO
from unittest import mock

OF_LAUNCHERS = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"]
PR_SET_PDEATHSIG = 1
MAIN_PROCESS = multiprocessing.process.current_process()
"""In the server: what its processes take themselves for."""


class WarmProcess:
    """One process of the server's: what tests use of a subprocess.Popen."""

    def __init__(self, started: multiprocessing.process.BaseProcess) -> None:
        self._started = started
        self.terminate, self.kill = started.terminate, started.kill

    def poll(self) -> int | None:
        return self._started.exitcode

    def wait(self) -> int:
        self._started.join()
        return self._started.exitcode


class Warm:
    """Starts such processes. Its server has the environment of its beginning, and ends with the tests."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.preloaded"])
        forkserver.ensure_running()

    def start(
        self, words: list[str], environment: dict[str, str], folder: Path, out: int, err: int
    ) -> WarmProcess:
        """As ``python WORDS...`` in this folder; ``out`` and ``err``: descriptors of open files.

        OMP_NUM_THREADS is 1 whatever the environment says: it was read before.
        """
        # In the new process it gets descriptors of its own.
        request = words, environment, folder, reduction.DupFd(out), reduction.DupFd(err)
        started = self._context.Process(target=become, args=request, daemon=True)
        # Without a main module of its own it does not import that of the tests.
        with mock.patch.dict(sys.modules, __main__=ModuleType("__main__")):
            started.start()
        return WarmProcess(started)


class WarmRanks:
    """The ranks of a job, as torchrun starts and ends them: the first that fails ends the others.

    They are a process to the test, as torchrun is. Of torchrun itself there is nothing: rank 0 has the
    job's store.
    """

    def __init__(self, warm, words, ranks, folder, out, err, variables=()) -> None:
        """``ranks``: 0 is one process that no launcher started. ``variables``: more of each process."""
        self._port, self._words = hold_port(), words
        port = str(self._port.getsockname()[1])
        shared = environment()
        places = [{**place(rank, ranks), "MASTER_PORT": port} for rank in range(ranks)] or [{}]
        self._processes = [
            warm.start(words, {**shared, **each, **more}, folder, out.fileno(), err.fileno())
            for each, more in zip(places, variables or [{}] * len(places), strict=True)
        ]
        self.returncode: int | None = None
        self.failed = 0

    def poll(self) -> int | None:
        if self.returncode is None:
            codes = [process.poll() for process in self._processes]
            if not self.failed:
                self.failed = next((code for code in codes if code), 0)
                if self.failed:
                    self.terminate()
            if None not in codes:
                self.returncode = self.failed
                self._port.close()
        return self.returncode

    def wait(self, timeout: float) -> int:
        give_up_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > give_up_s:
                raise subprocess.TimeoutExpired(self._words, timeout)
            time.sleep(0.005)
        return code

    def terminate(self, how: str = "terminate") -> None:
        for process in self._processes:
            getattr(process, how)()

    def kill(self) -> None:
        self.terminate("kill")


def environment() -> dict[str, str]:
    """The tests' own, less what a launcher of theirs has set."""
    return {name: value for name, value in os.environ.items() if name not in OF_LAUNCHERS}


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


def become(words: list[str], variables: dict[str, str], folder: Path, *outputs: object) -> None:
    """Be the process that was requested, to its end."""
    for number, output in enumerate(outputs, 1):
        os.dup2(output.detach(), number)
    os.closerange(3, 1 << 10)  # what is of the server's
    multiprocessing.process._current_process, multiprocessing.process._parent_process = MAIN_PROCESS, None
    multiprocessing.set_start_method(None, force=True)
    forkserver._forkserver.__init__()
    resource_tracker._resource_tracker.__init__()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    status = 1
    try:
        run(*words)
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

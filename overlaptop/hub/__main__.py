"""``python -m overlaptop.hub``: starts the hub of a job on this node, as a daemon.

The called process takes the job's lock, listens, forks and ends: the training process can connect from then
on. libzmq, whose threads a fork would not survive, is imported after it.
"""

import importlib.util
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from overlaptop.hub.log import open_log
from overlaptop.hub.options import HubOptions, parse
from overlaptop.jobs.folder import JobFolderError, job_dir, try_lock
from overlaptop.jobs.record import clean_stale, read_job
from overlaptop.jobs.sockets import fill_standard, ranks_socket

_BACKLOG = 1024
_LOCK_TRIES = 20
_LOCK_PAUSE_S = 0.02


def main(arguments: Sequence[str] | None = None) -> int:
    """Start a hub unless there is one. Returns 0 if a hub runs, or 2 with the reason on stderr."""
    options = parse(arguments)
    fill_standard()
    # A dead job's open socket would keep its peers waiting.
    os.closerange(3, max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1)
    os.umask(0o077)
    try:
        if importlib.util.find_spec("zmq") is None:
            raise JobFolderError(f"pyzmq is not installed for {sys.executable}")
        lock = _lock(options.job)
        if lock is None:
            return 0
        listener = _listen(options.job)
        log = open_log(options.job)
    except (JobFolderError, OSError) as error:
        why = str(error)
        if isinstance(error, OSError):
            why = f"{error.filename or options.job}: {error.strerror}"
        sys.stderr.write(f"overlaptop hub: {why}\n")
        return 2
    if os.fork() == 0:
        _become_daemon(log)
        _work(options, listener, lock)
    return 0


def _lock(job: str) -> int | None:
    """Return the held lock of this job's folder. None if another hub has it."""
    for _ in range(_LOCK_TRIES):
        folder = job_dir(job, create=True)
        try:
            lock = try_lock(folder, create=True)
        except FileNotFoundError:
            lock = None  # the folder was stale and has just been removed
        if lock is not None:
            return lock
        if (record := read_job(job)) is not None and record.hub_alive:
            return None
        # Held by a hub that has just started, or briefly by a process that cleans up.
        time.sleep(_LOCK_PAUSE_S)
    return None


def _listen(job: str) -> socket.socket:
    path = ranks_socket(job)
    for stale in path.parent.glob("*.sock"):
        stale.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    listener.bind(str(path))
    listener.listen(_BACKLOG)
    return listener


def _become_daemon(log: int) -> None:
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for target, source in ((0, null), (1, null), (2, log)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)
    with suppress(ValueError, OSError):
        # If libzmq aborts, nobody needs the core dump.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Until the hub handles signals itself, their default action is right. The job may ignore some.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _work(options: HubOptions, listener: socket.socket, lock: int) -> None:
    status = 1
    try:
        from overlaptop.hub.loop import Hub

        clean_stale()  # folders of jobs that were killed together with their hubs
        Hub(options, listener, lock).run()
        status = 0
    except BaseException:  # noqa: BLE001 - nobody above can report it: the caller already has its status
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())

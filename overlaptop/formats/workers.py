"""Spreads work over processes. Threads would not help, because parsing holds Python's lock.

The processes are forked, and answer through a pipe.
"""

import os
import pickle
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import BinaryIO, TypeVar

MAX_WORKERS = 16
CAN_FORK = sys.platform == "linux"
"""On other systems, fork is missing or breaks system libraries."""

T = TypeVar("T")


class WorkerDiedError(Exception):
    """A process ended without an answer. Most likely the system killed it because memory ran out."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if CAN_FORK else 1


def spread(work: Callable[[int], T], items: int, workers: int) -> Generator[T, None, None]:
    """Yield ``work(0), ..., work(items - 1)`` in order, computed by `workers` forked processes.

    `work` must not raise: errors are part of its result. With one worker, or without fork, it runs in this
    process. Closing the iterator ends all processes.

    Raises:
        WorkerDiedError: the process that had the next item died.
    """
    workers = min(workers, items, MAX_WORKERS)
    if workers < 2 or not CAN_FORK:
        yield from map(work, range(items))
        return
    children: list[tuple[int, BinaryIO]] = []
    """Pid and pipe of each process."""
    try:
        for first in range(workers):
            children.append(_fork(work, range(first, items, workers), children))
        for item in range(items):
            try:
                # From a fork of this process, so it is safe to unpickle.
                yield pickle.load(children[item % workers][1])  # noqa: S301
            except (EOFError, pickle.UnpicklingError) as fault:
                raise WorkerDiedError from fault
    finally:
        for pid, pipe in children:
            pipe.close()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _fork(
    work: Callable[[int], T], items: Sequence[int], before: Sequence[tuple[int, BinaryIO]]
) -> tuple[int, BinaryIO]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, os.fdopen(reader, "rb")
    status = 1
    try:
        # If this process held a sibling's pipe open, the sibling would not notice that its reader died.
        for fd in (reader, *(pipe.fileno() for _, pipe in before)):
            os.close(fd)
        with os.fdopen(writer, "wb") as pipe:
            for item in items:
                pickle.dump(work(item), pipe)
                pipe.flush()
        status = 0
    finally:
        os._exit(status)  # flush and clean up nothing of the parent's twice

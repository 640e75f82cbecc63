"""Work spread over processes: parsing holds Python's lock, so that threads would not help.

The processes are forked, and answer over a pipe.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import BinaryIO, TypeVar

MAX_WORKERS = 16
CAN_FORK = sys.platform == "linux"
"""Elsewhere fork is missing or breaks system libraries."""

T = TypeVar("T")


class WorkerDiedError(Exception):
    """A process ended without an answer; killed, most likely, for want of memory."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if CAN_FORK else 1


def spread(work: Callable[[int], T], items: int, workers: int) -> Generator[T, None, None]:
    """Give ``work(0), ..., work(items - 1)``, in order, computed by so many forked processes.

    `work` must not raise: a fault is part of its answer. With one worker, or where nothing can be forked,
    it is called here. No process is left when the iterator is closed.

    Raises:
        WorkerDiedError: the process that had the next item is gone.
    """
    workers = min(workers, items, MAX_WORKERS)
    if workers < 2 or not CAN_FORK:
        yield from map(work, range(items))
        return
    children: list[tuple[int, BinaryIO]] = []
    """Pid and pipe of each."""
    try:
        for first in range(workers):
            children.append(_fork(work, range(first, items, workers), children))
        for item in range(items):
            try:
                # By a fork of this process, so it may be unpickled.
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
        # Were a sibling's pipe held open here, the sibling would not notice that its reader has gone.
        for fd in (reader, *(pipe.fileno() for _, pipe in before)):
            os.close(fd)
        with os.fdopen(writer, "wb") as pipe:
            for item in items:
                pickle.dump(work(item), pipe)
                pipe.flush()
        status = 0
    finally:
        os._exit(status)  # nothing of the parent's is flushed or cleaned up twice

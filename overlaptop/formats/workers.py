"""Work spread over processes: parsing holds Python's lock, so that threads would not help.

The processes are forked, and answer in bytes over a pipe.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

MAX_WORKERS = 16
CAN_FORK = sys.platform == "linux"
"""Elsewhere fork is missing or breaks system libraries."""
_LENGTH_BYTES = 8


class WorkerDiedError(Exception):
    """A process ended without an answer; killed, most likely, for want of memory."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if CAN_FORK else 1


def spread(work: Callable[[int], bytes], items: int, workers: int) -> Generator[bytes, None, None]:
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
    children: list[_Child] = []
    try:
        for first in range(workers):
            children.append(_fork(work, range(first, items, workers), children))
        for item in range(items):
            yield children[item % workers].answer()
    finally:
        for child in children:
            child.end()


@dataclass(frozen=True, slots=True)
class _Child:
    pid: int
    pipe: BinaryIO

    def answer(self) -> bytes:
        head = self.pipe.read(_LENGTH_BYTES)
        length = int.from_bytes(head, "little")
        answer = self.pipe.read(length)
        if len(head) < _LENGTH_BYTES or len(answer) < length:
            raise WorkerDiedError
        return answer

    def end(self) -> None:
        self.pipe.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _fork(work: Callable[[int], bytes], items: Sequence[int], before: Sequence[_Child]) -> _Child:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return _Child(pid, os.fdopen(reader, "rb"))
    status = 1
    try:
        # Were a sibling's pipe held open here, the sibling would not notice that its reader has gone.
        for fd in (reader, *(child.pipe.fileno() for child in before)):
            os.close(fd)
        with os.fdopen(writer, "wb") as pipe:
            for item in items:
                answer = work(item)
                pipe.write(len(answer).to_bytes(_LENGTH_BYTES, "little") + answer)
                pipe.flush()
        status = 0
    finally:
        os._exit(status)  # nothing of the parent's is flushed or cleaned up twice

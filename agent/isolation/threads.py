"""The agent's own threads, invisible to the job.

They are not in ``threading.enumerate()``, as a script may join all threads, or wait until it is alone. They
receive none of the job's signals: a signal that the job has blocked is for the thread that waits for it.
They end with the interpreter.

Code on them must not call ``threading.current_thread()``, which would list them for good. Logging does, so
they log through `fault_barrier.warn`.
"""

import _signal  # type: ignore[import-not-found]  # signal's own wrappers are Python, and can be interrupted
import _thread
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

from overlaptop.agent.isolation.fault_barrier import warn

R = TypeVar("R")

WAIT_S = 1.0

_SIGNALS = frozenset(signal.valid_signals())
_mask = _signal.pthread_sigmask


def signals_blocked(call: Callable[[], R]) -> R:
    """Call ``call`` with all signals blocked. Threads that it starts inherit the mask."""
    before = _mask(signal.SIG_BLOCK, ())
    try:
        _mask(signal.SIG_BLOCK, _SIGNALS)
        return call()
    finally:
        _mask(signal.SIG_SETMASK, before)  # a single C call: no handler can run in between


class Thread:
    """One thread, started at once."""

    def __init__(self, run: Callable[[], None]) -> None:
        """Raises RuntimeError if no thread can be started."""
        self._run = run
        self._ended = threading.Event()
        self.native_id: int | None = None  # The kernel's thread id, once the thread runs
        signals_blocked(lambda: _thread.start_new_thread(self._main, ()))

    @property
    def is_alive(self) -> bool:
        return not self._ended.is_set()

    def join(self, limit_s: float) -> None:
        self._ended.wait(limit_s)

    def _main(self) -> None:
        try:
            self.native_id = _thread.get_native_id()
            self._run()
        except Exception as fault:  # noqa: BLE001 - the job's threading.excepthook must not see it
            warn(f"a thread of the agent's ended: {type(fault).__name__}: {fault}")
        finally:
            self._ended.set()


def run_uninterrupted(call: Callable[[], None]) -> None:
    """Run ``call`` on a new thread and wait, so that no signal handler interrupts it.

    Handlers run on the main thread only. An exception of a handler is raised at once, and the call goes on.
    """
    thread = Thread(call)
    while thread.is_alive:
        thread.join(WAIT_S)

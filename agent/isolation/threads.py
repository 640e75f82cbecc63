"""The agent's own threads, which the job does not see.

They are not in ``threading.enumerate()``: a script may join all that is there, or wait until it is alone.
They take none of the job's signals: one that the job has blocked is for the thread that waits for it. No
function with which the job traces or profiles all threads is called there. And they end with the
interpreter.

Nothing on them may ask for ``threading.current_thread()``, which would list them for good. Logging does:
they log through `fault_barrier.warn`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal's own wrappers are Python, and can be interrupted
import _thread
import ctypes
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
    """Call ``call`` with all signals blocked: for what starts threads, which inherit that."""
    before = _mask(signal.SIG_BLOCK, ())
    try:
        _mask(signal.SIG_BLOCK, _SIGNALS)
        return call()
    finally:
        _mask(signal.SIG_SETMASK, before)  # one call of C: no handler can come between


class Thread:
    """One thread, started at once."""

    def __init__(self, run: Callable[[], None]) -> None:
        """Raises RuntimeError where no thread is to be had."""
        self._run = run
        self._ended = threading.Event()
        self.native_id: int | None = None
        """The kernel's number of it, as soon as it runs."""
        signals_blocked(lambda: _thread.start_new_thread(self._main, ()))

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return not self._ended.is_set()

    def join(self, limit_s: float) -> None:
        """Wait until it has ended, for `limit_s` at most."""
        self._ended.wait(limit_s)

    def _main(self) -> None:
        try:
            _suspend_tracing()
            self.native_id = _thread.get_native_id()
            self._run()
        except Exception as fault:  # noqa: BLE001 - no hook of the job's is to see it
            warn(f"a thread of the agent's ended: {type(fault).__name__}: {fault}")
        finally:
            self._ended.set()


def _suspend_tracing() -> None:
    """For this thread, until it ends. `threading.settrace_all_threads` (Python 3.12) would reach it."""
    api = ctypes.PyDLL(None)  # of its own: what is set on the functions of ctypes.pythonapi is the job's
    api.PyThreadState_Get.restype = ctypes.c_void_p
    api.PyThreadState_EnterTracing(ctypes.c_void_p(api.PyThreadState_Get()))


def run_uninterrupted(call: Callable[[], None]) -> None:
    """Call ``call`` on a thread of its own and wait: no signal handler leaves it half done.

    Handlers run on the main thread only. What one raises meanwhile is raised at once, and the call goes on.
    """
    thread = Thread(call)
    while thread.is_alive:
        thread.join(WAIT_S)

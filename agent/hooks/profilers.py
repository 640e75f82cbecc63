"""Watches torch.profiler, a temporary user of CUPTI. For permanent ones see sources/cupti/library.py."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from overlaptop.agent.isolation.patching import note_calls, replace


class ProfilerWatch:
    """Knows whether torch.profiler is in use, by the job or by the agent's captures: only one can run."""

    def __init__(self, on_change: Callable[[bool], Any]) -> None:
        """``on_change``: called with True just before torch.profiler takes CUPTI, with False once CUPTI is
        free.
        """
        self._on_change = on_change
        self.running = False  # Whether torch.profiler runs or warms up
        self.job_profiles = False  # Whether it does so for the job itself
        self.yield_to_job: Callable[[], None] | None = None
        """Called before the job's own profiler begins, so that ours ends first."""
        self._our_thread = 0

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Take this thread's use of the profiler in here for ours, not the job's."""
        self._our_thread = threading.get_ident()
        try:
            yield
        finally:
            self._our_thread = 0

    def install(self) -> None:
        """Patch the functions by which torch.autograd.profiler drives Kineto, for good."""
        from torch.autograd import profiler

        replace(profiler, "_prepare_profiler", self._before)
        replace(profiler, "_enable_profiler", self._before)
        note_calls(profiler, "_disable_profiler", lambda *_: self._set_running(False), after=True)

    def _before(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        def watched_begin(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._our_thread:
                if (yield_to_job := self.yield_to_job) is not None:
                    yield_to_job()
                self.job_profiles = True
            self._set_running(True)
            try:
                return begin(*args, **kwargs)
            except BaseException:
                self._set_running(False)
                raise

        return watched_begin

    def _set_running(self, running: bool) -> None:
        self.running = running
        self.job_profiles = self.job_profiles and running
        self._on_change(running)

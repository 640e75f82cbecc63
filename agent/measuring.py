"""Chooses the source that measures steps, installs the hooks it needs, and forwards their calls."""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from overlaptop.agent.hooks.profilers import ProfilerWatch
from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.isolation.threads import run_uninterrupted
from overlaptop.agent.options import AgentOptions

if TYPE_CHECKING:  # torch and numpy come with the job, not before it
    from overlaptop.agent.hooks.collectives import CollectiveHooks
    from overlaptop.agent.sources.base import Edge, Source
    from overlaptop.agent.sources.hooked_source import HookedSource
    from overlaptop.wire.messages import IssuedCall


class Measuring:
    """Owns the source. All methods except `begin` run on the job's threads."""

    def __init__(self, barrier: FaultBarrier, notice: Callable[[str, str], None]) -> None:
        """``notice(level, text)`` is sent to the dashboard."""
        self._barrier = barrier
        self._notice = notice
        self.profilers = ProfilerWatch(barrier.guarded("the profiler hook", self._on_profiler))
        self._hooks: CollectiveHooks | None = None

    def begin(self, options: AgentOptions, follow: Callable[[Callable[[], Any]], None]) -> None:
        """Reset, also in a forked child, which inherits the hooks. ``follow``: `Telemetry.follow`."""
        self.source: Source | None = None
        self._hooked: HookedSource | None = None
        """The source if it needs hooks, else None."""
        self.device = ""
        self.backend = ""
        self._options = options
        self._follow = follow
        self._choosing = threading.RLock()

    def boundary(self, step: int, optimizer: Any) -> None:
        from overlaptop.agent.sources import choice

        if self.source is None or self.source.gave_up:
            if not self._choosing.acquire(blocking=False):
                return  # another thread that ended a step is choosing the source
            try:
                if self.source is None or self.source.gave_up:
                    self.source = self._choose_source(optimizer, instead_of=self.source)
            finally:
                self._choosing.release()
        if not self.backend:
            self.backend = choice.backend_name()
        self.source.boundary(step)

    def edge(self, edge: "Edge") -> None:
        if self.source is not None and self._barrier.active:
            self.source.edge(edge)

    def _choose_source(self, optimizer: Any, instead_of: "Source | None") -> "Source":
        from overlaptop.agent.sources import choice
        from overlaptop.agent.sources.hooked_source import HookedSource
        from overlaptop.agent.sources.kernels import KernelsSource

        source = choice.choose(self._options, optimizer, instead_of)
        self.device = choice.device_name(optimizer)
        self._follow(partial(choice.job_gpu, optimizer))
        if instead_of is not None:
            self._notice("warning", f"{source.name} instead of {instead_of.name}: {instead_of.gave_up}")
        self._hooked = source if isinstance(source, HookedSource) else None
        if self._hooked is not None:
            self._hook_collectives()
        if isinstance(source, KernelsSource) and self.profilers.running:
            source.pause()
        return source

    def _on_profiler(self, running: bool) -> None:
        """torch.profiler is about to take CUPTI, or has released it."""
        from overlaptop.agent.sources.kernels import KernelsSource

        if isinstance(self.source, KernelsSource):
            if running:
                self.source.pause()
            else:
                self.source.resume()

    def _hook_collectives(self) -> None:
        """Hook the dispatcher's collectives and the waits for them, once a source needs them.

        Called between two steps, when no other thread of the job issues any.
        """
        import torch.distributed as dist

        if self._hooks is None and not self._options.phases_only and dist.is_available():
            from overlaptop.agent.hooks.collectives import CollectiveHooks

            self._hooks = CollectiveHooks(self._barrier, lambda: self._hooked)
            run_uninterrupted(self._barrier.guarded("hooking collectives", self._hooks.install))

    @property
    def issued(self) -> int:
        """Collectives seen by the hooks; always 0 without hooks, as with `kernels`."""
        return self._hooks.issued.count if self._hooks is not None else 0

    def settings_changed(self, step: int, *, burst: bool = True) -> None:
        """From ``step`` on, steps may issue other collectives. ``burst``: measure more of them."""
        if self.source is not None:
            self.source.settings_changed(step)
            if burst:
                self.source.schedule.ask()

    def last_calls(self) -> "Mapping[str, tuple[IssuedCall, ...]]":
        """Return the last collectives issued in each group, oldest first. On the agent's thread.

        Call it rarely: without hooks it reads torch's flight recorder.
        """
        from overlaptop.agent.sources.kernels import KernelsSource

        if isinstance(self.source, KernelsSource):
            return self.source.last_calls()
        return self._hooks.last_calls() if self._hooks is not None else {}

"""Runs a command's work at a step boundary after the optimizer's step, not inside it.

torch annotates an optimizer's step for its profiler and calls the hooks inside that annotation. An
annotation that began there would overlap torch's. Trace viewers and the profiler's stack do not support
that, so the work waits for the annotation's end.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from overlaptop.agent.isolation.patching import note_calls

ANNOTATION = "Optimizer.step#"


class AfterOptimizer:
    """Calls back after the current optimizer step has returned, on the calling thread."""

    def __init__(self) -> None:
        self._open: Counter[int] = Counter()
        """By thread: open annotations of optimizer steps, counted since `start`."""
        self._then: Callable[[], None] | None = None
        self._thread = 0
        self._restore: Callable[[], None] | None = None

    def start(self) -> None:
        """Start watching annotations. An optimizer step in progress is not seen: its `with` has already
        looked up the end.
        """
        from torch.autograd.profiler import record_function

        names = ("__enter__", "__exit__")
        originals = [getattr(record_function, name) for name in names]
        note_calls(record_function, names[0], self._on_begin)
        note_calls(record_function, names[1], self._on_end, after=True)
        ours = [getattr(record_function, name) for name in names]

        def restore() -> None:
            if [getattr(record_function, name) for name in names] == ours:
                for name, original in zip(names, originals, strict=True):
                    setattr(record_function, name, original)

        self._restore = restore

    def call(self, then: Callable[[], None]) -> None:
        """Call ``then`` at the end of the current optimizer step; at once outside of a step, or in one that
        began before `start`.
        """
        self._thread = threading.get_ident()
        if self._open[self._thread] > 0:
            self._then = then
        else:
            then()

    def stop(self) -> None:
        self._then = None
        restore, self._restore = self._restore, None
        if restore is not None:
            restore()

    def _on_begin(self, annotation: Any) -> None:
        if annotation.name.startswith(ANNOTATION):
            self._open[threading.get_ident()] += 1

    def _on_end(self, annotation: Any, *_: Any) -> None:
        if not annotation.name.startswith(ANNOTATION):
            return
        thread = threading.get_ident()
        self._open[thread] -= 1
        if thread == self._thread and self._open[thread] <= 0:
            then, self._then = self._then, None
            if then is not None:  # another thread may call `stop` at any moment
                then()

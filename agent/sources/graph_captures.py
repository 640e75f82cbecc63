"""Knows whether a CUDA graph is being captured, and can delay the start of a capture.

During a capture no thread may query a CUDA event: the capture would fail.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch

from overlaptop.agent.isolation.patching import note_calls, replace


def captures_a_graph() -> bool:
    """Whether a graph is being captured on the current stream."""
    # The query could create a context in a job that uses no GPU.
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class GraphCaptureWatch:
    """Patches torch's CUDA graphs to see captures."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: WeakSet[Any] = WeakSet()

    def install(self) -> None:
        replace(torch.cuda.CUDAGraph, "capture_begin", self._beginning)
        note_calls(
            torch.cuda.CUDAGraph,
            "capture_end",
            lambda graph, *_: self._under_way.discard(graph),
            after=True,
        )

    @contextmanager
    def held_off(self) -> Iterator[bool]:
        """Yield whether no capture is in progress. Until this ends, none begins, so keep it short."""
        with self._lock:
            yield not self._under_way

    def _beginning(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._under_way.add(graph)
            try:
                return begin(graph, *args, **kwargs)
            except BaseException:
                self._under_way.discard(graph)
                raise

        return capture_begin

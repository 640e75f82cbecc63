"""Brackets waits for communication in Python code: on works, futures, events, DDP buffers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.isolation.patching import replace
from overlaptop.agent.sources.base import Wait
from overlaptop.agent.sources.hooked_source import HookedSource


class WaitHooks:
    """Patches the functions that Python code waits with. collectives.py brackets waits inside C++."""

    def __init__(self, barrier: FaultBarrier, source: Callable[[], HookedSource | None]) -> None:
        """``source()`` is called each time; it returns None before the first step boundary."""
        self._source = source
        self.begin = barrier.guarded("the wait hook, before", self._before)
        """``begin(stream)``: a token for `end`; None if the wait is not measured."""
        self.end = barrier.guarded("the wait hook, after", self._after)

    def install(self) -> None:
        # Python's wait for a Work calls only this method.
        replace(dist.Work, "wait", self._bracketed_method)
        # The class of a Work's future, and the base of torch.futures.Future, whose wait() calls it.
        replace(torch._C.Future, "wait", self._bracketed_method)  # noqa: SLF001
        replace(torch.cuda.Event, "wait", self._bracketed_on_stream)  # Stream.wait_event calls it, too
        # DDP's broadcast of buffers waits in C++ and copies.
        replace(dist, "_broadcast_coalesced", partial(self._bracketed, Wait.MIXED))

    def _bracketed(self, wait: Wait, call: Callable[..., Any]) -> Callable[..., Any]:
        begin, end = self.begin, self.end

        def bracketed(*args: Any, **kwargs: Any) -> Any:
            token = begin(None)
            try:
                return call(*args, **kwargs)
            finally:
                if token is not None:
                    end(token, wait)

        return bracketed

    def _bracketed_method(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Replace a Work's wait.

        If a Work's class is written in Python, pybind11 calls the ``wait`` that Python finds, unless it is
        the caller: a function named ``wait`` whose first argument is the Work. With another name, the
        original would call its replacement in an endless loop.
        """
        begin, end = self.begin, self.end

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            token = begin(None)
            try:
                return call(work, *args, **kwargs)
            finally:
                if token is not None:
                    end(token, Wait.PURE, work)

        vars(wait)["_torchdynamo_disable"] = True  # a wait ends a compiled graph anyway
        return wait

    def _bracketed_on_stream(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        begin, end = self.begin, self.end

        def bracketed_wait(event: Any, stream: Any = None) -> None:
            token = begin(stream)
            try:
                wait(event, stream)
            finally:
                if token is not None:
                    end(token, Wait.PURE)

        return bracketed_wait

    def _before(self, stream: Any) -> Any:
        source = self._source()
        token = source.wait_begin(stream) if source is not None else None
        return None if token is None else (source, token)

    def _after(self, token: tuple[HookedSource, Any], wait: Wait, work: Any = None) -> None:
        source, began = token
        source.wait_end(began, wait, work)


def is_traced(tensor: torch.Tensor) -> bool:
    """Whether a compiler traces with this tensor, so that nothing really runs."""
    return tensor.is_meta or isinstance(tensor, FakeTensor)

"""torch.profiler, another user of CUPTI, which comes and goes. Those that stay: cupti/holders.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.profiler

from overlaptop.agent.isolation.patching import replace


class KinetoWatch:
    """Calls `pause` just before torch.profiler takes CUPTI and `resume` after it has released it."""

    def __init__(self, pause: Callable[[], Any], resume: Callable[[], Any]) -> None:
        self._pause = pause
        self._resume = resume
        self.running = False
        """Whether torch.profiler is at work, or warms up."""

    def install(self) -> None:
        """Patch the functions by which torch.autograd.profiler drives Kineto, for good."""
        replace(torch.autograd.profiler, "_prepare_profiler", self._before)
        replace(torch.autograd.profiler, "_enable_profiler", self._before)
        replace(torch.autograd.profiler, "_disable_profiler", self._after)

    def _before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def paused(*args: Any, **kwargs: Any) -> Any:
            self.running = True
            self._pause()
            try:
                return call(*args, **kwargs)
            except BaseException:
                self._end()
                raise

        return paused

    def _after(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def resumed(*args: Any, **kwargs: Any) -> Any:
            try:
                return call(*args, **kwargs)
            finally:
                self._end()

        return resumed

    def _end(self) -> None:
        self.running = False
        self._resume()

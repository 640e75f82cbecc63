"""Watches torch.profiler, a temporary user of CUPTI. For permanent ones see cupti/holders.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.profiler

from overlaptop.agent.isolation.patching import note_calls, replace


class KinetoWatch:
    """Calls `on_change`: True just before torch.profiler takes CUPTI, False once CUPTI is free."""

    def __init__(self, on_change: Callable[[bool], Any]) -> None:
        self._on_change = on_change
        self.running = False
        """Whether torch.profiler runs or warms up."""

    def install(self) -> None:
        """Patch the functions by which torch.autograd.profiler drives Kineto, for good."""
        replace(torch.autograd.profiler, "_prepare_profiler", self._before)
        replace(torch.autograd.profiler, "_enable_profiler", self._before)
        note_calls(
            torch.autograd.profiler, "_disable_profiler", lambda *_: self._set_running(False), after=True
        )

    def _before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def paused(*args: Any, **kwargs: Any) -> Any:
            self._set_running(True)
            try:
                return call(*args, **kwargs)
            except BaseException:
                self._set_running(False)
                raise

        return paused

    def _set_running(self, running: bool) -> None:
        self.running = running
        self._on_change(running)

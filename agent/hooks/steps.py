"""Finds steps and phases without a change to the script: optimizers, backward, GradScaler.

A step runs from the end of one optimizer step to the end of the next. If an iteration has several
optimizers, one is the anchor that marks the boundary: the last one of the first iteration.

In a job without any torch.optim.Optimizer, each `torch.profiler.profile.step` ends a step, or else each
backward pass: all ranks make equally many. A DataLoader's batches are no such sign: an evaluation may
have a different number on each rank, and steps are compared by number.
"""

import gc
import sys
import weakref
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.isolation.patching import (
    note_calls,
    own_handle_numbers,
    replace,
    transparent,
    uncompiled,
)
from overlaptop.agent.sources.base import Edge

PROFILER_SIGN = "a step is one of torch.profiler's"
BACKWARD_SIGN = (
    "no torch.optim.Optimizer: a step is a backward pass; overlaptop.agent.step() marks your own"
)
LEAST_PASSES = 8  # Backward passes without an optimizer that make a training loop, not a single test run
OPTIMIZER_FILE = register_optimizer_step_pre_hook.__code__.co_filename


class StepHooks:
    """Calls ``boundary()`` once per iteration and ``edge(...)`` where its phases begin and end."""

    def __init__(
        self, barrier: FaultBarrier, boundary: Callable[[Any], None], edge: Callable[[Edge], None]
    ) -> None:
        """``boundary(optimizer)`` gets the optimizer that ends the step; None if the script ends it."""
        self._boundary = boundary
        self._edge = edge
        self._by_hand = False
        self._anchor: weakref.ref[Any] | None = None
        self._anchor_settled = False
        # By id: an optimizer may be unhashable, or equal to another.
        self._seen: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._since_anchor: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._depth = 0
        self._backward_depth = 0
        self._stepped = 0
        self._optimizer_exists = False
        self._backward_passes = 0
        self.sign = ""  # What ends a step, in words, if neither an optimizer nor the script does
        guarded, at_boundaries = barrier.guarded, partial(barrier.guarded, at_boundaries=True)
        self._before_optimizer = at_boundaries("the optimizer hook, before", self._on_optimizer_begin)
        self._after_optimizer = at_boundaries("the optimizer hook, after", self._on_optimizer_end)
        self._before_backward = guarded("the backward hook, before", self._on_backward_begin)
        self._after_backward = at_boundaries("the backward hook, after", self._on_backward_end)
        self._skipped = at_boundaries("the GradScaler hook", self._on_skipped)
        self._profiler_stepped = at_boundaries("the profiler's step hook", self._on_profiler_step)
        self._optimizer_made = guarded("the hook of new optimizers", self._on_optimizer_made)
        self.end_step = at_boundaries("overlaptop.agent.step", self._on_mark)
        """End a step here; from then on optimizers no longer end steps."""
        # A compiled function breaks its graph at this call.
        vars(self.end_step)["_torchdynamo_disable"] = True

    def install(self) -> None:
        # While a compiler traces a step the hooks fold to nothing, so they break no graph.
        def before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not torch.compiler.is_compiling():
                self._before_optimizer(optimizer)

        def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not torch.compiler.is_compiling():
                self._after_optimizer(optimizer)

        # Run their caller uncompiled, too: traced, it would omit them. The step itself is compiled.
        transparent(torch.optim.Optimizer.profile_hook_step(before_step))
        with own_handle_numbers():
            register_optimizer_step_pre_hook(uncompiled(before_step))
            register_optimizer_step_post_hook(uncompiled(after_step))
        self._patch_backward()
        self._patch_grad_scaler()
        # Each optimizer calls it once, when it is created or unpickled.
        note_calls(torch.optim.Optimizer, "_patch_step_function", lambda *_: self._optimizer_made())
        note_calls(torch.profiler.profile, "step", lambda *_: self._profiler_stepped(), after=True)

    def _patch_backward(self) -> None:
        """`Tensor.backward` calls `torch.autograd.backward`, so one patch covers both."""

        def marked(backward: Callable[..., Any]) -> Callable[..., Any]:
            def marked_backward(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling():
                    return backward(*args, **kwargs)
                self._before_backward()
                try:
                    return backward(*args, **kwargs)
                finally:
                    self._after_backward()

            return marked_backward

        replace(torch.autograd, "backward", marked)

    def _patch_grad_scaler(self) -> None:
        """If a GradScaler finds an inf, it skips the optimizer's step and so the hooks."""

        def marked(step: Callable[..., Any]) -> Callable[..., Any]:
            def marked_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                stepped = self._stepped
                out = step(scaler, optimizer, *args, **kwargs)
                if self._stepped == stepped:
                    self._skipped(optimizer)
                return out

            return marked_step

        replace(torch.amp.GradScaler, "step", marked)

    def _on_optimizer_made(self) -> None:
        self._optimizer_exists = True

    def _on_profiler_step(self) -> None:
        if self._is_without_optimizer():
            self.sign = PROFILER_SIGN
            self._boundary(None)

    def _is_without_optimizer(self) -> bool:
        """Whether other signs end steps. Optimizers from before the hooks count, too."""
        if self._by_hand or self._optimizer_exists or self._seen:
            return False
        if not self.sign and any(
            issubclass(type(each), torch.optim.Optimizer) for each in gc.get_objects()
        ):
            self._optimizer_exists = True
        return not self._optimizer_exists

    def _on_optimizer_begin(self, optimizer: Any) -> None:
        if self._depth:  # nested in another step, or left over from a step that raised
            self._depth = _enclosing_steps()
        self._depth += 1
        if self._depth > 1:
            return  # a wrapper's inner optimizer (ZeRO), or a subclass that calls super().step()
        if id(optimizer) in self._seen:
            self._anchor_settled = True
        self._edge(Edge.OPTIMIZER_BEGIN)

    def _on_optimizer_end(self, optimizer: Any) -> None:
        self._stepped += 1
        self._depth = max(0, self._depth - 1)
        if self._depth:
            return
        self._edge(Edge.OPTIMIZER_END)
        self._consider_boundary(optimizer)

    def _on_skipped(self, optimizer: Any) -> None:
        self._edge(Edge.OPTIMIZER_BEGIN)
        self._edge(Edge.OPTIMIZER_END)
        if id(optimizer) in self._seen:
            self._anchor_settled = True
        self._consider_boundary(optimizer)

    def _consider_boundary(self, optimizer: Any) -> None:
        if self._by_hand:
            return
        anchor = self._anchor() if self._anchor is not None else None
        if optimizer is not anchor:
            gone = anchor is None
            first_iteration = not self._anchor_settled and id(optimizer) not in self._seen
            # The anchor no longer steps: this optimizer stepped twice without it.
            overtaken = self._anchor_settled and id(optimizer) in self._since_anchor
            if gone or first_iteration or overtaken:
                self._anchor = weakref.ref(optimizer)
                anchor = optimizer
        self._seen[id(optimizer)] = optimizer
        self._since_anchor[id(optimizer)] = optimizer
        if optimizer is anchor:
            self._since_anchor.clear()
            self._boundary(optimizer)

    def _on_backward_begin(self) -> None:
        if self._backward_depth and torch._C._current_graph_task_id() == -1:  # noqa: SLF001
            self._backward_depth = 0  # left over from a backward that a signal handler interrupted
        self._backward_depth += 1
        if self._backward_depth == 1:
            self._edge(Edge.BACKWARD_BEGIN)

    def _on_backward_end(self) -> None:
        self._backward_depth = max(0, self._backward_depth - 1)
        if self._backward_depth:
            return
        self._edge(Edge.BACKWARD_END)
        self._backward_passes += 1
        if (
            self._backward_passes >= LEAST_PASSES
            and self.sign != PROFILER_SIGN
            and self._is_without_optimizer()
        ):
            self.sign = BACKWARD_SIGN
            self._boundary(None)

    def _on_mark(self) -> None:
        self._by_hand, self.sign = True, ""
        self._boundary(None)


def _enclosing_steps() -> int:
    """Count the optimizer steps that enclose the current one, by the frames on the stack."""
    steps = 0
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - inspect itself uses it
    while frame is not None:
        code = frame.f_code
        steps += code.co_name == "wrapper" and code.co_filename == OPTIMIZER_FILE
        frame = frame.f_back
    return steps - 1

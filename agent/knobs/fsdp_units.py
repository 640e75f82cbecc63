"""Tracks the job's FSDP2 units by weak references, and learns their order of execution.

A unit is the set of parameters that one call of fully_shard() shards and gathers as a whole. torch keeps a
state for each unit. It holds, for each pass, the list of the units whose weights it prefetches.
"""

import sys
import weakref
from collections.abc import Callable
from typing import Any

from overlaptop.agent.hooks.process_groups import why_uncounted
from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.isolation.patching import note_calls, transparent
from overlaptop.agent.script.importing import when_imported

STATE_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_state"
WATCHED = {"forward": "_root_pre_forward", "backward": "_register_pre_backward_hook"}
"""Methods that torch calls on a unit's state at the beginning and end of its forward pass. They show the
order of forward, and of backward, which runs in reverse. torch looks them up at each call, so they can be
patched for a while. Hooks on modules would disturb compiled code."""

Unit = weakref.ref[Any]


class FsdpUnits:
    """The units of this process. Noted on the job's threads, read on any."""

    def __init__(self, barrier: FaultBarrier) -> None:
        self._barrier = barrier
        self._noted: list[Unit] = []
        self._stop_learning: Callable[[], None] | None = None
        self._seen: dict[Any, None] = {}

    def install(self) -> None:
        """Note each unit from now on, once the script has imported FSDP2. Lasts until the process ends."""
        when_imported(STATE_MODULE, self._barrier.guarded("hooking FSDP2", self._install))

    def alive(self) -> list[Any]:
        """Return the states of existing units.

        Do not keep them: they keep the model alive. A dropped model exists until Python collects it, at a
        different time on each rank.
        """
        return [state for unit in tuple(self._noted) if (state := unit()) is not None and is_unit(state)]

    def group(self) -> Any:
        """Return the process group that shards the first unit; None: nothing is sharded."""
        for unit in tuple(self._noted):
            for group in param_groups(unit()):
                shards = getattr(getattr(group, "mesh_info", None), "shard_process_group", None)
                if shards is not None:
                    return shards
        return None

    def objection(self) -> str:
        """Why the prefetch of this job's units cannot be changed; empty: it can."""
        states = self.alive()
        if not states:
            return "the job has made no FSDP2 module since the agent was there"
        if missing := _missing(states[0]):
            import torch

            return f"this torch ({torch.__version__}) has no {missing}"
        compiler = sys.modules.get("torch._dynamo.config")
        if compiler is not None and not getattr(compiler, "skip_fsdp_hooks", True):
            return "FSDP2's hooks are compiled (skip_fsdp_hooks is off), and compiled code keeps its order"
        if (group := self.group()) is None:
            return "its FSDP2 modules shard nothing"
        return why_uncounted(group)

    def learn(self, which: str) -> None:
        """Record the order of units in a pass, until `learned`. On the training thread."""
        self.forget()
        owner, name, seen = sys.modules[STATE_MODULE].FSDPState, WATCHED[which], self._seen
        original = getattr(owner, name)

        def watched_call(state: Any, *args: Any, **kwargs: Any) -> Any:
            out = original(state, *args, **kwargs)
            seen.setdefault(state)
            return out

        setattr(owner, name, transparent(watched_call))
        self._stop_learning = lambda: setattr(owner, name, original)

    def learned(self) -> list[tuple[Unit, ...]]:
        """Return the units that ran since `learn`, by model, and stop recording.

        They are in the order of their first calls of WATCHED. No unit prefetches another model's units.
        """
        seen = self._seen
        self.forget()
        models: dict[int, list[Unit]] = {}
        for state in filter(is_unit, seen):
            shared = getattr(state, "_state_ctx", state)  # by all units of one model, once it has run
            models.setdefault(id(shared), []).append(weakref.ref(state))
        return list(map(tuple, models.values()))

    def forget(self) -> None:
        stop = self._stop_learning
        self._stop_learning, self._seen = None, {}
        if stop is not None:
            stop()

    def _install(self) -> None:
        owner = sys.modules[STATE_MODULE].FSDPState
        note_calls(owner, "init", self._barrier.guarded("noting an FSDP2 module", self._note), after=True)

    def _note(self, state: Any, *_: Any) -> None:
        self._noted.append(weakref.ref(state))


def is_unit(state: Any) -> bool:
    """Whether the prefetch of modules with this state can be chosen; not so for `replicate`."""
    modules: Any = getattr(state, "_modules", None)
    return bool(modules) and hasattr(modules[0], "set_modules_to_forward_prefetch")


def param_groups(state: Any) -> Any:
    """Return a unit's parameter groups, none if the unit is gone; older torch had at most one."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is not None:
        return groups
    group = getattr(state, "_fsdp_param_group", None)
    return [] if group is None else [group]


def weight_bytes(state: Any) -> int:
    total = 0
    for group in param_groups(state):
        for parameter in group.fsdp_params:
            dtype = getattr(parameter, "param_dtype", None) or parameter.sharded_param.dtype
            total += parameter._orig_size.numel() * dtype.itemsize  # noqa: SLF001 - there is no public way
    return total


def _missing(state: Any) -> str:
    lists = [f"_states_to_{which}_prefetch" for which in WATCHED]
    for name in (*lists, "_state_ctx", *WATCHED.values()):
        if not hasattr(state, name):
            return f"FSDPState.{name}"
    return ""

"""Knows the job's FSDP2 units without keeping them alive, and learns in which order they run.

A unit is what one call of fully_shard() shards and gathers as a whole. torch keeps one state for each, and
in it, for either pass, the list of the units whose weights it prefetches.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from overlaptop.agent.control.two_phase_commit import Position
from overlaptop.agent.hooks.process_groups import SequenceNumbers, why_uncounted
from overlaptop.agent.isolation.compiling import transparent, uncompiled
from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.isolation.patching import note_calls, own_handle_numbers
from overlaptop.agent.script.importing import when_imported

STATE_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_state"
WATCHED = {"forward": "_root_pre_forward", "backward": "_register_pre_backward_hook"}
"""What torch calls on each unit's state when its forward pass begins and ends, by the pass whose order it
tells: backward's is the other way round. torch looks them up with every call: they can be watched for a
while. Hooks on modules would disturb compiled code."""

TRAINED_STEPS = 16
"""A model no parameter of which was updated in so many steps is one that the script has dropped, or that
is not trained."""

Unit = weakref.ref[Any]
"""Of a unit's FSDPState."""


class FsdpUnits:
    """The units of this process. Noted on the job's threads, read on any."""

    def __init__(self, barrier: FaultBarrier) -> None:
        self._barrier = barrier
        self._noted: list[Unit] = []
        self._sequence_numbers = SequenceNumbers()
        self._step = 0
        self._optimizers: dict[int, tuple[weakref.ref[Any], int]] = {}
        """By identity: those that have stepped, and in which step last."""
        self._stop_learning: Callable[[], None] | None = None
        self._seen: dict[Any, None] = {}
        """While it learns: the states that came by, in order."""

    def install(self) -> None:
        """Note each unit from now on, once the script has imported FSDP2. Stays for good."""
        when_imported(STATE_MODULE, self._barrier.guarded("hooking FSDP2", self._install))

    def alive(self) -> list[Any]:
        """The states of the units that there are, without those of models that are no longer trained while
        another one is. Not to be kept.

        A model that the script has dropped is there until Python collects it, on each rank at another time.
        """
        there = [state for unit in tuple(self._noted) if (state := unit()) is not None and is_unit(state)]
        models = {id(_model_of(state)) for state in there}
        if len(models) < 2:
            return there
        updated = self._updated()
        trained = {id(_model_of(state)) for state in there if _weights(state) & updated}
        return [state for state in there if id(_model_of(state)) in trained] or there

    def note_step(self, step: int) -> None:
        """A step begins; on the training thread. Remembers this rank's position."""
        self._step = step
        if self._noted and (group := self._group()) is not None:
            self._sequence_numbers.note(step, group)

    def position(self, step: int, words: str) -> Position:
        """The rank's position when ``step`` began; ``words``: more that must be alike on all ranks.

        Raises LookupError where it is not known.
        """
        name = str(getattr(self._group(), "group_name", ""))
        return Position(name, f"{self._sequence_numbers.at(step)} with {words}")

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
        if (group := self._group()) is None:
            return "its FSDP2 modules shard nothing"
        return why_uncounted(group)

    def learn(self, which: str) -> None:
        """Watch from now on in which order units run in a pass. On the training thread, until `learned`."""
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
        """The units that ran since `learn`, by model: no unit asks for another model's. Watches no longer.

        In the order of their first calls of WATCHED.
        """
        seen = self._seen
        self.forget()
        models: dict[int, list[Unit]] = {}
        for state in filter(is_unit, seen):
            models.setdefault(id(_model_of(state)), []).append(weakref.ref(state))
        return list(map(tuple, models.values()))

    def forget(self) -> None:
        """Watch no longer."""
        stop = self._stop_learning
        self._stop_learning, self._seen = None, {}
        if stop is not None:
            stop()

    def _install(self) -> None:
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        owner = sys.modules[STATE_MODULE].FSDPState
        note_calls(owner, "init", self._barrier.guarded("noting an FSDP2 module", self._note), after=True)
        note_optimizer = self._barrier.guarded("noting an optimizer", self._note_optimizer)

        def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if self._noted and not torch.compiler.is_compiling():
                note_optimizer(optimizer)

        with own_handle_numbers():
            register_optimizer_step_post_hook(uncompiled(after_step))

    def _updated(self) -> set[int]:
        """Identities of the parameters that optimizers have updated lately."""
        recent = [
            optimizer
            for noted, step in list(self._optimizers.values())
            if self._step - step <= TRAINED_STEPS and (optimizer := noted()) is not None
        ]
        groups = [group for optimizer in recent for group in optimizer.param_groups]
        return {id(parameter) for group in groups for parameter in group["params"]}

    def _note(self, state: Any, *_: Any) -> None:
        self._noted.append(weakref.ref(state))

    def _note_optimizer(self, optimizer: Any) -> None:
        if id(optimizer) not in self._optimizers:
            known = self._optimizers.items()
            self._optimizers = {key: seen for key, seen in known if seen[0]() is not None}
        self._optimizers[id(optimizer)] = weakref.ref(optimizer), self._step

    def _group(self) -> Any:
        """The process group of the first unit that gathers anything; None: there is none."""
        for unit in tuple(self._noted):
            for group in param_groups(unit()):
                shards = getattr(getattr(group, "mesh_info", None), "shard_process_group", None)
                if shards is not None:
                    return shards
        return None


def is_unit(state: Any) -> bool:
    """Whether modules with this state let their prefetch be chosen; those of `replicate` do not."""
    modules: Any = getattr(state, "_modules", None)
    return bool(modules) and hasattr(modules[0], "set_modules_to_forward_prefetch")


def param_groups(state: Any) -> Any:
    """The groups of parameters that a unit gathers, none where it is gone; older torch had one at most."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is not None:
        return groups
    group = getattr(state, "_fsdp_param_group", None)
    return [] if group is None else [group]


def _model_of(state: Any) -> Any:
    """What torch lets all units of one model share, from its first forward pass on."""
    return getattr(state, "_state_ctx", state)


def _weights(state: Any) -> set[int]:
    """Identities of the parameters that a unit shards."""
    groups = param_groups(state)
    return {id(parameter.sharded_param) for group in groups for parameter in group.fsdp_params}


def weight_bytes(state: Any) -> int:
    """What a unit's weights take while they are gathered."""
    total = 0
    for group in param_groups(state):
        for parameter in group.fsdp_params:
            dtype = getattr(parameter, "param_dtype", None) or parameter.sharded_param.dtype
            total += parameter._orig_size.numel() * dtype.itemsize  # noqa: SLF001 - there is no public way
    return total


def _missing(state: Any) -> str:
    """The first thing that is needed of torch's FSDP2 and is not there; empty: all is."""
    lists = [f"_states_to_{which}_prefetch" for which in WATCHED]
    for name in (*lists, "_state_ctx", *WATCHED.values()):
        if not hasattr(state, name):
            return f"FSDPState.{name}"
    return ""

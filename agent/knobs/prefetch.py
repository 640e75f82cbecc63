"""Changes how far ahead FSDP2 gathers weights while the job trains.

A unit is the set of parameters that one call of fully_shard() shards and gathers as a whole. torch keeps a
state for each unit, which is tracked by weak reference. It holds, for each pass, the list of the units that
it prefetches. Depth 2 means the next two units in execution order. The order is learned in the agreed step.
The lists are set at the following boundary, alike on all ranks, so that all keep the same order of gathers.
Depth 0 means empty lists: FSDP2's default. The script's own lists are recognized and can be restored.
"""

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from overlaptop.agent.control.action import KnobProvider, SettingAction
from overlaptop.agent.control.two_phase_commit import Position
from overlaptop.agent.hooks.process_groups import why_uncounted
from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.isolation.patching import note_calls, transparent, when_imported
from overlaptop.wire.knobs import PREFETCH, Knob

MOST_DEPTH = 16  # A greater depth hides nothing more and takes more memory
OWN_WAY = {"forward": "none ahead", "backward": "one ahead"}  # FSDP2's default
OWN_LISTS = "own lists"  # Shown if the script's lists match no depth

STATE_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_state"
WATCHED = {"forward": "_root_pre_forward", "backward": "_register_pre_backward_hook"}
"""Methods that torch calls on a unit's state at the beginning and end of its forward pass. They show the
order of forward, and of backward, which runs in reverse. torch looks them up at each call, so they can be
patched for a while. Hooks on modules would disturb compiled code."""

Unit = weakref.ref[Any]


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


_NEEDS = *(f"_states_to_{name}_prefetch" for name in WATCHED), "_state_ctx", *WATCHED.values()
"""Attributes of FSDPState that are used here."""

Lists = Mapping[Unit, tuple[Unit, ...]]


class _Applied(NamedTuple):
    depth: int
    original: Lists


Snapshot = tuple[Lists, _Applied | None]


class _WithGradients(list[Any]):
    """A forward prefetch list that is empty in passes without gradients.

    Such a pass may run only some units, and no backward pass follows that discards unused prefetched
    weights. After an optimizer step the next pass would find them and train with outdated weights.
    """

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        import torch

        return super().__iter__() if torch.is_grad_enabled() else iter(())


class PrefetchPass:
    """Prefetching in one of the two passes. Lists are set on the training thread only."""

    def __init__(self, knobs: "PrefetchKnobs", name: str) -> None:
        self.name = name
        self.knob = PREFETCH[name]
        self._knobs = knobs
        self._applied: _Applied | None = None

    @property
    def depth(self) -> int | None:
        """The present depth; None if the lists match none."""
        applied = self._applied  # the training thread may change it
        return applied.depth if applied is not None else depth_of(self._present())

    @property
    def original(self) -> int | None:
        """The depth that the script had set; None as for `depth`."""
        return depth_of(self._original())

    def apply(self, depth: int, order: Sequence[Sequence[Unit]]) -> None:
        """Set the lists of a depth. ``order``: from `PrefetchKnobs.learned` for this pass."""
        ahead: dict[Unit, tuple[Unit, ...]] = {}
        for units in order:
            behind: list[Unit] = []  # units that gather anything, the next one first
            for unit in reversed(units) if self.name == "forward" else units:
                ahead[unit] = tuple(behind[:depth])
                if param_groups(unit()):
                    behind.insert(0, unit)
        lists = {unit: ahead.get(unit, ()) for unit in map(weakref.ref, self._knobs.alive())}
        self.put_back((lists, _Applied(depth, self._original())))

    def restore(self) -> None:
        self.put_back((self._original(), None))

    def snapshot(self) -> Snapshot:
        return self._present(), self._applied

    def put_back(self, snapshot: Snapshot) -> None:
        """Make all lists before setting the first: a fault then changes none."""
        lists, applied = snapshot
        made = []
        for unit, asks in lists.items():
            state = unit()
            if state is not None:
                targets = [target._modules[0] for each in asks if (target := each()) is not None]  # noqa: SLF001
                made.append((state._modules[0], targets))  # noqa: SLF001 - there is no public way
        for module, targets in made:
            getattr(module, f"set_modules_to_{self.name}_prefetch")(targets)
        if applied is not None and self.name == "forward":
            for state in self._knobs.alive():
                state._states_to_forward_prefetch = _WithGradients(state._states_to_forward_prefetch)  # noqa: SLF001
        self._applied = applied

    def facts(self, most: int) -> Knob:
        depth = self.depth
        return Knob(
            self.knob, depth, describe(depth), describe(self.original), 0, most, unit="units",
            owner="FSDP2",
            about=f"how many units ahead weights are gathered in {self.name} (0: as FSDP2 does by itself, "
            f"{OWN_WAY[self.name]}); each takes the memory of a unit's whole weights more",
            code=f"for at, unit in enumerate(units, 1): unit.set_modules_to_{self.name}_prefetch("
            f"units[at : at + {{value}}])  # units: in the order of their {self.name}",
        )  # fmt: skip

    def _present(self) -> Lists:
        name = f"_states_to_{self.name}_prefetch"
        return {
            # A slice contains all units, even if the list is a `_WithGradients`.
            weakref.ref(state): tuple(map(weakref.ref, getattr(state, name)[:]))
            for state in self._knobs.alive()
        }

    def _original(self) -> Lists:
        present, applied = self._present(), self._applied
        return present if applied is None else {**present, **applied.original}


class PrefetchAction(SettingAction):
    """One rank's part in changing one pass's depth."""

    def __init__(
        self, knobs: "PrefetchKnobs", knob: str, depth: int | None, back_to: Snapshot | None = None
    ) -> None:
        """``depth``: None for the script's own lists. ``back_to``: restore this snapshot instead."""
        self._knobs = knobs
        self._pass = knobs.passes[knob]
        self._depth = depth
        self._back_to = back_to
        self._before: Snapshot | None = None
        self._learns = False
        self._was = ""

    def refusal(self) -> str:
        return self._knobs.objection() or self._lacks_memory()

    def position(self, step: int) -> Position:
        """All ranks must act between the same two gathers, with the same lists before."""
        before = describe(self._pass.depth)
        words = f"{self._pass.knob} {before} over {len(self._knobs.alive())} units"
        return self._knobs.position(step, words)

    def boundary(self, step: int) -> bool:
        """Learn the order of units in the agreed step, set the lists after it, and skip one more step.

        Raises RuntimeError if no unit has run, on all ranks alike.
        """
        if self.outcome.text:
            return False
        if self._learns:
            order = self._knobs.learned()
            if not order:
                raise RuntimeError("none of its FSDP2 modules made a forward pass")
            assert self._depth is not None, "the script's own lists need no order"
            self._pass.apply(self._depth, order)
        elif not self._set_known_lists():
            self._knobs.learn(self._pass.name)
            self._learns = True
            return True
        self.changes(self._pass.knob, self._was, describe(self._pass.depth), step)
        return True

    def _set_known_lists(self) -> bool:
        """Set lists that need no order, if the wanted ones are such lists."""
        self._before, self._was = self._pass.snapshot(), describe(self._pass.depth)
        if self._back_to is not None:
            self._pass.put_back(self._back_to)
        elif self._depth is None or self._depth == self._pass.original:
            self._pass.restore()
        else:
            return self._depth == self._pass.depth
        return True

    def undoing(self) -> "PrefetchAction":
        return PrefetchAction(self._knobs, self._pass.knob, None, back_to=self._before)

    def abandon(self) -> None:
        """Stop learning. Lists that are set stay, as on the other ranks."""
        self._knobs.forget()

    def _lacks_memory(self) -> str:
        import torch

        present = self._pass.depth or 0
        states = self._knobs.alive()
        if self._depth is None or self._depth <= present or not torch.cuda.is_initialized():
            return ""
        device = getattr(states[0], "_device", None)
        if device is None or device.type != "cuda":
            return ""
        # Count the largest units: the model decides which are gathered together.
        needed = sum(sorted(map(weight_bytes, states), reverse=True)[: self._depth - present])
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)
        if needed <= free:
            return ""
        return (
            f"{self._pass.knob} {self._depth} would take {needed / 1e9:.1f} GB more on its GPU, "
            f"where {max(0, free) / 1e9:.1f} GB are free"
        )


class PrefetchKnobs(KnobProvider):
    """The knobs of both passes, and the units of this process: noted on the job's threads, read on any."""

    def __init__(self, barrier: FaultBarrier) -> None:
        super().__init__()
        self._barrier = barrier
        self.passes = {PREFETCH[name]: PrefetchPass(self, name) for name in PREFETCH}
        self._noted: list[Unit] = []
        self._stop_learning: Callable[[], None] | None = None
        self._seen: dict[Any, None] = {}

    def install(self) -> None:
        """Note each unit from now on, once the script has imported FSDP2. Lasts until the process ends."""
        when_imported(STATE_MODULE, self._barrier.guarded("hooking FSDP2", self._install))

    def knobs(self) -> Sequence[Knob]:
        states = self.alive()
        if not states:
            return ()
        if refusal := self.objection():
            return tuple(Knob(name, None, "", "", 0, 1, refusal=refusal) for name in self.passes)
        most = max(1, min(MOST_DEPTH, len(states) - 1))
        return tuple(each.facts(most) for each in self.passes.values())

    def action(self, knob: str, value: int | None) -> PrefetchAction:
        return PrefetchAction(self, knob, value)

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
        try:
            attrgetter(*_NEEDS)(states[0])
        except AttributeError as fault:  # another torch
            return f"its FSDP2 modules are not as expected: {fault}"
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


def describe(depth: int | None) -> str:
    """Return the depth as text: ``2``; for None, that the lists are the script's own."""
    return OWN_LISTS if depth is None else str(depth)


def depth_of(lists: Lists) -> int | None:
    """Return the depth of these lists, for any execution order of units; None if they match no depth.

    The first of a unit's list is the next unit, so the lists define the order. They match a depth if each
    unit lists that many next units, fewer only at a chain's end.
    """
    asks = {id(unit()): [id(each()) for each in targets] for unit, targets in lists.items()}
    depth = max(map(len, asks.values()), default=0)
    if depth == 0:
        return 0
    follows = {unit: targets[0] for unit, targets in asks.items() if targets}
    for unit, targets in asks.items():
        expected: list[int] = []
        at = unit
        while len(expected) < depth and at in follows:
            at = follows[at]
            expected.append(at)
        if targets != expected:
            return None
    gathers = {id(unit()) for unit in lists if param_groups(unit())}
    return depth if gathers <= follows.keys() | set(follows.values()) else None

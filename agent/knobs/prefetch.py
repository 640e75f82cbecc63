"""Changes how far ahead FSDP2 gathers weights while the job trains.

Each unit has, for either pass, a list of the units that it prefetches when it is reached. A depth of 2
means: the next two in the order in which they run. That order is learned in the agreed step; the lists are
set at the boundary behind it, on all ranks alike, so that all go on to gather in the same order. Depth 0 is
empty lists: FSDP2's own way. The script's own lists are recognized, and can be restored.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from overlaptop.agent.control.action import SettingAction
from overlaptop.agent.control.two_phase_commit import Position
from overlaptop.agent.knobs.fsdp_units import FsdpUnits, Unit, param_groups, weight_bytes
from overlaptop.wire.knobs import PREFETCH, Knob

MOST_DEPTH = 16
"""Further ahead there is nothing more to hide, only memory to take."""
OWN_WAY = {"forward": "none ahead", "backward": "one ahead"}
"""What FSDP2 does by itself."""
OWN_LISTS = "own lists"
"""For a person: the script's lists are not those of any depth."""

Lists = Mapping[Unit, tuple[Unit, ...]]
"""Of each unit: those that it asks for."""


class _Applied(NamedTuple):
    """The lists that the agent has set."""

    depth: int
    lists: Lists
    original: Lists
    """What the script had."""


Snapshot = tuple[Lists, _Applied | None]
"""Of a pass."""


class _WithGradients(list[Any]):
    """A list of units to ask for in forward, empty in a pass without gradients.

    Such a pass may run some of the units only, and no backward pass behind it takes back what was asked for
    in vain. After an optimizer's step the next pass would find it there, and train with weights of before.
    """

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        import torch

        return super().__iter__() if torch.is_grad_enabled() else iter(())


class PrefetchPass:
    """Prefetching in one of the two passes. Lists are set on the training thread only."""

    def __init__(self, units: FsdpUnits, name: str) -> None:
        """``name``: ``forward`` or ``backward``."""
        self.name = name
        self.knob = PREFETCH[name]
        self.units = units
        self._applied: _Applied | None = None

    @property
    def depth(self) -> int | None:
        """The present one; None where the lists are not those of any depth."""
        return self._depth_of(self._present())

    @property
    def original(self) -> int | None:
        """The depth that the script had set; None as for `depth`."""
        return self._depth_of(self._original())

    def apply(self, depth: int, order: Sequence[Sequence[Unit]]) -> None:
        """Set the lists of a depth; ``order``: as `FsdpUnits.learned` gives it for this pass."""
        ahead: dict[Unit, tuple[Unit, ...]] = {}
        for units in order:
            behind: list[Unit] = []  # those that gather anything, the next one first
            for unit in reversed(units) if self.name == "forward" else units:
                ahead[unit] = tuple(behind[:depth])
                if param_groups(unit()):
                    behind.insert(0, unit)
        lists = {unit: ahead.get(unit, ()) for unit in map(weakref.ref, self.units.alive())}
        original = self._original()
        self._set(lists)
        self._for_gradients_only()
        self._applied = _Applied(depth, lists, original)

    def restore(self) -> None:
        """Set the lists that the script itself had set."""
        self._set(self._original())
        self._applied = None

    def snapshot(self) -> Snapshot:
        """All that `put_back` needs to make it what it is now."""
        return self._present(), self._applied

    def put_back(self, snapshot: Snapshot) -> None:
        """Set the lists of a snapshot."""
        lists, self._applied = snapshot
        self._set(lists)
        if self._applied is not None:
            self._for_gradients_only()

    def facts(self, most: int) -> Knob:
        """What is sent to a dashboard."""
        depth = self.depth
        return Knob(
            self.knob,
            depth,
            in_words(depth),
            in_words(self.original),
            0,
            most,
            unit="units",
            owner="FSDP2",
            about=f"how many units ahead weights are gathered in {self.name} (0: as FSDP2 does by itself, "
            f"{OWN_WAY[self.name]}); each takes the memory of a unit's whole weights more",
            code=f"for at, unit in enumerate(units, 1): unit.set_modules_to_{self.name}_prefetch("
            f"units[at : at + {{value}}])  # units: in the order of their {self.name}",
        )

    def _present(self) -> Lists:
        name = f"_states_to_{self.name}_prefetch"
        return {
            # A slice has all of them, also of those that are for passes with gradients only.
            weakref.ref(state): tuple(map(weakref.ref, getattr(state, name)[:]))
            for state in self.units.alive()
        }

    def _original(self) -> Lists:
        """The script's own lists: the present ones, but for those that the agent has set."""
        present = self._present()
        applied = self._still_applied(present)
        return present if applied is None else {**present, **applied.original}

    def _still_applied(self, lists: Lists) -> _Applied | None:
        """What the agent has set, unless the script has set others since."""
        applied = self._applied
        if applied is None:
            return None
        # Units of a model that is not trained just now are not among these: they say nothing.
        present = (unit for unit in applied.lists if unit in lists)
        return applied if all(lists[unit] == applied.lists[unit] for unit in present) else None

    def _depth_of(self, lists: Lists) -> int | None:
        if (applied := self._still_applied(lists)) is not None:
            return applied.depth
        return chain_depth([(unit(), [each() for each in asks]) for unit, asks in lists.items()])

    def _for_gradients_only(self) -> None:
        """See `_WithGradients`: the agent's own lists are all such."""
        if self.name == "forward":
            for state in self.units.alive():
                state._states_to_forward_prefetch = _WithGradients(state._states_to_forward_prefetch)  # noqa: SLF001

    def _set(self, lists: Lists) -> None:
        """All lists are made before the first is set, so that a fault leaves them as they were."""
        made = []
        for unit, asks in lists.items():
            state = unit()
            if state is not None:
                targets = [target._modules[0] for each in asks if (target := each()) is not None]  # noqa: SLF001
                made.append((state._modules[0], targets))  # noqa: SLF001 - there is no public way
        for module, targets in made:
            getattr(module, f"set_modules_to_{self.name}_prefetch")(targets)


class PrefetchAction(SettingAction):
    """One rank's part in giving one pass another depth."""

    def __init__(self, changed: PrefetchPass, depth: int | None, back_to: Snapshot | None = None) -> None:
        """``depth``: None for what the script itself had set. ``back_to``: go back to this instead."""
        self._pass = changed
        self._depth = depth
        self._back_to = back_to
        self._before: Snapshot | None = None
        """What was in force before this action."""
        self._learns = False
        self._was = ""

    def refusal(self) -> str:
        """Why the depth cannot be changed, or not so far."""
        return self._pass.units.objection() or self._lacks_memory()

    def position(self, step: int) -> Position:
        """All have to act between the same two gathers, with the same lists before."""
        before = in_words(self._pass.depth)
        return self._pass.units.position(
            step, f"{self._pass.knob} {before} over {len(self._pass.units.alive())} units"
        )

    def boundary(self, step: int) -> bool:
        """Learn the order of units in the agreed step, set the lists behind it, leave out one step more.

        Raises RuntimeError where no unit has run, alike on all ranks.
        """
        if self.outcome.text:
            return False
        if self._learns:
            order = self._pass.units.learned()
            if not order:
                raise RuntimeError("none of its FSDP2 modules made a forward pass")
            assert self._depth is not None, "the script's own lists need no order"
            self._pass.apply(self._depth, order)
            self._done(step)
            return True
        self._before, self._was = self._pass.snapshot(), in_words(self._pass.depth)
        if self._back_to is not None:
            self._pass.put_back(self._back_to)
            self._done(step)
            return True
        if self._depth is not None and self._depth == self._pass.depth:
            self._done(step)
            return False
        if self._depth is None or self._depth == self._pass.original:
            self._pass.restore()
            self._done(step)
            return True
        self._pass.units.learn(self._pass.name)
        self._learns = True
        return True

    def undoing(self) -> PrefetchAction:
        """See `SettingAction`."""
        return PrefetchAction(self._pass, None, back_to=self._before)

    def abandon(self) -> None:
        """Watch no longer. Lists that are set stay, as on the other ranks."""
        self._pass.units.forget()

    def _done(self, step: int) -> None:
        self.changes(self._pass.knob, self._was, in_words(self._pass.depth), step)

    def _lacks_memory(self) -> str:
        """Why this rank's GPU lacks the memory for it, by the peak so far; empty: it does not."""
        import torch

        present = self._pass.depth or 0
        states = self._pass.units.alive()
        if self._depth is None or self._depth <= present or not torch.cuda.is_initialized():
            return ""
        device = getattr(states[0], "_device", None)
        if device is None or device.type != "cuda":
            return ""
        # The largest ones are those that count: which ones meet depends on the model.
        needed = sum(sorted(map(weight_bytes, states), reverse=True)[: self._depth - present])
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)
        if needed <= free:
            return ""
        return (
            f"{self._pass.knob} {self._depth} would take {needed / 1e9:.1f} GB more on its GPU, "
            f"where {max(0, free) / 1e9:.1f} GB are free"
        )


class PrefetchKnobs:
    """Both passes' knobs. See registry.KnobProvider."""

    def __init__(self, units: FsdpUnits) -> None:
        self._units = units
        self._passes = {PREFETCH[name]: PrefetchPass(units, name) for name in PREFETCH}

    def knobs(self) -> Sequence[Knob]:
        """Both, where the job has any units."""
        states = self._units.alive()
        if not states:
            return ()
        if refusal := self._units.objection():
            return tuple(Knob(name, None, "", "", 0, 1, refusal=refusal) for name in self._passes)
        most = max(1, min(MOST_DEPTH, len(states) - 1))
        return tuple(each.facts(most) for each in self._passes.values())

    def action(self, knob: str, value: int | None) -> PrefetchAction:
        """What gives a pass this depth; None: the script's own."""
        return PrefetchAction(self._passes[knob], value)

    def note_step(self, step: int) -> None:
        """See registry.KnobProvider."""
        self._units.note_step(step)


def in_words(depth: int | None) -> str:
    """``2``; of lists that are those of no depth, that they are the script's own."""
    return OWN_LISTS if depth is None else str(depth)


def chain_depth(lists: Sequence[tuple[Any, Sequence[Any]]]) -> int | None:
    """The depth that lists are those of, whatever the order in which units run; None: of no depth.

    ``lists``: of each unit, the units that it asks for. A list's first is the next unit, so the lists
    themselves tell the order: it is a depth if each has the next so many, fewer at a chain's end only.
    """
    asks = {id(unit): [id(each) for each in targets] for unit, targets in lists}
    depth = max(map(len, asks.values()), default=0)
    if depth == 0:
        return 0
    follows = {unit: targets[0] for unit, targets in asks.items() if targets}
    chained = follows.keys() | set(follows.values())
    for unit, targets in asks.items():
        expected: list[int] = []
        at = unit
        while len(expected) < depth and at in follows:
            at = follows[at]
            expected.append(at)
        if targets != expected:
            return None
    gathers = {id(unit) for unit, _ in lists if param_groups(unit)}
    return depth if gathers <= chained else None

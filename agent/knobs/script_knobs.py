"""Knobs that a script declares and reads wherever it needs their values.

    accumulation = overlaptop.agent.knob("accumulation", 4, choices=(1, 2, 4, 8))
    ...
    for micro_step in range(accumulation.value):

Without the agent, and until another value is set, a knob has its default.
"""

import threading
from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import replace

from overlaptop.agent.control.action import KnobProvider, SettingAction
from overlaptop.agent.control.two_phase_commit import ANY_POSITION, Position
from overlaptop.agent.hooks.process_groups import group_of_all, why_uncounted
from overlaptop.wire.knobs import MAX_CHOICES, TORCH_KNOBS, Knob, KnobName, KnobValue

MAX_DECLARED = 32
ShortText = Annotated[str, Meta(max_length=200)]


class _Declaration(Struct):
    name: KnobName
    default: KnobValue
    choices: Annotated[tuple[KnobValue, ...], Meta(min_length=1, max_length=MAX_CHOICES)] | None
    least: KnobValue | None
    most: KnobValue | None
    unit: ShortText
    about: ShortText
    changes_work: bool


class ScriptKnob:
    """A setting that can be changed while the job runs. Its value changes only between two steps, in the
    same step on all ranks.
    """

    __slots__ = ("_value", "declared", "default")

    def __init__(self, declared: Knob, default: int) -> None:
        """``declared``: the knob as sent to a dashboard, with the default as its value."""
        self.declared = declared
        self.default = self._value = default

    @property
    def value(self) -> int:
        return self._value

    def __index__(self) -> int:
        return self._value

    def __repr__(self) -> str:
        return f"<knob {self.declared.name}: {self._value}>"


class ScriptKnobs(KnobProvider):
    """All knobs of this process's script. Declared and read on its threads, described on any."""

    def __init__(self) -> None:
        super().__init__()
        self._declared: dict[str, ScriptKnob] = {}
        self._lock = threading.Lock()

    def declare(
        self,
        name: str,
        default: int,
        *,
        choices: Sequence[int] | None = None,
        least: int | None = None,
        most: int | None = None,
        unit: str = "",
        about: str = "",
        changes_work: bool = False,
    ) -> ScriptKnob:
        """Declare a setting that can be changed from a dashboard while the job runs.

        Scripts call it `overlaptop.agent.knob`. Read the knob's ``value`` (or ``int(knob)``) wherever it is
        needed: it changes only between two steps, in the same step on all ranks. Without an agent, and
        until it is changed, the value is the default. Declare it alike on all ranks. Declaring it again in
        the same way returns the same knob.

        Args:
            name: letters, digits and ``_``; commands use it.
            default: the script's own value, an integer.
            choices: the allowed values, in the order a dashboard steps through them.
            least: the smallest allowed value, without choices.
            most: the largest allowed value, without choices.
            unit: unit of the values, if any: ``tokens``.
            about: what it does, in one line.
            changes_work: the value changes the work of a step (more batches, a longer sequence). Dashboards
                then call no value faster than another.

        Raises:
            ValueError: an argument is of the wrong type or out of bounds, or the name is taken.
        """
        given = {
            "name": name, "default": default, "choices": None if choices is None else tuple(choices),
            "least": least, "most": most, "unit": unit, "about": about, "changes_work": changes_work,
        }  # fmt: skip
        try:
            convert(given, _Declaration)
        except ValidationError as fault:
            raise ValueError(f"knob {str(name)[:64]}: {fault}") from None
        if name in TORCH_KNOBS:
            raise ValueError(f"{name} is the name of a knob that is there already: choose another one")
        least, most, choices = _allowed(name, choices, least, most)
        allowed = f"choices={choices}" if choices else f"least={least}, most={most}"
        declared = Knob(
            name, default, str(default), str(default), least, most, choices, unit=unit,
            owner="the script", about=about, changes_work=changes_work,
            code=f'overlaptop.agent.knob("{name}", {{value}}, {allowed})',
        )  # fmt: skip
        if why := declared.fault(default):
            raise ValueError(f"its default is not allowed: {why}")
        with self._lock:
            knob = self._declared.get(name)
            if knob is None:
                if len(self._declared) == MAX_DECLARED:
                    raise ValueError(f"a script can declare no more than {MAX_DECLARED} knobs")
                knob = ScriptKnob(declared, default)
                self._declared = {**self._declared, name: knob}  # readers keep the old dict
            elif knob.declared != declared:
                raise ValueError(f"knob {name} was declared before in another way")
            return knob

    def knobs(self) -> tuple[Knob, ...]:
        declared = self._declared
        refusal = self.refusal() if declared else ""
        return tuple(
            replace(knob.declared, value=knob.value, value_text=str(knob.value), refusal=refusal)
            for knob in declared.values()
        )

    def refusal(self) -> str:
        group = group_of_all()
        return why_uncounted(group) if group is not None and group.size() > 1 else ""

    def action(self, knob: str, value: int | None) -> "ScriptKnobAction":
        turned = self._declared[knob]
        return ScriptKnobAction(self, turned, turned.default if value is None else value)

    def group(self) -> Any:
        return group_of_all() if self._declared else None


class ScriptKnobAction(SettingAction):
    """One rank's part in changing a script's knob."""

    def __init__(self, knobs: ScriptKnobs, knob: ScriptKnob, value: int) -> None:
        self._knobs = knobs
        self._knob = knob
        self._value = value
        self._before: int | None = None

    def refusal(self) -> str:
        return self._knobs.refusal()

    def position(self, step: int) -> Position:
        """All ranks must act at the same position: the number of collectives may depend on the value."""
        if self._knobs.group() is None:
            return ANY_POSITION  # there are no other ranks
        return self._knobs.position(step, f"{self._knob.declared.name} {self._knob.value}")

    def boundary(self, step: int) -> bool:
        if self._before is None:
            self._before = self._knob.value
        self.changes(self._knob.declared.name, str(self._before), str(self._value), step)
        self._knob._value = self._value  # noqa: SLF001 - only here
        return False

    def undoing(self) -> "ScriptKnobAction":
        assert self._before is not None, "asked once it has acted"
        return ScriptKnobAction(self._knobs, self._knob, self._before)


DECLARED = ScriptKnobs()  # The knobs of this process: a script declares them with or without an agent


def _allowed(
    name: str, choices: Sequence[int] | None, least: int | None, most: int | None
) -> tuple[int, int, tuple[int, ...]]:
    if choices is not None:
        if least is not None or most is not None:
            raise ValueError(f"knob {name}: give choices, or least and most, not both")
        if len(set(choices)) < len(choices):
            raise ValueError(f"knob {name}: one of its choices is there twice")
        return min(choices), max(choices), tuple(choices)
    if least is None or most is None:
        raise ValueError(f"knob {name}: give its choices, or least and most")
    if least > most:
        raise ValueError(f"knob {name}: least ({least}) is more than most ({most})")
    return least, most, ()

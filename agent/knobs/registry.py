"""The knobs of this process: settings of its job that can be changed while it runs.

Each kind of knob has a provider: DDP's buckets, FSDP2's prefetch, the script's own. A provider lists its
knobs and makes the actions that change them. Nothing else here depends on the kind.
"""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from overlaptop.agent.control.action import Action, SettingAction
from overlaptop.agent.control.knob_trial import KnobTrial
from overlaptop.agent.isolation.fault_barrier import warn
from overlaptop.wire import commands
from overlaptop.wire.codec import WireError
from overlaptop.wire.commands import Command
from overlaptop.wire.knobs import MAX_KNOBS, GradientFacts, Knob, KnobFacts

if TYPE_CHECKING:
    from overlaptop.agent.reporting.sender import Sender

LOOK_S = 2.0
"""Seconds between two checks for values that changed without a command."""


class KnobProvider(Protocol):
    """One kind of knob."""

    def knobs(self) -> Sequence[Knob]:
        """Return the present knobs with their values. On the agent's thread."""

    def action(self, knob: str, value: int | None) -> SettingAction:
        """Return the action that sets a value on this rank; None: the script's value."""

    def note_step(self, step: int) -> None:
        """Remember this rank's position, if needed, as a step begins. On the training thread."""


class Knobs:
    """All knobs of this process."""

    def __init__(self, gradients: Callable[[int], GradientFacts | None], *providers: KnobProvider) -> None:
        """``gradients(rank)``: those of the job's DDP model; None without exactly one model."""
        self._gradients = gradients
        self._providers = providers
        self._had_any = False
        self._look_at_s = 0.0

    def note_step(self, step: int) -> None:
        for provider in self._providers:
            provider.note_step(step)

    def change(self, command: Command) -> Action:
        """Return the action for a command that sets, restores or tries a knob.

        Raises ValueError with one line if this rank has no such knob, or refuses the value.
        """
        for provider in self._providers:
            for knob in provider.knobs():
                if knob.name == command.knob:
                    if command.name == commands.RESTORE:
                        return provider.action(knob.name, None)
                    value = commands.argument(command, "value")
                    # The bounds of a knob that refuses may be meaningless.
                    if why := knob.refusal or knob.fault(value):
                        raise ValueError(why)
                    setting = provider.action(knob.name, value)
                    if command.name == commands.TRIAL:
                        return KnobTrial(setting, commands.argument(command, "steps"))
                    return setting
        there_is = ", ".join(knob.name for knob in self._known()) or "none"
        raise ValueError(f"there is no knob {command.knob}; there is: {there_is}")

    def refresh(self) -> None:
        """Check the values at the next round, as a command changed one. On any thread."""
        self._look_at_s = 0.0

    def serve(self, sender: "Sender", rank: int) -> None:
        """Send changed knobs to the hub. Called in each round of the agent's thread."""
        now_s = monotonic()
        if sender.connections == 0 or now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_S
        facts = KnobFacts(rank, self._known())
        self._had_any = self._had_any or bool(facts.knobs)
        for each in (facts if self._had_any else None, self._gradients(rank)):
            if each is not None:
                try:
                    sender.put_state(each)
                except WireError as fault:
                    warn(f"no {type(each).__name__}: {fault}")

    def _known(self) -> tuple[Knob, ...]:
        return tuple(knob for provider in self._providers for knob in provider.knobs())[:MAX_KNOBS]

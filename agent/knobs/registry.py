"""The knobs of this process: what of its job can be changed while it runs.

Each kind of knob has a provider: DDP's buckets, FSDP2's prefetch, what the script declares. A provider
says what there is, and makes the action that changes it; nothing else here knows one kind from another.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from overlaptop.agent.control.action import Action
from overlaptop.agent.isolation.fault_barrier import warn
from overlaptop.wire import commands
from overlaptop.wire.codec import WireError
from overlaptop.wire.commands import Command
from overlaptop.wire.knobs import MAX_KNOBS, GradientFacts, Knob, KnobFacts

if TYPE_CHECKING:
    from overlaptop.agent.reporting.sender import Sender

LOOK_S = 2.0
"""From one look at what may have changed by itself to the next."""


class KnobProvider(Protocol):
    """One kind of knob."""

    @property
    def changes(self) -> int:
        """Goes up when there may be a knob more; cheap, and read all the time."""

    def knobs(self) -> Sequence[Knob]:
        """What there is now, with present values. On the agent's thread."""

    def action(self, knob: str, value: int | None) -> Action:
        """What gives one of them a value on this rank; None: the one that the script gave."""

    def note_step(self, step: int) -> None:
        """A step begins: remember this rank's position, if it matters. On the training thread."""


class Knobs:
    """All knobs of this process."""

    def __init__(self, *providers: KnobProvider) -> None:
        self._providers = providers

    @property
    def changes(self) -> int:
        """Goes up when there may be a knob more."""
        return sum(provider.changes for provider in self._providers)

    def known(self) -> tuple[Knob, ...]:
        """What can be changed, and what refuses to be. On the agent's thread."""
        return tuple(knob for provider in self._providers for knob in provider.knobs())[:MAX_KNOBS]

    def change(self, command: Command) -> Action:
        """The action for a command that sets or restores a knob.

        Raises ValueError with one line where this rank has no such knob, or not for this value.
        """
        for provider in self._providers:
            for knob in provider.knobs():
                if knob.name == command.knob:
                    if command.name == commands.RESTORE:
                        return provider.action(knob.name, None)
                    value = commands.argument(command, "value")
                    # Of one that refuses, the bounds may say nothing.
                    if why := knob.refusal or knob.fault(value):
                        raise ValueError(why)
                    return provider.action(knob.name, value)
        there_is = ", ".join(knob.name for knob in self.known()) or "none"
        raise ValueError(f"there is no knob {command.knob}; there is: {there_is}")

    def note_step(self, step: int) -> None:
        """A step begins. On the training thread."""
        for provider in self._providers:
            provider.note_step(step)


class KnobPublisher:
    """Sends this process's knobs to the hub: when there are any, and when anything in them changes."""

    def __init__(self, knobs: Knobs, gradients: GradientSource) -> None:
        self._knobs = knobs
        self._gradients = gradients
        self._had_any = False
        """Whether there have been any knobs."""
        self._seen = -1
        """What `Knobs.changes` was at the last look."""
        self._look_at_s = 0.0

    def refresh(self) -> None:
        """Something has been changed: look again at once."""
        self._look_at_s = 0.0

    def serve(self, sender: Sender, rank: int) -> None:
        """Send what is new; called in each round of the agent's thread."""
        if sender.connections == 0:
            return
        now_s, changes = monotonic(), self._knobs.changes
        if changes == self._seen and now_s < self._look_at_s:
            return
        self._seen, self._look_at_s = changes, now_s + LOOK_S
        facts = KnobFacts(rank, self._knobs.known())
        if facts.knobs or self._had_any:
            self._had_any = True
            self._send(sender, facts)
        gradients = self._gradients.gradients(rank)
        if gradients is not None:
            self._send(sender, gradients)

    def _send(self, sender: Sender, facts: KnobFacts | GradientFacts) -> None:
        try:
            sender.put_state(facts)
        except WireError as fault:
            warn(f"no {type(facts).__name__}: {fault}")


class GradientSource(Protocol):
    """What knows the gradients of the job's DDP model."""

    def gradients(self, rank: int) -> GradientFacts | None:
        """Those of the one model that there is, the same object while it is the same model; else None."""

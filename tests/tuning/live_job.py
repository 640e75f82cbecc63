"""A training job in simulated time: two ranks, a hub, and a line to it, all through a real Fleet."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.wire import commands
from overlaptop.wire.commands import Command, CommandReport
from overlaptop.wire.knobs import GradientFacts, Knob, KnobFacts, Search
from overlaptop.wire.messages import RankEnd
from tests.fleet.builders import BUCKET_CAP_MB, MS, info, status, step, welcome
from tests.fleet.fakes import FakeSession

TICK_S = 0.25


def valley(best: float) -> Callable[[int], float]:
    """A step's length in ms for each value: 100 at the best one."""
    return lambda value: 100 * (1 + 0.2 * ((math.log(value) - math.log(best)) / 2) ** 2)


@dataclass
class UnderWay:
    command: Command
    step: int
    changed: bool = False


class LiveJob(FakeSession):
    """``session`` for a Tuner: send, hold, and ``tick`` as a JobSession has it."""

    def __init__(
        self,
        step_ms: Callable[[int], float],
        *,
        knob: Knob = BUCKET_CAP_MB,
        noise: float = 0.005,
        gradients: tuple[int, ...] = (),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.step_ms, self.noise = step_ms, noise
        self.knob = knob
        self.value = knob.value
        self.refuses = self.fails = ""
        """What each rank says of the next commands."""
        self.busy = 0
        """So many commands come while another one is under way."""
        self.doubts = False
        """Rank 1 cannot learn whether all have agreed on the next commands. They have."""
        self.takes_searches = True
        self._chance = np.random.default_rng(seed)
        self._number = 0
        self._rest_s = 0.0
        self._under_way: UnderWay | None = None
        self._disturbed_until = -1
        self.fleet.apply(welcome())
        for rank in (0, 1):
            self.fleet.apply(info(rank, control_allowed=True))
            if gradients:
                self.fleet.apply(GradientFacts(rank, gradients, 2, "0", None))
        self._tell_knob()
        self.fleet.apply(status())
        self.fleet.set_hub_state(HubState.LIVE)

    # What a session does

    def send(self, command: Command) -> str:
        assert command.inconsistency() == ""
        if self.no_line:
            return self.no_line
        self.sent.append(command)
        self.fleet.apply(replace(command, at_ns=self.clock()))
        if self.refuses or self.fails or self.busy or self._under_way:
            state = "refused" if self.refuses else "failed" if self.fails else "busy"
            self.busy -= bool(self.busy)
            self._report(command, state, None, self.refuses or self.fails or "another command is under way")
        else:
            self._report(command, "accepted", None)
            notice = 3 + math.ceil(1000 / self.step_ms(self.value))
            self._under_way = UnderWay(command, self._number + notice)
            if self.doubts:
                self._report(command, "unknown", None, "the store does not answer", ranks=(1,))
            else:
                self._report(command, "agreed", self._under_way.step)
        return ""

    def renew(self, search: Search) -> str:
        self.held.append(search)
        if self.takes_searches:
            self.fleet.apply(search)
        return ""

    def tick(self) -> Snapshot:
        """A quarter of a second later."""
        self.clock.pass_s(TICK_S)
        self._rest_s += TICK_S
        while self._rest_s > 0:
            self._rest_s -= self._step()
        return self.fleet.snapshot()

    # What else may happen

    def person_sets(self, value: int, knob: Knob | None = None) -> None:
        """Somebody else's command, which all ranks follow at once; with ``doubts`` nobody says so."""
        command = commands.make_setting(knob or self.knob, value)
        self.fleet.apply(command)
        if self.doubts:
            self._report(command, "unknown", None, "the store does not answer")
        else:
            self._report(command, "changed", self._number)
        if knob is None:
            self.value = value
            self._tell_knob()

    def end(self) -> None:
        for rank in (0, 1):
            self.fleet.apply(RankEnd(rank, self.clock(), True))
        self.fleet.apply(status(ended=True))
        self.fleet.set_hub_state(HubState.ENDED)

    def disturb(self, steps: int) -> None:
        """A capture: so many steps take ten times as long."""
        self._disturbed_until = self._number + steps

    def _step(self) -> float:
        number, at = self._number, self._under_way
        transitional = False
        if at is not None and number >= at.step:
            transitional = True
            if not at.changed:
                at.changed = True
                given = [argument.value for argument in at.command.arguments]
                original = self.knob.original_text
                self.value = given[0] if given else int(original) if original.isdecimal() else None
            elif number >= at.step + 2:
                transitional = False
                self._under_way = None
                self._tell_knob()
                self._report(at.command, "changed", at.step)
        length_ms = self.step_ms(self.value) * math.exp(self._chance.normal() * self.noise)
        captured = number < self._disturbed_until
        if transitional or captured:
            length_ms *= 10
        for rank in (0, 1):
            made = step(rank, number, step_ns=round(length_ms * MS), exposed_ns=round(length_ms * MS / 10))
            if transitional or captured:
                made = replace(
                    made, transitional=transitional, captured=captured, exposed_ns=None, comm_ns=None
                )
            self.fleet.apply(replace(made, start_ns=self.clock()))
        self._number += 1
        return length_ms / 1000

    def _tell_knob(self) -> None:
        text = self.knob.original_text if self.value is None else str(self.value)
        self.knob = replace(self.knob, value=self.value, value_text=text)
        for rank in (0, 1):
            self.fleet.apply(KnobFacts(rank, (self.knob,)))

    def _report(
        self,
        command: Command,
        state: str,
        number: int | None,
        text: str = "",
        ranks: tuple[int, ...] = (0, 1),
    ) -> None:
        for rank in ranks:
            self.fleet.apply(
                CommandReport(rank, command.id, command.name, self.clock(), state, number, text)
            )

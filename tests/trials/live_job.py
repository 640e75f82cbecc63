"""A training job in simulated time: two ranks, a hub, and a line to it, all through a real JobState."""

import math
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from overlaptop.fleet.snapshot import HubState
from overlaptop.wire import commands
from overlaptop.wire.commands import TRIAL, Command, CommandReport
from overlaptop.wire.knobs import GradientFacts, KnobFacts
from overlaptop.wire.messages import RankEnd
from tests.fleet.builders import BUCKET_CAP_MB, MS, info, status, step, welcome
from tests.fleet.fakes import FakeSession

TICK_S = 0.25
SWITCH_STEPS = 2


def valley(best):
    """A step's length in ms for each value: 100 at the best one."""
    return lambda value: 100 * (1 + 0.2 * ((math.log(value) - math.log(best)) / 2) ** 2)


@dataclass
class UnderWay:
    command: Command
    first: int
    steps: int  # Of a trial; else 0


class LiveJob(FakeSession):
    """The session of a job whose step depends on its knob and on how late its ranks are."""

    def __init__(
        self, step_ms=None, *, knob=BUCKET_CAP_MB, critical=None, noise=0.005, gradients=(), seed=0
    ):
        """``critical``: the share of a delay of each rank by which the step grows; others have slack."""
        super().__init__()
        self.step_ms, self.noise, self.critical = step_ms or valley(60), noise, critical or {}
        self.knob, self.value = knob, knob.value
        self.refuses = self.fails = ""  # What each rank says of the next commands
        self.busy = 0  # So many commands come while another one is under way
        self.doubts = False  # Rank 1 cannot learn whether all have agreed on the next commands. They have.
        self.values = []  # With which each step was made
        self.delays = []  # Rank and length of each delay
        self._random = np.random.default_rng(seed)
        self._number, self._rest_s, self._under_way, self._captured_until = 0, 0.0, None, -1
        self.fleet.apply(welcome())
        for rank in (0, 1):
            self.fleet.apply(info(rank, control_allowed=True))
            if gradients:
                self.fleet.apply(GradientFacts(rank, gradients, 2, "0", None))
        self._tell_knob()
        self.fleet.apply(status())
        self.fleet.set_hub_state(HubState.LIVE)

    # What a session does

    def send(self, command):
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
            first = self._number + 3 + math.ceil(1000 / self.step_ms(self.value))
            steps = commands.argument(command, "steps") if command.name == TRIAL else 0
            self._under_way = UnderWay(command, first, steps)
            if self.doubts:
                self._report(command, "unknown", None, "the store does not answer", ranks=(1,))
            else:
                self._report(command, "agreed", first)
        return ""

    def tick(self):
        """A quarter of a second later."""
        self.clock.pass_s(TICK_S)
        self._rest_s += TICK_S
        while self._rest_s > 0:
            self._rest_s -= self._step()
        return self.fleet.snapshot()

    # What else may happen

    def person_sets(self, value, knob=None):
        """Somebody else's command, which all ranks follow at once."""
        command = commands.make_setting(knob or self.knob, value)
        self.fleet.apply(command)
        self._report(command, "changed", self._number)
        if knob is None:
            self.value = value
            self._tell_knob()

    def end(self):
        for rank in (0, 1):
            self.fleet.apply(RankEnd(rank, self.clock(), True))
        self.fleet.apply(status(ended=True))
        self.fleet.set_hub_state(HubState.ENDED)

    def capture(self, steps):
        """So many steps take ten times as long."""
        self._captured_until = self._number + steps

    def _step(self):
        number, at = self._number, self._under_way
        value, delay_ns, in_trial, switching = self.value, 0, False, False
        if at is not None and number >= at.first:
            trial = at.command.name == TRIAL
            in_trial = trial and number < at.first + at.steps
            since = number - at.first - (at.steps if trial and not in_trial else 0)
            switching = bool(at.command.knob) and since < SWITCH_STEPS
            if in_trial and at.command.knob:
                value = commands.argument(at.command, "value")
            elif in_trial:
                rank, late_ns = (commands.argument(at.command, name) for name in ("rank", "delay_ns"))
                self.delays.append((rank, late_ns))
                delay_ns = late_ns * self.critical.get(rank, 0.0)  # By how much the step grows
            if not in_trial and not (trial and switching):
                self._finish(at)
                value = self.value
        self.values.append(value)
        length_ms = self.step_ms(value) * math.exp(self._random.normal() * self.noise) + delay_ns / MS
        captured = number < self._captured_until
        disturbed = {"exposed_ns": None, "comm_ns": None} if switching or captured else {}
        if disturbed:
            length_ms *= 10
        for rank in (0, 1):
            made = step(rank, number, step_ns=round(length_ms * MS), exposed_ns=round(length_ms * MS / 10))
            made = replace(made, transitional=switching, captured=captured, **disturbed)
            self.fleet.apply(replace(made, start_ns=self.clock(), trial=in_trial and not switching))
        self._number += 1
        return length_ms / 1000

    def _finish(self, at):
        self._under_way = None
        if at.command.name == TRIAL:
            delayed = "" if at.command.knob else str(commands.argument(at.command, "delay_ns"))
            self._report(at.command, "tried", at.first, new=delayed)
            return
        old = self.knob.value_text
        given = [argument.value for argument in at.command.arguments]
        original = self.knob.original_text
        self.value = given[0] if given else int(original) if original.isdecimal() else None
        self._tell_knob()
        self._report(at.command, "changed", at.first, old=old, new=self.knob.value_text)

    def _tell_knob(self):
        text = self.knob.original_text if self.value is None else str(self.value)
        self.knob = replace(self.knob, value=self.value, value_text=text)
        for rank in (0, 1):
            self.fleet.apply(KnobFacts(rank, (self.knob,)))

    def _report(self, command, state, number, text="", ranks=(0, 1), old="", new=""):
        for rank in ranks:
            self.fleet.apply(
                CommandReport(rank, command.id, command.name, self.clock(), state, number, text, old, new)
            )

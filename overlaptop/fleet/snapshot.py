"""Snapshot: all that any view may show, frozen. Screen, --once, --json and the rest read only this."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.knobs import JobKnob
from overlaptop.fleet.timelines import KeptTimeline
from overlaptop.fleet.traffic import Traffic
from overlaptop.fleet.waits import StepTransfer, StepWaits, WaitWindow
from overlaptop.timeline.arrivals import WaitTimes
from overlaptop.wire.commands import CHANGES
from overlaptop.wire.devices import DeviceFacts, DeviceSample, MachineFacts, NumaFacts
from overlaptop.wire.knobs import GradientFacts, Knob
from overlaptop.wire.messages import (
    EnvironmentFacts,
    Notice,
    OwnCost,
    RankEnd,
    RankInfo,
    StackSamples,
    Standstill,
    StepDetail,
    StepTotals,
    Welcome,
)

WHOLE_TRACE = -1
"""The step as which a whole trace is shown."""


class Window(Enum):
    """Of which steps the job's figures are: these, counted back from the newest that all ranks have."""

    SECONDS = "last 20 s"
    MINUTE = "last 60 s"
    STEPS = "last 10 steps"
    STEP = "one step"


class HubState(Enum):
    """The hub of the job as seen from here, through the connection to it."""

    WAITING = "waiting"
    """No hub found yet."""
    LIVE = "live"
    STALE = "stale"
    """Connected, but nothing has come from the hub for a while."""
    LOST = "lost"
    """The hub is gone and the job may still run: looking for it again."""
    ENDED = "ended"
    """The job ended; what is shown is its last state."""
    TRACE = "trace"
    """No connection: a finished job, read from files."""


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank as it is known now."""

    rank: int
    info: RankInfo | None
    last: StepTotals | None
    measured: StepTotals | None
    """The newest step that carries lane totals; with sampling, older than ``last``. In a Snapshot of the
    whole job the newest that all ranks have measured, so that they can be compared."""
    history: tuple[StepTotals, ...]
    """Oldest first, bounded; ends with ``last``."""
    detail: StepDetail | None
    age_s: float | None
    """Seconds since the newest step arrived here; None before the first."""
    stale: bool
    """No step for much longer than its steps take."""
    ended: bool
    dropped: int
    details: tuple[StepDetail, ...] = ()
    """The last few, oldest first: several may come together."""
    timelines: tuple[KeptTimeline, ...] = ()
    """Of the steps that one can go back to, oldest first."""
    machine: MachineFacts | None = None
    device: DeviceFacts | None = None
    numa: NumaFacts | None = None
    samples: tuple[DeviceSample, ...] = ()
    """Of the rank's GPU over the last minute, oldest first."""
    knobs: tuple[Knob, ...] = ()
    gradients: GradientFacts | None = None
    """Those of its DDP model, as far as they are known."""
    own_cost: OwnCost | None = None
    """What its agent costs; None as long as that is not known."""
    environment: EnvironmentFacts | None = None
    """Which environment variables it has, of those that matter here; None before that is known."""
    traffic: Traffic | None = None
    """What its links carried, beside what its collectives account for; None before anything is known."""
    node: str = ""
    """Name of the NodeView that it belongs to; empty where there are none."""
    node_lost: bool = False
    """That node cannot be reached: this is how the rank was when the connection broke."""
    silent: bool = False
    """Stale, and its hub receives nothing from it, not even that it waits for others."""
    end: RankEnd | None = None
    standstill: Standstill | None = None
    """In what it stands, or where it is before its first step, as its agent says; None while it goes on."""
    stacks: tuple[StackSamples, ...] = ()
    """At which lines of the script its training thread was in the last seconds, oldest first."""
    without_agent: bool = False
    """It trains on the host of another rank, and nothing has ever come from it."""
    waits: WaitTimes | None = None
    """How the communication of ``measured`` splits into waiting and transferring; None where that is not
    known."""
    older: tuple[StepTotals, ...] = ()
    """Measured steps from before ``history``, oldest first, bounded."""
    longest_step_ns: int = 0
    """Of all steps but the first."""
    mean: StepTotals | None = None
    """Means over the window of the job's totals, numbered as the newest step; None where the window is one
    step. Lane totals are of measured steps, the length is of all."""
    mean_waits: WaitTimes | None = None
    """Likewise of ``waits``: the exposed parts add up to the mean that is exposed."""

    @property
    def sample(self) -> DeviceSample | None:
        """The newest of `samples`."""
        return self.samples[-1] if self.samples else None

    @property
    def row(self) -> StepTotals | None:
        """The figures of the rank's row: means, else its measured step; where there is none, its newest."""
        return self.mean or self.measured or self.last

    @property
    def row_waits(self) -> WaitTimes | None:
        """How the communication of `row` splits; None where that is not known."""
        return self.waits if self.mean is None else self.mean_waits


@dataclass(frozen=True, slots=True)
class NodeView:
    """One of the hosts that are watched, and the connection to it."""

    name: str
    hub_state: HubState
    """``waiting``: not connected yet, or without the job; ``lost``: the connection or the hub is gone."""
    since_ns: int
    note: str
    """As Snapshot.hub_note, of this host."""
    ranks: tuple[int, ...] = ()
    """Those of the job that are, or were, there."""
    offset_ns: int | None = None
    """Its clock less ours, by which its times were shifted; None: not known."""
    residual_ns: int | None = None
    """What that may be wrong by."""
    bytes_per_s: float | None = None
    """What the connection carries from there."""
    detail: str = ""
    """The output of the command that makes the connection."""
    readonly: bool = False
    """The relay changes nothing there, whoever asks."""

    @property
    def lost(self) -> bool:
        """Whether ranks of the job are there and cannot be reached."""
        return bool(self.ranks) and self.hub_state in (HubState.WAITING, HubState.STALE, HubState.LOST)


@dataclass(frozen=True, slots=True)
class Totals:
    """The job over a window of steps. None where nothing is known.

    One rule for all: times are the mean over ranks and steps, shares are of the sums over ranks and steps,
    which is the same. ``speedup`` is ``(len C + len M + len F) / step`` and ``attainable``
    ``(len C + len M + len F) / (max(len C, len M) + len F)``, of the sums. Steps that a command disturbed
    are left out, what was before a setting was changed, and steps in which the job stood still.
    """

    step: int | None
    """The newest step that every rank that still runs, and can be reached, has finished; once all have
    ended, the newest of any."""
    step_ns: int | None
    overlap: float | None
    exposed_ns: int | None
    stall_ns: int | None
    idle_ns: int | None
    """None where no rank's source can see it."""
    speedup: float | None
    attainable: float | None
    launch_lead_ns: int | None
    """The least of the ranks' means: they wait for the last."""
    launch_bound: tuple[int, ...]
    """The ranks on which the CPU cannot launch as fast as the GPU works."""
    dropped: int
    """By agents, hub and this dashboard's connection together."""
    ranks: int
    """How many the lane figures are of."""
    measured_step: int | None
    """The newest step that they are of, which is that of the ranks' rows; None where it is not the same on
    all ranks."""
    fused_ns: int | None = None
    """In kernels that compute and communicate in one."""
    waits: WaitTimes | None = None
    """How the ranks' communication splits, the mean over ``split_steps``; None where that is not known of
    each."""
    split_steps: int = 0
    """How many of the steps were compared over the ranks: of more than ten a second not all are."""
    own_cost: OwnCost | None = None
    """What the agents cost: the rank's in the middle, since ranks in step with each other pay together."""
    window: Window = Window.STEP
    steps: int = 0
    """How many measured steps of a rank the lane figures are of."""
    first_step: int | None = None
    """The oldest of them."""
    cut: bool = False
    """They are the newest of the window's: it has more than are kept or can be read."""
    stood_still: int = 0
    """Steps of the window that were left out because the job stood still in them."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job at one moment."""

    at_ns: int
    hub_state: HubState
    hub_since_ns: int
    hub_note: str
    """Why the connection is in this state, for the screen; empty when live."""
    job: Welcome | None
    ranks: tuple[RankView, ...]
    """By rank. Ranks that were announced (world size) but never seen are present with info None."""
    totals: Totals
    notices: tuple[Notice, ...]
    fresh: tuple[StepTotals, ...]
    """Steps that arrived since the previous snapshot, in order of arrival."""
    commands: tuple[CommandView, ...] = ()
    """The commands that the job was given and their outcomes, newest last, bounded."""
    knobs: tuple[JobKnob, ...] = ()
    fresh_samples: tuple[DeviceSample, ...] = ()
    """Samples of GPUs that arrived since the previous snapshot, in order of arrival."""
    nodes: tuple[NodeView, ...] = ()
    """The hosts that are watched, in the order in which they were named; empty: this machine alone."""
    replaying: bool = False
    """A hub still sends the history of before this session joined: the newest steps are not known yet."""
    waits: StepWaits | None = None
    """The newest step of which the timelines of all ranks are here, split; its number is that of the ranks'
    ``measured`` wherever they know it."""
    wait_window: WaitWindow | None = None
    """The newest of such steps since the job changed; None where nothing of them is split."""
    unsplit: str = ""
    """Why nothing is split, for the screen; empty where something is."""
    fresh_waits: tuple[StepWaits, ...] = ()
    """Steps that were split since the previous snapshot, in their order."""
    split_steps: tuple[StepWaits, ...] = ()
    """Those of `wait_window`, oldest first; of a trace, all of its steps."""
    kept_split_steps: tuple[StepWaits, ...] = ()
    """Those of the last minute, oldest first."""
    transfers: tuple[StepTransfer, ...] = ()
    """What the transfers of such steps took in the last minutes, oldest first."""
    first_step: int = 0
    """The first since the job changed, by itself or by a setting; 0: it has not."""
    recorded: bool = False
    """It is from a recording, and `at_ns` a moment of that."""

    def knob(self, name: str) -> JobKnob | None:
        """The knob of that name; None: the job has none."""
        return next((each for each in self.knobs if each.knob.name == name), None)

    @property
    def changes(self) -> tuple[CommandView, ...]:
        """The commands that were to change a knob for good, oldest first."""
        return tuple(each for each in self.commands if each.name in CHANGES)

    def command(self, command_id: str) -> CommandView | None:
        """What is known of that command; None: it was not given here, or is forgotten."""
        return next((each for each in self.commands if each.id == command_id), None)

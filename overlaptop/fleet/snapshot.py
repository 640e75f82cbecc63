"""Snapshot: the frozen state that every view reads (screen, --once, --json and others)."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.knobs import JobKnob
from overlaptop.fleet.traffic import Traffic
from overlaptop.fleet.waits import StepTransfer, StepWaits, WaitWindow
from overlaptop.timeline.arrivals import WaitTimes
from overlaptop.wire.commands import CHANGES
from overlaptop.wire.devices import DeviceFacts, DeviceSample, MachineFacts, Nic, NumaFacts
from overlaptop.wire.knobs import GradientFacts, Knob
from overlaptop.wire.messages import (
    EnvironmentFacts,
    Notice,
    OwnCost,
    RankEnd,
    RankInfo,
    RankStalled,
    StackSamples,
    StepDetail,
    StepTotals,
    Welcome,
)

WHOLE_TRACE = -1  # Step number that stands for a whole trace
_unpack = msgspec.msgpack.Decoder(StepDetail).decode


class Window(Enum):
    """The steps behind the job's figures, counted back from the newest step of all ranks."""

    SECONDS = "last 20 s"
    MINUTE = "last 60 s"
    STEPS = "last 10 steps"
    STEP = "one step"


class HubState(Enum):
    """State of the connection to the job's hub."""

    WAITING = "waiting"
    LIVE = "live"
    STALE = "stale"  # Connected, but the hub has sent nothing for a while
    LOST = "lost"  # The hub has gone and the job may still run. The session looks for it again.
    ENDED = "ended"  # The job ended. The Snapshot shows its last state.
    TRACE = "trace"  # No connection: a finished job, read from files


class KeptTimeline(NamedTuple):
    """Packed timeline of one step."""

    step: int
    packed: bytes

    def unpack(self) -> StepDetail:
        return _unpack(self.packed)


class RankView(msgspec.Struct, frozen=True):  # a job has thousands; a dataclass takes long to replace
    """The present state of one rank."""

    rank: int
    info: RankInfo | None = None
    last: StepTotals | None = None
    measured: StepTotals | None = None
    """Newest step with lane totals; in a Snapshot of the whole job, the newest that all ranks have."""
    history: tuple[StepTotals, ...] = ()  # Oldest first, bounded; ends with ``last``
    detail: StepDetail | None = None
    age_s: float | None = None  # Seconds since the newest step arrived here. None before the first step.
    stale: bool = False  # No step has arrived for much longer than this rank's steps take
    dropped: int = 0
    details: tuple[StepDetail, ...] = ()  # The last few timelines, oldest first
    timelines: tuple[KeptTimeline, ...] = ()
    """Timelines of the steps that a user can go back to, oldest first."""
    machine: MachineFacts | None = None
    device: DeviceFacts | None = None
    numa: NumaFacts | None = None
    samples: tuple[DeviceSample, ...] = ()  # Samples of the rank's GPU over the last minute, oldest first
    knobs: tuple[Knob, ...] = ()
    gradients: GradientFacts | None = None
    own_cost: OwnCost | None = None
    environment: EnvironmentFacts | None = None
    traffic: Traffic | None = None  # Bytes over its links, beside the bytes of its collectives
    nic_traffic: Traffic | None = None
    """Bytes over the adapter nearest to its GPU, if the job has other nodes."""
    node: str = ""  # Name of its NodeView. Empty without nodes.
    node_lost: bool = False
    """The node cannot be reached. This is the rank's state when the connection broke."""
    silent: bool = False  # Stale, and the hub receives nothing from it, not even that it waits for others
    end: RankEnd | None = None
    stalled: RankStalled | None = None
    """Where its agent says that it is stuck, or is before its first step. None while steps go on."""
    stacks: tuple[StackSamples, ...] = ()
    """Lines of the script that its training thread executed in the last seconds, oldest first."""
    waits: WaitTimes | None = None  # Wait/transfer breakdown of ``measured``. None if not known.
    older: tuple[StepTotals, ...] = ()  # Measured steps from before ``history``, oldest first, bounded
    longest_step_ns: int = 0  # Longest step, without the first
    disturbed_step: int = -1  # Newest step that a command disturbed. -1: none.
    mean: StepTotals | None = None
    """Means over the window of the job's totals, numbered as the newest step. None if the window is one
    step. Lane totals are of measured steps, the length is of all steps."""
    mean_waits: WaitTimes | None = None
    """Means of ``waits``. The exposed parts add up to the mean exposed time."""

    @property
    def ended(self) -> bool:
        return self.end is not None

    @property
    def gpu_uuid(self) -> str:
        """Its GPU; empty: none, or not known."""
        return self.device.gpu_uuid if self.device is not None else ""

    @property
    def sample(self) -> DeviceSample | None:
        return self.samples[-1] if self.samples else None

    @property
    def nic(self) -> Nic | None:
        """The network adapter nearest to its GPU. None if not known."""
        nics = self.machine.nics if self.machine is not None else ()
        return next((nic for nic in nics if self.numa is not None and nic.name == self.numa.nic), None)

    @property
    def row(self) -> StepTotals | None:
        """Figures of the rank's row: means, else the measured step, else the newest step."""
        return self.mean or self.measured or self.last

    @property
    def row_waits(self) -> WaitTimes | None:
        """Wait/transfer breakdown of `row`. None if not known."""
        return self.waits if self.mean is None else self.mean_waits


@dataclass(frozen=True, slots=True)
class NodeView:
    """One watched host and its connection."""

    name: str
    hub_state: HubState
    """``waiting``: not connected yet, or without the job. ``lost``: the connection or the hub has gone."""
    since_ns: int
    note: str
    ranks: tuple[int, ...] = ()  # The job's ranks that are, or were, on this host
    offset_ns: int | None = None
    """Its clock minus ours, or minus the root's if this is a gathered job. None if not known."""
    residual_ns: int | None = None  # Possible error of ``offset_ns``
    bytes_per_s: float | None = None
    detail: str = ""  # Output of the command that makes the connection
    readonly: bool = False  # The relay there refuses all changes

    @property
    def lost(self) -> bool:
        """Whether ranks of the job are on this host and cannot be reached."""
        return bool(self.ranks) and self.hub_state in (HubState.WAITING, HubState.STALE, HubState.LOST)


@dataclass(frozen=True, slots=True)
class Totals:
    """The job's figures over a window of steps. None means not known.

    All follow one rule: times are means over ranks and steps, and shares are ratios of the sums over ranks
    and steps. ``speedup`` is ``(len C + len M + len F) / step`` and ``attainable`` is
    ``(len C + len M + len F) / (max(len C, len M) + len F)``, both of the sums. Left out are steps that a
    command disturbed, steps before the last change of a setting, and stalls; none in a window of one step.
    """

    step: int | None
    """Newest step that every running, reachable rank has finished; of an ended job, of any rank."""
    step_ns: int | None
    overlap: float | None
    exposed_ns: int | None
    stall_ns: int | None
    idle_ns: int | None  # None if no rank's source can see idle time
    speedup: float | None
    attainable: float | None
    launch_lead_ns: int | None  # Smallest of the ranks' means, since all ranks wait for the last
    launch_bound: tuple[int, ...]
    """Ranks on which the CPU launches work more slowly than the GPU executes it."""
    dropped: int  # Messages dropped by agents, hub and this dashboard's connection together
    ranks: int  # Ranks behind the lane figures
    measured_step: int | None
    """Newest measured step behind lane figures and rows. None if it differs between ranks."""
    measured_ns: int | None = None
    """Length of the measured steps behind the lane figures; ``step_ns`` is that of all steps."""
    fused_ns: int | None = None  # Time in kernels that both compute and communicate
    waits: WaitTimes | None = None
    """Mean wait/transfer breakdown over ranks and ``step_waits``. None unless known of each rank."""
    step_waits: int = 0  # Steps compared over ranks. Above ten steps a second, only some are compared.
    own_cost: OwnCost | None = None
    """Agent overhead of the median rank: synchronised ranks all pay it together."""
    window: Window = Window.STEP
    steps: int = 0  # Measured steps of a rank behind the lane figures
    first_step: int | None = None  # Oldest of these steps
    cut: bool = False  # The window has more steps than can be kept or read, so only the newest are used
    paused_steps: int = 0  # Steps of the window left out because the job paused in them


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a job at one moment."""

    at_ns: int
    hub_state: HubState
    hub_since_ns: int
    hub_note: str  # Why the connection is in this state, as text for the screen. Empty when live.
    job: Welcome | None
    ranks: tuple[RankView, ...]
    """By rank number. Ranks within the world size that were never seen have info None."""
    totals: Totals
    notices: tuple[Notice, ...]
    fresh: tuple[StepTotals, ...]
    """Steps that arrived since the previous snapshot, in order of arrival; the same for samples."""
    commands: tuple[CommandView, ...] = ()  # Newest last, bounded
    knobs: tuple[JobKnob, ...] = ()
    fresh_samples: tuple[DeviceSample, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    """Watched hosts in the order of the command line. Empty if only this machine is watched."""
    replaying: bool = False  # The hub is still sending its history, so the newest steps are not known yet
    waits: StepWaits | None = None
    """Breakdown of the newest step with timelines from all ranks, which is the ranks' ``measured``."""
    wait_window: WaitWindow | None = None
    """The newest such steps since the job changed. None if no step has a breakdown."""
    not_attributed: str = ""  # Why there is no breakdown, as text for the screen. Empty if there is one.
    fresh_waits: tuple[StepWaits, ...] = ()
    """Breakdowns computed since the previous snapshot, in step order."""
    step_waits: tuple[StepWaits, ...] = ()
    """The steps of `wait_window`, oldest first. For a trace, all of its steps."""
    kept_step_waits: tuple[StepWaits, ...] = ()  # Breakdowns of the last minute, oldest first
    transfers: tuple[StepTransfer, ...] = ()
    """Transfer times of such steps in the last minutes, oldest first."""
    first_step: int = 0  # First step since the job changed, by itself or by a setting. 0 if it has not.
    before_step: int = 0  # First step since the change before that one
    wander_ns: float = 0.0  # Standard deviation of the length of a few steps in a row. 0: not known.
    compared: frozenset[int] = frozenset()
    """The ranks whose timelines are compared: all of a small job, some of a large one."""
    recorded: bool = False  # It comes from a recording, and `at_ns` is a time in that

    def knob(self, name: str) -> JobKnob | None:
        return next((each for each in self.knobs if each.knob.name == name), None)

    @property
    def changes(self) -> tuple[CommandView, ...]:
        """Commands to change a knob for good, oldest first."""
        return tuple(each for each in self.commands if each.name in CHANGES)

    def command(self, command_id: str) -> CommandView | None:
        return next((each for each in self.commands if each.id == command_id), None)


def filled_hosts(ranks: Collection[int], views: Iterable[RankView]) -> list[str]:
    """Return the hosts that have these ranks and no others. Empty if a host has others too, or one rank
    only, or if these are all hosts.
    """
    of_host: dict[str, set[int]] = {}
    for view in views:
        if view.info is not None:
            of_host.setdefault(view.info.host, set()).add(view.rank)
    filled = [host for host, members in of_host.items() if members.issubset(ranks) and len(members) > 1]
    covered = sum(len(of_host[host]) for host in filled)
    return filled if covered == len(ranks) and len(filled) < len(of_host) else []

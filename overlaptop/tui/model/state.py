"""The user's choices and the shown snapshot: one object that the widgets read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from msgspec import structs

from overlaptop.findings.finding import Finding
from overlaptop.fleet.knobs import JobKnob
from overlaptop.fleet.past import in_step, over_window, with_timelines
from overlaptop.fleet.snapshot import WHOLE_TRACE, HubState, RankView, Snapshot, Window
from overlaptop.fleet.totals import of_one_step, total, with_means
from overlaptop.fleet.trouble import Trouble
from overlaptop.fleet.wait_breakdown import NOT_YET
from overlaptop.fleet.waits import StepWaits
from overlaptop.report.hosts import by_node
from overlaptop.report.order import MOST_LISTED, Filter, all_see_gaps, ordered
from overlaptop.report.who_is_late import FirstLine
from overlaptop.text import count
from overlaptop.timeline.arrivals import WaitTimes
from overlaptop.tui.model.keys import CHANGE_JOB, CHANGE_KNOB, action_name, fits
from overlaptop.tui.model.knob_editor import KnobChange
from overlaptop.tui.model.lanes import CollectiveKey, Lanes, TimelineStep
from overlaptop.tui.model.parts import COMPUTE, PHASES, StepPart
from overlaptop.tui.model.viewport import WHOLE_STEP, Viewport
from overlaptop.wire.messages import StepDetail, StepTotals

if TYPE_CHECKING:
    from overlaptop.trials.effect import Effect
    from overlaptop.tui.model.earlier import BeforeAfter

T = TypeVar("T")

HOLD_S = 1.0  # Shortest time that a timeline stays: at four changes a second nobody can read it
OLD_S = 3.0  # Age from which a timeline's step is too old to share the screen with the newest step


def following(one: T, among: Sequence[T], by: int = 1) -> T:
    """Return the element of a cycle after this one; the first if this one is not among them."""
    if one not in among:
        return among[0] if among else one
    return among[(among.index(one) + by) % len(among)]


def step_name(step: int) -> tuple[str, str]:
    """Return ``step`` and its number, or ``whole`` and ``trace``."""
    return ("whole ", "trace") if step == WHOLE_TRACE else ("step ", count(step))


@dataclass
class ViewState:
    """Shared by all screens: their actions write the user's choices, `Dashboard.update` writes the rest."""

    snapshot: Snapshot
    rank: int = 0
    filter: Filter = field(default_factory=Filter)
    window: Window = Window.SECONDS
    sort_key: str = "rank"
    map_quantity: str = "exposed"  # One of QUANTITIES: the colour of the ranks of a folded job
    reverse: bool = False
    viewport: Viewport = WHOLE_STEP
    paused_at_ns: int | None = None
    past_step: int | None = None  # The kept step shown on the paused screen; None: the moment of the pause
    now_ns: int = 0  # The clock, which also runs while paused
    trouble_since: Trouble | None = None
    collective_key: CollectiveKey | None = None  # The selected collective, in this step and in later ones
    copies_seen: bool = False
    """True once a step had copies: their lane then stays, so that the screen does not jump."""
    most_collectives: int = 0
    """Most collectives seen in a step: their list keeps this height, for the same reason."""
    selected_knob: JobKnob | None = None
    change: KnobChange | None = None
    change_is_news: bool = False
    panel_hidden: bool = False
    trying: bool = False
    recorded_bytes: int | None = None
    """Bytes of the recording that this dashboard makes; None: it makes none."""
    slopes: "Mapping[int, Effect]" = field(default_factory=dict)
    """Effect on the step by rank, if this dashboard has measured its slack."""
    compared: "BeforeAfter | None" = None
    """The steps before and after the newest change, or of the earlier job and this one."""
    findings: tuple[Finding, ...] | None = None
    """Findings since the job last changed, largest gain first; None: too few steps are known."""
    first_line: FirstLine | None = None  # First line of the job, for any window; None: nothing is known
    readonly: bool = False
    _rows: tuple[Snapshot, object, list[RankView]] | None = field(default=None, repr=False)
    _timeline: TimelineStep | None = field(default=None, repr=False)
    _timeline_at_ns: int = field(default=0, repr=False)
    _newest: Snapshot | None = field(default=None, repr=False)  # Of which `snapshot` was made
    _paused: Snapshot | None = field(default=None, repr=False)
    """The snapshot of the pause, from which the user goes back through the kept steps."""

    @property
    def groups(self) -> frozenset[int]:
        """Return the ranks that share a group with the selected one, if known; no groups of all ranks."""
        ranks, detail = len(self.snapshot.ranks), self.selected.detail if self.selected else None
        groups = detail.groups if detail is not None else ()
        return frozenset(rank for each in groups if len(each.members) < ranks for rank in each.members)

    @property
    def grouped(self) -> bool:
        """Return whether ranks are grouped by host: there are several, and no other order is chosen."""
        return len(self.snapshot.nodes) > 1 and self.sort_key == "rank"

    @property
    def folded(self) -> bool:
        """Return whether there are too many ranks for a row each, and no other order is chosen."""
        return len(self.rows) > MOST_LISTED and self.sort_key == "rank"

    def show(self, snapshot: Snapshot) -> None:
        """Show rows and totals over the window; a window of one step is the timeline's step."""
        if snapshot is self._newest and self.window is self.snapshot.totals.window is not Window.STEP:
            return
        self._newest, self.snapshot = snapshot, _without_empty_waits(snapshot)
        if not self.moving:
            return
        if self.window is Window.STEP:
            snapshot = replace(snapshot, ranks=self._in_step_of_timeline() or self.snapshot.ranks)
        self.snapshot = self._over_window(snapshot)

    def _over_window(self, snapshot: Snapshot) -> Snapshot:
        return _without_empty_waits(with_means(over_window(snapshot, self.window)))

    def pause(self, now_ns: int) -> None:
        """Pause: show all ranks' timelines of the shown step."""
        lanes, waits = self.lanes, self.waits  # before the newest one replaces them
        self.paused_at_ns = now_ns
        if lanes is not None:
            ranks = with_timelines(self.snapshot.ranks, lanes.detail.step)
            self.snapshot = replace(self.snapshot, ranks=ranks, waits=waits)
        self._paused = self.snapshot

    def resume(self) -> None:
        self.paused_at_ns = self.past_step = self._paused = self._newest = self.trouble_since = None
        self._timeline_at_ns = 0

    def go_to(self, number: int) -> None:
        if self._paused is not None:
            self.past_step = number
            self.snapshot = _without_empty_waits(in_step(self._paused, number))

    @property
    def marked_step(self) -> int | None:
        """Return the chosen step, for histories to mark; None: none."""
        if self.moving:
            return self.past_step
        step = self.snapshot.totals.measured_step
        return None if step == WHOLE_TRACE else step

    @property
    def shown_step(self) -> int | None:
        selected, lanes = self.selected, self.lanes
        if self.past_step is not None or selected is None:
            return self.past_step
        if lanes is not None:
            return lanes.detail.step
        newest = selected.measured or selected.last
        return newest.step if newest is not None else None

    def _in_step_of_timeline(self) -> tuple[RankView, ...] | None:
        """Return all ranks at the timeline's step; None: they are at it, it is old, or some lack it."""
        ranks, selected, lanes = self.snapshot.ranks, self.selected, self.lanes
        if selected is None or selected.measured is None or lanes is None:
            return None
        step, behind_ns = lanes.detail.step, selected.measured.start_ns - lanes.detail.start_ns
        if step == self.snapshot.totals.measured_step or behind_ns > OLD_S * 1e9:
            return None
        found = tuple(
            structs.replace(view, waits=self.waits_of(view.rank)) for view in of_one_step(ranks, step)
        )
        return found if total(found, 0).measured_step == step else None

    @property
    def rows(self) -> list[RankView]:
        made_of = (self.filter, self.sort_key, self.reverse)
        known = self._rows
        if known is None or known[0] is not self.snapshot or known[1] != made_of:
            rows = ordered(self.snapshot.ranks, self.filter, self.sort_key, reverse=self.reverse)
            self._rows = known = (self.snapshot, made_of, by_node(rows) if self.grouped else rows)
        return known[2]

    @property
    def selected(self) -> RankView | None:
        """Return the selected rank, else the first one shown."""
        rows = self.rows
        return next((view for view in rows if view.rank == self.rank), rows[0] if rows else None)

    @property
    def timeline(self) -> TimelineStep | None:
        """Return the selected rank's newest detailed step; each step stays for HOLD_S."""
        newest, waits = self._newest_detail()
        if newest is None:
            return None
        held, now_ns = self._timeline, self.snapshot.at_ns
        turned = held is None or held.rank != newest.rank
        is_live = self.paused_at_ns is None and self.moving
        if is_live and not turned and 0 <= now_ns - self._timeline_at_ns < HOLD_S * 1e9:
            return held
        if held is None or held.details[held.rank] is not newest or waits is not held.waits:
            details = (each for view in self.snapshot.ranks for each in view.details)
            of_step = {each.rank: each for each in details if each.step == newest.step}
            self._timeline = held = TimelineStep(newest.rank, of_step, waits, self.compute)
            # A rank's first timeline may be old, so the next one replaces it at once.
            self._timeline_at_ns = 0 if turned else now_ns
            self.copies_seen |= bool(held.lanes.copy)
            self.most_collectives = max(self.most_collectives, len(newest.collectives))
        return held

    @property
    def lanes(self) -> Lanes | None:
        return step.lanes if (step := self.timeline) is not None else None

    @property
    def waits(self) -> StepWaits | None:
        """Return who waited for whom in the timeline's step; None if not known."""
        return step.waits if (step := self.timeline) is not None else None

    @property
    def details(self) -> Mapping[int, StepDetail]:
        """Return the timeline's step of each rank whose timeline is here."""
        return step.details if (step := self.timeline) is not None else {}

    def waits_of(self, rank: int) -> WaitTimes | None:
        return waits.times.get(rank) if (waits := self.waits) is not None else None

    def _newest_detail(self) -> tuple[StepDetail | None, StepWaits | None]:
        """Return the selected rank's newest step with a wait/transfer breakdown, unless that is old."""
        selected, waits = self.selected, self.snapshot.waits
        newest = selected.detail if selected is not None else None
        if selected is None or newest is None or waits is None:
            return newest, None
        split = next((each for each in selected.details if each.step == waits.step), None)
        if split is None or newest.start_ns - split.start_ns > OLD_S * 1e9:
            return newest, None
        return split, waits

    @property
    def collective(self) -> int | None:
        """Return the index of the selected collective in the timeline's step; None: it is not in it."""
        keys = self.lanes.keys if self.lanes is not None else ()
        return keys.index(self.collective_key) if self.collective_key in keys else None

    def select_collective(self, index: int) -> None:
        """Select this collective of the timeline's step; a zoomed viewport follows it."""
        if (lanes := self.lanes) is not None:
            self.collective_key = lanes.keys[index]
            if self.viewport.zoom > 1:
                self.viewport = self.viewport.showing(sum(lanes.place(index)) / 2)

    def move_collective(self, by: int) -> None:
        """Select the collective this many further on; the first one if none is selected."""
        if (lanes := self.lanes) is not None and lanes.keys:
            at = self.collective
            self.select_collective(0 if at is None else min(max(at + by, 0), len(lanes.keys) - 1))

    @property
    def step(self) -> StepTotals | None:
        """Return the figures of the timeline's step, else of the selected rank's newest measured step."""
        selected, lanes = self.selected, self.lanes
        if selected is None:
            return None
        wanted = lanes.detail.step if lanes is not None else None
        steps = (each for each in reversed(selected.history) if each.step == wanted and each.measured)
        return next(steps, selected.measured)

    @property
    def starting(self) -> str:
        """Return what the job waits for before any rank's first step: ``the first whole step``."""
        ranks = self.snapshot.ranks
        infos = [view.info for view in ranks if view.info is not None]
        if self.snapshot.job is None or self.snapshot.hub_state is not HubState.LIVE:
            return ""
        if any(view.last is not None for view in ranks) or any(info.agent_disabled for info in infos):
            return ""
        if len(infos) < len(ranks):
            return f"its ranks: {len(infos)} of {len(ranks)} are there"
        if loading := sum(not info.torch_version for info in infos):
            return f"torch to load on {loading} of {len(ranks)} ranks"
        if any(info.source == "none" for info in infos):
            return "the first step to end: an optimizer's, or overlaptop.agent.step()"
        return "the first whole step"

    @property
    def moving(self) -> bool:
        """Return whether steps arrive one by one: in a trace all are there at once."""
        return self.snapshot.hub_state is not HubState.TRACE

    def offers(self, action: str) -> bool:
        """Return whether an action of the app or a screen is available here."""
        if self.readonly and action_name(action) in CHANGE_JOB:
            return False
        job, replay = self.snapshot.job is not None, self.snapshot.recorded
        return fits(action, trace=not self.moving, job=job, replay=replay)

    def does(self, action: str) -> bool:
        """Return whether it would do more than say why it cannot."""
        if action_name(action) in CHANGE_KNOB and not self.any_change:
            return False
        return self.offers(action) and (action != "hosts" or bool(self.snapshot.nodes))

    @property
    def selected_name(self) -> str:
        return self.selected_knob.knob.name if self.selected_knob is not None else ""

    @property
    def goes_on(self) -> bool:
        """Return whether more steps may arrive."""
        return self.moving and self.snapshot.hub_state is not HubState.ENDED

    @property
    def any_change(self) -> bool:
        return self.goes_on and not self.readonly and any(not each.refusal for each in self.snapshot.knobs)

    @property
    def exact(self) -> bool:
        return all_see_gaps(self.snapshot.ranks)

    @property
    def compute(self) -> StepPart:
        """Return PHASES if no more is known of compute. A trace of a CPU has operators."""
        return COMPUTE if self.exact or self.snapshot.hub_state is HubState.TRACE else PHASES

    def next_window(self) -> None:
        self.window = following(self.window, list(Window))
        if self.paused_at_ns is not None:
            self.snapshot = self._paused = self._over_window(self.snapshot)

    def move(self, rows: int, order: Sequence[int] = ()) -> None:
        """Select the rank this many rows further down, of the rows or of ``order``; stop at either end."""
        shown = order or [view.rank for view in self.rows]
        if shown:
            at = shown.index(self.rank) if self.rank in shown else 0
            self.rank = shown[min(max(at + rows, 0), len(shown) - 1)]

    def sort_by(self, key: str) -> None:
        """Sort by ``key``; if it is the present one, reverse the order."""
        if key == self.sort_key:
            self.reverse = not self.reverse
        else:
            self.sort_key, self.reverse = key, key not in ("rank", "overlap")


def _without_empty_waits(snapshot: Snapshot) -> Snapshot:
    """Remove all waits if no collective of several ranks has a breakdown."""
    if snapshot.waits is None or snapshot.wait_window is not None or snapshot.not_attributed == NOT_YET:
        return snapshot
    ranks = tuple(structs.replace(view, waits=None, mean_waits=None) for view in snapshot.ranks)
    waits = replace(snapshot.waits, times={})
    return replace(snapshot, ranks=ranks, totals=replace(snapshot.totals, waits=None), waits=waits)

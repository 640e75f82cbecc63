"""Dashboard: the session and the shown state, for screens and widgets. It draws nothing."""

import time
from collections.abc import Callable

from overlaptop.findings.finding import by_key
from overlaptop.findings.watch import FindingsTold, FindingsWatch
from overlaptop.fleet.past import beside
from overlaptop.fleet.recorder import default_path
from overlaptop.fleet.replay_session import ReplaySession
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.fleet.totals import step_of
from overlaptop.fleet.trouble import trouble_of
from overlaptop.formats.finished_session import FinishedSession
from overlaptop.text import reason
from overlaptop.tui.draw.themes import Look
from overlaptop.tui.model.captures import TraceSums
from overlaptop.tui.model.earlier import JobsSeen
from overlaptop.tui.model.knob_editor import KnobEditor, ValueRefusedError
from overlaptop.tui.model.launch import LaunchFollower
from overlaptop.tui.model.options import TuiOptions
from overlaptop.tui.model.running_trials import DashboardTrials
from overlaptop.tui.model.state import ViewState

COMPARED_EVERY_NS = 1_000_000_000  # Interval between two comparisons of the steps before and after a change
SOUGHT_EVERY_NS = 1_000_000_000  # Recorded time between two looks for the next event
MOST_SEARCH_S = 2.0  # Longest search; the screen does not move until its end


class Dashboard:
    """One job at a time. Nothing here blocks."""

    def __init__(
        self,
        session: Session,
        options: TuiOptions,
        look: Look,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session, self.options, self.look = session, options, look
        self.replay = session if isinstance(session, ReplaySession) else None
        self.latest: Snapshot = session.tick()  # The newest snapshot, also while the screen is paused
        self.state = ViewState(self.latest, readonly=options.readonly)
        self.knobs = KnobEditor(session, self.latest, clock_s)
        self.trials = DashboardTrials(session)
        self.traces: dict[str, dict[int, TraceSums] | str] = {}
        """By capture: the figures of its traces by rank, or why there are none."""
        self.jobs_seen = JobsSeen()
        self.launch = LaunchFollower(options.launcher, self.jobs_seen)
        self.on_change: Callable[[], object] = lambda: None
        """Called when a prompt, a click or the wheel has changed the state, to redraw. Set by the app."""
        self.tell: Callable[[str], object] = lambda _news: None
        """Called with a line about a recording. Set by the app."""
        self._findings = options.log.watch
        self._told = FindingsTold(session.send)
        self._watched: frozenset[int] | None = None
        self._bursts = self._compared_ns = 0
        self._job = session.job_key

    @property
    def running(self) -> str:
        """Return the running job that was started here, in words; empty: none."""
        return self.options.launcher.running if self.options.launcher is not None else ""

    def read(self) -> None:
        self.latest = self.session.tick()
        try:
            self.options.recorder.write(self.latest)
        except OSError as fault:
            self.end_recording(fault)
        self.jobs_seen.see(self.latest)
        if self.session.job_key != self._job:
            self._job = self.session.job_key
            self.knobs.forget()
            self.trials.stop("another job is shown")
        if self.knobs.wanted is not None:
            self.trials.stop("a value was changed by hand")
        self.knobs.tick(self.latest)
        self.trials.tick(self.latest)

    def update(self) -> None:
        """Show the newest snapshot, unless paused: all that is drawn is from one moment."""
        state, change = self.state, self.knobs.change
        if (look := self._findings.look(self.latest)) is not None:
            self._told.tell(look)
            if not (self.latest.recorded or self.latest.hub_state is HubState.TRACE):  # those are kept
                self.options.log.note(look)
        state.now_ns, state.recorded_bytes = self.latest.at_ns, self.options.recorder.size_bytes
        if state.paused_at_ns is not None:
            state.trouble_since = trouble_of(self.latest)
            return
        state.show(self.latest)
        if change and (not state.change or change.command != state.change.command):
            state.panel_hidden = False
        state.selected_knob = self.knobs.selected
        state.change, state.change_is_news = change, self.knobs.change_is_news
        state.trying, state.slopes = self.trials.running, self.trials.slopes(self._job)
        if not 0 <= self.latest.at_ns - self._compared_ns < COMPARED_EVERY_NS:
            state.compared, self._compared_ns = self.jobs_seen.compare(self.latest), self.latest.at_ns
        state.findings, state.first_line = self._findings.findings, self._findings.line(state.snapshot)
        self.look.faded = state.snapshot.hub_state in (HubState.LOST, HubState.STALE)

    def watch(self) -> None:
        """Request the timelines of the compared ranks, to find late ranks, and of the selected one."""
        selected = self.state.selected
        wanted = self.latest.compared | ({selected.rank} if selected else set())
        if wanted != self._watched:
            self._watched = wanted
            self.session.watch(wanted, self._bursts)

    def measure(self) -> None:
        self._bursts += 1
        self._watched = None
        self.watch()

    def pause(self) -> None:
        if self.state.paused_at_ns is None:
            self.state.pause(self.latest.at_ns)
            if self.replay is not None:
                self.replay.pause(True)

    def resume(self) -> None:
        self.state.resume()
        if self.replay is not None:
            self.replay.pause(False)

    def record(self) -> None:
        recorder, path = self.options.recorder, default_path(self.session.job_key)
        if recorder.size_bytes is not None:
            self.end_recording()
            return
        try:
            recorder.begin(path)
        except ImportError:
            self.tell("no recording without mcap and zstandard: pip install 'overlaptop[record]'")
        except OSError as fault:
            self.tell(f"no recording: {path}: {reason(fault)}")
        else:
            self.tell(f"recording to {path}")

    def end_recording(self, fault: OSError | None = None) -> None:
        recorder = self.options.recorder
        if recorder.size_bytes is not None:
            try:
                recorder.end()
            except OSError as error:
                fault = fault or error
            why = f"the recording ended: {reason(fault)}; " if fault is not None else ""
            self.tell(f"{why}{recorder.summary}")

    def seek(self, seconds: float) -> None:
        if self.replay is not None:
            self.latest = self.replay.seek(self.replay.at_ns + round(seconds * 1e9))
            self._show_moved(self.replay)

    def seek_event(self) -> bool:
        """Go on in a recording to the next finding or trouble; return whether one came."""
        if self.replay is None:
            return False
        watch, trouble = FindingsWatch(), trouble_of(self.latest)
        known = set(by_key(self.state.findings or ()))
        end_s, came = time.monotonic() + MOST_SEARCH_S, False
        for snapshot in self.replay.play(self.replay.recording.last_ns, SOUGHT_EVERY_NS):
            self.latest, before, trouble = snapshot, trouble, trouble_of(snapshot)
            is_other = trouble is not None and (before is None or before.kind is not trouble.kind)
            came = is_other or bool(by_key(watch.look_now(snapshot).shown).keys() - known)
            if came or time.monotonic() > end_s:
                break
        self._show_moved(self.replay)
        return came

    def _show_moved(self, replay: ReplaySession) -> None:
        """Show another moment of a recording, paused if the one before was."""
        self.state.resume()
        replay.pause(replay.paused)  # its time goes on from there
        if replay.paused:
            self.update()
            self.state.pause(self.latest.at_ns)

    def turn(self, steps: int) -> None:
        """Move by this many kept steps from the shown one; in a trace, by any steps."""
        if isinstance(self.session, FinishedSession):
            self.session.turn(steps)
            self.read()
        elif steps < 0 or self.state.paused_at_ns is not None:
            selected, shown = self.state.selected, self.state.shown_step
            if selected is not None and shown is not None:
                self.show_step(beside(selected, shown, steps))

    def show_step(self, number: int | None) -> None:
        """Show this kept step; None: do nothing."""
        if number is None:
            return
        if isinstance(self.session, FinishedSession):
            self.session.choose(number)
            self.read()
        else:
            self.pause()
            self.state.go_to(number)

    def hold_step(self) -> None:
        """Hold the timeline's step, as a chosen past one, for the user to inspect it."""
        state, lanes = self.state, self.state.lanes
        if lanes is None or state.paused_at_ns is not None or not state.goes_on:
            return
        number, ranks = lanes.detail.step, state.details
        self.pause()
        views = [view for view in state.snapshot.ranks if view.rank in ranks]
        if all(step_of(view, number) is not None for view in views):  # else its totals are on their way
            state.go_to(number)

    def select_knob(self, name: str) -> None:
        """Select the knob that keys change; empty: keep the present one. Its change is then shown."""
        self.resume()
        self.state.panel_hidden = False
        if name:
            self.knobs.selected_name = name

    def answer(self, act: Callable[[str], None], words: str) -> str:
        """Run a prompt's answer; return the error, empty: none."""
        try:
            act(words)
        except ValueRefusedError as fault:
            return str(fault)
        self.resume()
        self.read()
        self.on_change()
        return ""

    def select_job(self, key: str) -> None:
        """Watch this job, also while another one starts."""
        self.launch.awaited = False
        if key != self.session.job_key:
            self.end_recording()
        self.session.select(key)
        self._watched = None
        self.resume()
        self.read()

    def offered(self) -> tuple[object, ...]:
        """Return the state that decides which keys are enabled."""
        state, trials = self.state, self.trials
        job, watched = state.snapshot.job is not None, bool(state.snapshot.nodes)
        trying = trials.running, trials.best(self._job)
        return (job, watched, state.moving, state.any_change, self.running, *trying)

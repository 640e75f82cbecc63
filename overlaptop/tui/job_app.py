"""JobApp: what the dashboard reads of the job, and what its keys do to it, on whichever screen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from textual import events

from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.tui.capture.captures import Captures
from overlaptop.tui.draw.confirm import Confirm
from overlaptop.tui.draw.prompt import Prompt
from overlaptop.tui.options import TuiOptions
from overlaptop.tui.screen import DashboardScreen
from overlaptop.tui.state import ViewState
from overlaptop.tui.themed_app import ThemedApp
from overlaptop.tui.tune.control import Control
from overlaptop.tui.tune.knob_values import ValueRefusedError
from overlaptop.tui.workloads.earlier import JobsSeen
from overlaptop.wire.messages import Command


class JobApp(ThemedApp):
    """Reads the session and sends what is due; which screens there are is for those above to say."""

    def __init__(self, session: Session, options: TuiOptions, clock_s: Callable[[], float]) -> None:
        super().__init__(options)
        self.session = session
        self.latest: Snapshot = session.tick()
        self.state = ViewState(self.latest, textured=self.plain or options.ascii, readonly=options.readonly)
        self.control = Control(session, clock_s)
        self.captures = Captures()
        self.seen = JobsSeen()
        self._leaving = False

    async def on_event(self, event: events.Event) -> None:
        """Do all that a key asks for before the next one is looked at: those that were typed right behind
        it go to what it opened.

        Textual would first hand all keys that have come to what has the focus now.
        """
        top = self.screen_stack[-1] if self.screen_stack else None
        if (
            not isinstance(event, events.Key)
            or event.is_forwarded
            or not isinstance(top, DashboardScreen)
            or not top.is_mounted  # its own queue keeps the key until then
        ):
            await super().on_event(event)
            return
        self.app_focus = True  # as Textual has it of a terminal that sends keys
        prompt = top.prompt
        if prompt is not None:
            prompt.take_focus()
        if await self._check_bindings(event.key, priority=True):
            return
        if prompt is not None and await prompt.press(event):
            return
        if event.key == "escape" and prompt is None and self.control.changing.take_back():
            self.show_now()
            return
        await self._check_bindings(event.key)

    def read(self) -> None:
        """Take in what has arrived, and send what is due."""
        self.latest = self.session.tick()
        key = self.latest.job.job if self.latest.job is not None else ""
        self.seen.see(self.latest, next((each for each in self.session.jobs if each.job == key), None))
        self.control.tick(self.latest)
        if self._leaving and self.control.may_leave:
            self.exit()

    def show_now(self) -> None:
        """Draw, after something was asked for, what has become of it so far."""
        raise NotImplementedError

    def go_on(self) -> None:
        """Let a picture that is held still move again."""
        self.state.paused_at_ns = self.state.paused_now_ns = None

    def send(self, command: Command) -> str:
        """Tell the job to do something; returns why that cannot be, empty: it is on its way."""
        fault = self.session.send(command)
        if not fault:
            self.captures.asked(command.id)
            self.read()
            self.show_now()
        return fault

    def action_larger(self) -> None:
        """The knob in hand, one up."""
        self._step(1)

    def action_smaller(self) -> None:
        """The knob in hand, one down."""
        self._step(-1)

    def take_in_hand(self) -> None:
        """The knob that the screen has a cursor on, where it has one. What becomes of it is to be seen."""
        self.go_on()
        if isinstance(self.screen, DashboardScreen) and self.screen.knob:
            self.control.changing.take(self.screen.knob)

    def _step(self, direction: int) -> None:
        self.take_in_hand()
        self.control.step(self.latest, direction)
        self.show_now()

    async def action_exact(self) -> None:
        """Ask for a value of the knob in hand."""
        self.take_in_hand()
        held = self.control.changing.ready(self.latest)
        if held is None:
            self.show_now()  # why not
            return
        # Textual's Input takes 20 ms to import: not before it is needed.
        from overlaptop.tui.tune import asking

        await self.ask(asking.ask_for_value(held.knob, partial(self._take, self.control.type)))

    async def ask_for_range(self) -> None:
        """Ask from where to where the knob in hand is to be searched, unless it cannot be."""
        held = self.control.changing.ready(self.latest)
        if held is None or self.latest.search is not None:
            self.show_now()
            return
        from overlaptop.tui.tune import asking

        self.control.prepare()
        take = partial(self._take, self.control.search)
        await self.ask(asking.ask_for_range(held.knob, take, self.control.unprepare))

    def _take(self, what: Callable[[Snapshot, str], None], words: str) -> str:
        """Do what was answered, or return what is wrong with it."""
        try:
            what(self.latest, words)
        except ValueRefusedError as fault:
            return str(fault)
        self.go_on()
        self.show_now()
        return ""

    async def ask(self, prompt: Prompt) -> None:
        """Put a question at the foot of the screen, in place of one that is there; the next key is its."""
        await self.screen.query(type(prompt)).remove()
        await self.screen.mount(prompt)
        prompt.take_focus()

    async def stop_search(self) -> None:
        """Ask whether to end the search of this dashboard and go back to the value before."""
        if self.control.searching:
            asked = "stop the search and go back to the value before it?"
            await self.ask(Confirm(asked, self._stop_search))

    async def _stop_search(self) -> None:
        self.control.stop_search()
        self.show_now()

    async def action_quit(self) -> None:
        """Leave, at once where that changes no job; else ask."""
        ends = self._ends_on_leaving()
        if ends and not self._leaving:
            await self.ask(Confirm(f"quit? {ends}", self.action_leave))
        else:
            await self.action_leave()

    def _ends_on_leaving(self) -> str:
        """What becomes of a job when the dashboard goes, in words; empty: nothing."""
        starter = self.options.starter
        ends = [f"{starter.running}, started here, ends"] if starter is not None and starter.running else []
        if not self.control.may_leave:
            ends.append("the search stops and goes back to the value before it")
        return "; ".join(ends)

    async def action_leave(self) -> None:
        """Leave; a search of this dashboard first goes back to the value before. Once more: at once."""
        if self._leaving or self.control.may_leave:
            self.exit()
            return
        self._leaving = True
        self.control.stop_search()
        self.notify("going back to the value before the search; q leaves at once", timeout=10)
        self.read()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Under --readonly no key changes anything, and in a trace none turns to a job."""
        return self.state.offers(action)

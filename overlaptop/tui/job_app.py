"""JobApp: what the dashboard reads of the job, and what its keys do to it, on whichever screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from overlaptop.fleet.snapshot import Snapshot
from overlaptop.tui.captures import Captures
from overlaptop.tui.control import Control
from overlaptop.tui.earlier import JobsSeen
from overlaptop.tui.keys import changes_something
from overlaptop.tui.knob_values import ValueRefusedError
from overlaptop.tui.options import Session, TuiOptions
from overlaptop.tui.screens.base import DashboardScreen
from overlaptop.tui.state import ViewState
from overlaptop.tui.themed_app import ThemedApp
from overlaptop.wire.messages import Command

if TYPE_CHECKING:
    from overlaptop.tui.widgets.line_prompt import LinePrompt


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

    def read(self) -> None:
        """Take in what has arrived, and send what is due."""
        self.latest = self.session.tick()
        self.seen.see(self.latest)
        self.control.tick(self.latest)
        if self._leaving and self.control.may_leave:
            self.exit()

    def show_now(self) -> None:
        """Draw, after something was asked for, what has become of it so far."""
        raise NotImplementedError

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
        """The knob that the screen has a cursor on, where it has one."""
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
        from overlaptop.tui import asking

        await self.ask(asking.ask_for_value(held.knob))

    async def ask_for_range(self) -> None:
        """Ask from where to where the knob in hand is to be searched, unless it cannot be."""
        held = self.control.changing.ready(self.latest)
        if held is None or self.latest.search is not None:
            self.show_now()
            return
        from overlaptop.tui import asking

        self.control.prepare()
        await self.ask(asking.ask_for_range(held.knob))

    async def ask(self, prompt: LinePrompt) -> None:
        """Put a question at the foot of the screen, in place of one that is there."""
        await self.screen.query(type(prompt)).remove()
        await self.screen.mount(prompt)
        prompt.focus()

    async def on_line_prompt_answered(self, message: LinePrompt.Answered) -> None:
        """Do it, or say what is wrong with it."""
        from overlaptop.tui.asking import VALUE

        try:
            if message.prompt.about == VALUE:
                self.control.type(self.latest, message.words)
            else:
                self.control.search(self.latest, message.words)
        except ValueRefusedError as fault:
            message.prompt.say(str(fault))
            return
        await message.prompt.remove()
        self.show_now()

    async def on_line_prompt_left(self, message: LinePrompt.Left) -> None:
        """Nothing is done."""
        self.control.unprepare()
        await message.prompt.remove()

    async def action_quit(self) -> None:
        """Leave; a search of this dashboard first goes back to the value before. Once more: at once."""
        if self._leaving or self.control.may_leave:
            self.exit()
            return
        self._leaving = True
        self.control.stop_search()
        self.notify("going back to the value before the search; q leaves at once", timeout=10)
        self.read()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Under --readonly no key changes anything."""
        return not (self.options.readonly and changes_something(f"app.{action}"))

"""Input of a workload's options and its number of processes."""

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.widgets import Static

from overlaptop.tui.widgets.prompt import LineInput, Prompt, focus_at_once
from overlaptop.tui.workloads.views import FormState

_TWO_FIELDS = 40


class OptionInput(Prompt):
    """One line with two fields."""

    BINDINGS: ClassVar = [("tab,shift+tab", "other_field", "processes")]

    def __init__(
        self, form: FormState, typed: Callable[[], None], entered: Callable[[], Awaitable[None]]
    ) -> None:
        """``typed``: called after a change, which is then in the form; ``entered``: called on enter."""
        super().__init__()
        self._form, self._typed = form, typed
        self._options = LineInput("", entered, self._write, id="options", max_length=2000)
        self._nproc = LineInput(form.nproc, entered, self._write, id="nproc", max_length=4)
        self._typed_in = self._options

    def compose(self) -> ComposeResult:
        yield Static(" options ", classes="prompt")
        yield self._options
        yield Static("  processes ", classes="prompt")
        yield self._nproc

    def on_mount(self) -> None:
        self.show_form()
        self.take_focus()

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width < _TWO_FIELDS, "-narrow")

    def show_form(self) -> None:
        """Show the selected workload's typed text, or an example if there is none."""
        self._options.value = options = self._form.words[1]
        self._options.cursor_position = len(options)
        self.show_place()

    def show_place(self) -> None:
        """Show the default for an empty field, as now known."""
        option = next((each for each in self._form.workload.options if not each.is_switch), None)
        example = f"such as {option.flag} {self._form.value(option)[0]}" if option is not None else ""
        self._options.placeholder = example
        plan = self._form.plan
        self._nproc.placeholder = str(plan.nproc) if plan is not None and plan.nproc else ""

    def action_other_field(self) -> None:
        self._typed_in = self._options if self._typed_in is self._nproc else self._nproc
        self._nproc.select_all()
        self.take_focus()

    async def press(self, key: events.Key) -> bool:
        return await self._typed_in.press(key)

    def take_focus(self) -> None:
        focus_at_once(self._typed_in)

    def _write(self) -> None:
        self._form.typed[self._form.workload.name] = self._options.value
        self._form.nproc = self._nproc.value
        self._typed()

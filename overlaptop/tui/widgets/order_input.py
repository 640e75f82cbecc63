"""Where the options of a workload and its number of processes are typed."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from overlaptop.tui.draft import Draft

_TWO_FIELDS = 40


class OrderInput(Horizontal):
    """One line with two fields."""

    DEFAULT_CSS = """
    OrderInput { height: 1; }
    OrderInput > .prompt { width: auto; color: $accent; }
    OrderInput > Input { border: none; height: 1; padding: 0; }
    OrderInput > #options { width: 1fr; }
    OrderInput > #nproc { width: 5; }
    OrderInput.-narrow > .prompt, OrderInput.-narrow > #nproc { display: none; }
    """
    BINDINGS: ClassVar = [("tab,shift+tab", "other_field", "the other field")]

    class Typed(Message):
        """Something changed."""

        def __init__(self, options: str, nproc: str) -> None:
            super().__init__()
            self.options = options
            self.nproc = nproc

    class Ordered(Typed):
        """Enter was pressed."""

    def __init__(self, draft: Draft) -> None:
        super().__init__()
        self._draft = draft

    def compose(self) -> ComposeResult:
        """Prompt and field, twice."""
        yield Static(" options ", classes="prompt")
        yield Input(self._draft.options, id="options", compact=True, max_length=2000, select_on_focus=False)
        yield Static("  processes ", classes="prompt")
        yield Input(self._draft.nproc, id="nproc", compact=True, max_length=4)

    def on_mount(self) -> None:
        """Type here."""
        self.show_draft()
        self._options.focus()

    def on_resize(self, event: events.Resize) -> None:
        """Where there is no room for two fields, one."""
        self.set_class(event.size.width < _TWO_FIELDS, "-narrow")

    def show_draft(self) -> None:
        """Another workload was chosen: what is typed for it, and an example where that is nothing."""
        self._options.value = self._draft.options
        self._options.cursor_position = len(self._draft.options)
        self.show_place()

    def show_place(self) -> None:
        """What is taken where nothing is typed, as it is known by now."""
        self._options.placeholder = self._example()
        plan = self._draft.plan
        self._nproc.placeholder = str(plan.nproc) if plan is not None and plan.nproc else ""

    def action_other_field(self) -> None:
        """From one to the other."""
        (self._nproc if self._options.has_focus else self._options).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Check while typing."""
        event.stop()
        self.post_message(self.Typed(self._options.value, self._nproc.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter."""
        event.stop()
        self.post_message(self.Ordered(self._options.value, self._nproc.value))

    @property
    def _options(self) -> Input:
        return self.query_one("#options", Input)

    @property
    def _nproc(self) -> Input:
        return self.query_one("#nproc", Input)

    def _example(self) -> str:
        row = next((row for row in self._draft.rows() if not row.option.is_switch), None)
        return f"such as {row.option.flag} {row.value}" if row is not None else ""

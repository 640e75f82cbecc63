"""The search for a knob's best value: asks for a range, follows it, and stops it."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.draw.prompt import Confirm
from overlaptop.tui.help.glossary import SEARCH
from overlaptop.tui.keys import SEARCH_KEYS, bindings
from overlaptop.tui.page import PageScreen
from overlaptop.tui.search.view import SearchView
from overlaptop.tui.tune.knob_values import default_range
from overlaptop.tui.widgets.key_bar import BACK_HINT, HELP_HINT, QUIT_HINT


class SearchScreen(PageScreen):
    """The search of this dashboard; where another searches, who that is."""

    title_in_help = SEARCH
    BINDINGS: ClassVar = bindings(SEARCH_KEYS)
    hints = (
        BACK_HINT,
        HELP_HINT,
        ("x", "stop and go back", "screen.stop", "stop"),
        ("a", "search", "app.search", "search"),
        ("u", "tune", "app.tune", "tune"),
        ("↑ ↓", "scroll", "screen.move(4)"),
        QUIT_HINT,
    )
    airy_from = 24

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard, SearchView(dashboard))

    async def on_mount(self) -> None:
        """Ask at once, where nothing was searched yet."""
        if self.dashboard.control.tuner is None:
            await self._ask_for_range()

    def offered(self, action: str) -> bool:
        """A search can be stopped while it goes on, and begun while none does, whoever searches."""
        searching = self.dashboard.control.searching
        if action == "screen.stop":
            return searching
        return action != "app.search" or not (searching or self.state.snapshot.search is not None)

    async def again(self) -> None:
        """The key that opened this screen: stop, or begin another one."""
        if self.dashboard.control.searching:
            await self.action_stop()
        else:
            await self._ask_for_range()

    async def action_stop(self) -> None:
        if self.dashboard.control.searching:
            asked = "stop the search and go back to the value before it?"
            await self.ask(Confirm(asked, self._stop))

    async def _stop(self) -> None:
        self.dashboard.control.stop_search()
        self.dashboard.on_change()

    async def _ask_for_range(self) -> None:
        """From where to where the selected knob is to be searched, unless it cannot be."""
        dashboard, control = self.dashboard, self.dashboard.control
        selected = control.editor.editable(dashboard.latest)
        if selected is None or dashboard.latest.search is not None:
            dashboard.on_change()
            return
        # Textual's Input takes 20 ms to import: not before it is needed.
        from overlaptop.tui.draw.line_prompt import LinePrompt

        asked, usual = f"search {selected.knob.name} from:to", "{}:{}".format(*default_range(selected.knob))
        take = partial(dashboard.answer, control.search)
        await self.ask(LinePrompt(asked, usual, "enter: start   esc: not now", take))

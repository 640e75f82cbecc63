"""Where a filter for ranks is typed."""

from __future__ import annotations

from collections.abc import Callable

from overlaptop.tui.widgets.line_prompt import LineInput, LinePrompt


class FilterInput(LinePrompt):
    """Filters while one types; escape drops the filter, enter keeps it where nothing is wrong with it."""

    DEFAULT_CSS = """
    FilterInput Input { width: 1fr; }
    FilterInput .beside { width: auto; }
    """

    def __init__(self, words: str, take: Callable[[str], str], typed: Callable[[str], str]) -> None:
        """``take``: filters by words; returns what is wrong with them. ``typed``: likewise, while there may
        come more of them.
        """
        super().__init__("filter /", words, "", take)
        self._asked = "filter /"  # what is typed begins right behind it
        example = "3   0-3   overlap<80   step>50ms   host"
        self._input = LineInput(
            words, self._answer, lambda: self._say(typed(self.words)), placeholder=example
        )

    async def action_leave(self) -> None:
        self._input.value = ""
        await super().action_leave()

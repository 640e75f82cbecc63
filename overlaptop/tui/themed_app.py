"""ThemedApp: how the dashboard looks, apart from what it shows."""

from __future__ import annotations

import os
from typing import ClassVar

from textual.app import App
from textual.theme import BUILTIN_THEMES

from overlaptop.tui.draw.themes import DARK, LIGHT, PALETTES, PLAIN, Styles
from overlaptop.tui.options import TuiOptions
from overlaptop.tui.screen import DashboardScreen


class ThemedApp(App[int]):
    """Themes whose colours are made for bars, or no colours at all."""

    ALLOW_SELECT: ClassVar[bool] = False
    CSS = """
    Screen { background: $background; color: $foreground; overflow: hidden; }
    LineView { width: 100%; height: 1; }
    """

    def __init__(self, options: TuiOptions) -> None:
        """Raises ValueError where there is no such theme."""
        self.options = options
        self.plain = bool(os.environ.get("NO_COLOR")) or options.theme == PLAIN.name
        """There are no colours."""
        super().__init__(ansi_color=True if self.plain else None)
        name = PLAIN.name if self.plain else options.theme or DARK.name
        if name not in PALETTES:
            raise ValueError(f"no theme {name!r}: there are {', '.join(PALETTES)}")
        self.inks = Styles(PALETTES[name])
        self._retheme(name)

    @property
    def themes(self) -> list[str]:
        """Those that can be chosen now; none where there are no colours."""
        return [] if self.plain else [name for name in PALETTES if name != PLAIN.name]

    def on_mount(self) -> None:
        """Follow the theme. Textual calls this besides the subclass's own."""
        self.theme_changed_signal.subscribe(self, lambda _theme: self._take_theme())

    def action_next_theme(self) -> None:
        """The next one that has colours."""
        if self.plain:
            self.notify("no colours: NO_COLOR is set, or the plain theme was chosen", timeout=3)
            return
        self.theme = self.themes[(self.themes.index(self.inks.palette.name) + 1) % len(self.themes)]

    def set_theme(self, name: str) -> None:
        """One of `themes`."""
        self.theme = name

    def redraw_everything(self) -> None:
        """Where colours or glyphs have changed."""
        if isinstance(self.screen, DashboardScreen):
            self.screen.redraw(everything=True)

    def _retheme(self, name: str) -> None:
        """Only themes whose colours are made for bars are offered."""
        for palette in PALETTES.values():
            if (palette is PLAIN) == self.plain:
                self.register_theme(palette.theme())
        self.theme = name
        for builtin in BUILTIN_THEMES:
            self.unregister_theme(builtin)

    def _take_theme(self) -> None:
        palette = PALETTES.get(self.theme) or (DARK if self.current_theme.dark else LIGHT)
        self.inks = Styles(palette)
        self.redraw_everything()

"""The colours behind the styles' names, as Textual themes; and styles made of both.

The lanes' colours differ in lightness as well as hue, so that they stay apart for colour-blind eyes, and
each has a contrast of 3 to 1 or more against the screen.
"""

from dataclasses import dataclass, replace

from rich.color import Color
from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme

from overlaptop.tui.draw.segments import WHOLE, TextStyle


@dataclass(frozen=True)
class Palette:
    """Named colours; none if the user wants none (NO_COLOR)."""

    name: str
    dark: bool
    colors: dict[str, str]

    def theme(self) -> Theme:
        """Return the palette for Textual's own widgets (input, command palette)."""
        if not self.colors:
            return replace(BUILTIN_THEMES["ansi-dark"], name=self.name)
        c = self.colors
        return Theme(
            name=self.name, primary=c["accent"], secondary=c["hidden"], warning=c["warning"],
            error=c["error"], success=c["live"], accent=c["accent"], foreground=c["text"],
            background=c["screen"], surface=c["panel"], panel=c["cursor"], dark=self.dark,
        )  # fmt: skip


DARK = Palette(
    "overlaptop-dark",
    True,
    {
        "screen": "#0f1218", "panel": "#171c25", "cursor": "#222b3a", "key": "#222b3a",
        "faint": "#465064", "dim": "#8792a6", "text": "#cdd5e1", "bright": "#f4f7fb", "accent": "#7cb7ff",
        "compute": "#3f7ae8", "phases": "#71819f", "hidden": "#43d6b0", "exposed": "#ff9248",
        "copy": "#b48cf2", "fused": "#e86fb0", "waiting": "#ffe3a3", "hidden_waiting": "#2b8a75",
        "idle": "#5a6478", "track": "#2b3341", "stall": "#b4365a",
        "forward": "#24405f", "backward": "#4a3563", "optimizer": "#5a4a22", "history": "#5d7ba6",
        "live": "#5bd68a", "warning": "#f2c14e", "error": "#ff6b7d", "good": "#5fdcb8", "bad": "#ffa565",
        "far_better": "#6aa5ff", "better": "#2c5aa8", "usual": "#2b3341", "member": "#67738a",
        "worse": "#a85a24", "far_worse": "#ffb27a",
    },
)  # fmt: skip
LIGHT = Palette(
    "overlaptop-light",
    False,
    {
        "screen": "#fbfbf9", "panel": "#f0f1ee", "cursor": "#dfe6f2", "key": "#dfe6f2",
        "faint": "#b4bac4", "dim": "#667080", "text": "#2a313c", "bright": "#05080d", "accent": "#1f5fbf",
        "compute": "#2f66cf", "phases": "#7a879f", "hidden": "#159a7a", "exposed": "#e0660f",
        "copy": "#8b58d6", "fused": "#b3207a", "waiting": "#7d5600", "hidden_waiting": "#0b5a48",
        "idle": "#8b929e", "track": "#d5d9df", "stall": "#cf6079",
        "forward": "#c9dcf2", "backward": "#e2d4f2", "optimizer": "#f0e2b8", "history": "#6f8fbd",
        "live": "#1c8f4a", "warning": "#a86f00", "error": "#c4273f", "good": "#117a60", "bad": "#b44a00",
        "far_better": "#1d4fae", "better": "#8fb4ee", "usual": "#d5d9df", "member": "#9aa2ae",
        "worse": "#eda065", "far_worse": "#a03f00",
    },
)  # fmt: skip
CONTRAST = Palette(
    "overlaptop-contrast",
    True,
    {
        "screen": "#000000", "panel": "#000000", "cursor": "#303030", "key": "#303030",
        "faint": "#7a7a7a", "dim": "#c0c0c0", "text": "#ffffff", "bright": "#ffffff", "accent": "#ffff00",
        "compute": "#0072ff", "phases": "#8c8ca8", "hidden": "#00ffc8", "exposed": "#ffb000",
        "copy": "#ff8cff", "fused": "#ffffff", "waiting": "#ffff9c", "hidden_waiting": "#008f70",
        "idle": "#606060", "track": "#3c3c3c", "stall": "#d4003c",
        "forward": "#003c78", "backward": "#5a0078", "optimizer": "#6e5000", "history": "#a0b8ff",
        "live": "#00ff66", "warning": "#ffff00", "error": "#ff5050", "good": "#00ffc8", "bad": "#ffb000",
        "far_better": "#60a8ff", "better": "#0050c0", "usual": "#3c3c3c", "member": "#8c8c8c",
        "worse": "#a06000", "far_worse": "#ffc840",
    },
)  # fmt: skip
PLAIN = Palette("overlaptop-plain", True, {})
PALETTES = {palette.name: palette for palette in (DARK, LIGHT, CONTRAST, PLAIN)}

FADE = 0.6


class Styles:
    """Styles of one palette, made once each."""

    def __init__(self, palette: Palette) -> None:
        self.palette = palette
        self._made: dict[TextStyle, Style] = {}

    def rich(self, style: TextStyle) -> Style:
        """Return Rich's style; a style without attributes would fail with NO_COLOR."""
        made = self._made.get(style)
        if made is None:
            made = self._made[style] = self._make(style)
        return made

    def _make(self, style: TextStyle) -> Style:
        colors = self.palette.colors
        if not colors:
            pale = style.faded or style.fg in ("dim", "faint")
            return Style(bold=style.bold, dim=pale and not style.reverse, reverse=style.reverse)
        background = colors["screen"]
        fg, bg = colors[style.fg], colors[style.bg] if style.bg else background
        if style.eighths < WHOLE:
            fg = bg = _blend(fg, bg, 1 - style.eighths / WHOLE)
        if style.faded:
            fg = _blend(fg, background, FADE)
            bg = _blend(bg, background, FADE) if style.bg not in ("cursor", "key") else bg
        return Style(color=Color.parse(fg), bgcolor=Color.parse(bg), bold=style.bold)


@dataclass
class Look:
    """How all views draw lines."""

    styles: Styles
    ascii: bool = False
    textured: bool = False  # Parts differ by glyph as well as by colour
    faded: bool = False

    @property
    def plain(self) -> bool:
        return not self.styles.palette.colors


def _blend(color: str, towards: str, share: float) -> str:
    pairs = zip(Color.parse(color).get_truecolor(), Color.parse(towards).get_truecolor(), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)

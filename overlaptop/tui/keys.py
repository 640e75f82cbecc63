"""Every key, once: what is bound, and what the help screen says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from textual.binding import Binding


class Key(NamedTuple):
    """Keys (Textual's names), how help shows them, the action they run, and its words."""

    keys: str
    shown: str
    action: str
    words: str


APP_KEYS = (
    Key("q,ctrl+c", "q  ctrl+c", "quit", "quit"),
    Key("question_mark,f1", "?  F1", "help", "this help"),
    Key("space,p", "space  p", "pause", "hold the picture still, and let it go on; data is kept meanwhile"),
    Key("t", "t", "next_theme", "next theme"),
    Key("g", "g", "textures", "tell parts apart by glyphs as well as colours"),
    Key("n,3", "n  3", "notices", "notices from agents"),
    Key("o,4", "o  4", "jobs", "other jobs, and workloads to start"),
    Key("c", "c", "capture", "have all ranks run torch.profiler for some steps: the ground truth"),
    Key("1", "1", "overview", "overview"),
    Key("2", "2", "rank", "the chosen rank"),
    Key("5", "5", "captures", "the newest capture: progress, folder, overlap beside the live one"),
    Key("m,6", "m  6", "machine", "the machine: NUMA nodes, GPUs and links of the chosen rank's host"),
    Key("ctrl+p", "ctrl+p", "command_palette", "command palette"),
)
TIMELINE_KEYS = (
    Key("plus,equals_sign,z", "+  z", "zoom(1)", "zoom in (wheel: where the pointer is)"),
    Key("minus,underscore,Z", "-  Z", "zoom(-1)", "zoom out"),
    Key("left,h", "←  h", "pan(-1)", "earlier"),
    Key("right,l", "→  l", "pan(1)", "later"),
    Key("0", "0", "whole_step", "the whole step"),
)
OVERVIEW_KEYS = (
    Key("up,k", "↑  k", "move(-1)", "previous rank"),
    Key("down,j", "↓  j", "move(1)", "next rank"),
    Key("pageup", "page up", "page(-1)", "a page up"),
    Key("pagedown", "page down", "page(1)", "a page down"),
    Key("home", "home", "move(-100000)", "first rank"),
    Key("end", "end", "move(100000)", "last rank"),
    Key("enter", "enter", "app.rank", "open the chosen rank (or click it twice)"),
    Key(
        "slash",
        "/",
        "filter",
        "filter ranks: 3   0-3,6   overlap<80   step>50ms   a host   stale   ended   unbound   misplaced",
    ),
    Key("escape", "esc", "back", "drop the filter"),
    Key("s", "s", "sort", "sort by the next column (or click a header)"),
    Key("S,r", "S  r", "reverse", "the other way round"),
    Key("v", "v", "collectives", "list the collectives of the step in the timeline"),
    Key("right_square_bracket", "]", "collective(1)", "next collective"),
    Key("left_square_bracket", "[", "collective(-1)", "previous collective"),
)
RANK_KEYS = (
    Key("escape,backspace", "esc", "back", "back"),
    Key("down,j,right_square_bracket", "↓  j  ]", "collective(1)", "next collective"),
    Key("up,k,left_square_bracket", "↑  k  [", "collective(-1)", "previous collective"),
    Key("pagedown", "page down", "collective(10)", "ten collectives on"),
    Key("pageup", "page up", "collective(-10)", "ten collectives back"),
    Key("enter,f", "enter  f", "fit_collective", "zoom the timeline to the chosen collective"),
    Key("tab,greater_than_sign", "tab  >", "next_rank(1)", "next rank"),
    Key("shift+tab,less_than_sign", "shift+tab  <", "next_rank(-1)", "previous rank"),
)
MACHINE_KEYS = (
    Key("escape,backspace", "esc", "back", "back"),
    Key("up,k", "↑  k", "move(-1)", "previous rank"),
    Key("down,j", "↓  j", "move(1)", "next rank"),
    Key("left,h", "←  h", "across(-1)", "to the node before"),
    Key("right,l", "→  l", "across(1)", "to the node after"),
    Key("home", "home", "move(-100000)", "first rank"),
    Key("end", "end", "move(100000)", "last rank"),
    Key("tab,greater_than_sign", "tab  >", "next(1)", "next host; next rank where there is but one host"),
    Key("shift+tab,less_than_sign", "shift+tab  <", "next(-1)", "previous host, or rank"),
    Key("pagedown", "page down", "scroll(8)", "scroll what is below the map (or the wheel)"),
    Key("pageup", "page up", "scroll(-8)", "scroll back"),
    Key("enter", "enter", "app.rank", "open the chosen rank"),
)
LIST_KEYS = (
    Key("up,k", "↑  k", "move(-1)", "up"),
    Key("down,j", "↓  j", "move(1)", "down"),
    Key("pageup", "page up", "move(-10)", "ten up"),
    Key("pagedown", "page down", "move(10)", "ten down"),
    Key("home", "home", "move(-100000)", "to the first"),
    Key("end", "end", "move(100000)", "to the last"),
    Key("enter", "enter", "open", "open"),
    Key("escape,backspace", "esc", "back", "back"),
)
CAPTURE_KEYS = tuple(key for key in LIST_KEYS if key.action != "open")


def bindings(keys: tuple[Key, ...]) -> list[Binding | tuple[str, str] | tuple[str, str, str]]:
    """For Textual's BINDINGS."""
    return [(key.keys, key.action, key.words) for key in keys]

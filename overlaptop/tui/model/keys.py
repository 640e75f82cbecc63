"""The keys of the screens, and where all actions are available. tui/app.py has the keys that work
everywhere; prompts define their own few.
"""

from typing import NamedTuple

from textual.binding import Binding, BindingType


class Key(NamedTuple):
    """Keys (Textual's names), their form in the help, their action, and their help text."""

    keys: str
    shown: str
    action: str
    words: str
    hint: str = ""  # Hint at the foot of the screen: keys, a blank, a word; empty: shown only in the help


# fmt: off
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
    Key("enter", "enter", "app.rank", "open the selected rank (or click it twice)", "enter rank"),
    Key("slash", "/", "filter",
        "filter ranks: 3 or 0-3,6, overlap<80, waiting>5ms, nvlink>100, a host, stale, lost, "
        "ended, unbound, misplaced", "/ filter"),
    Key("escape", "esc", "back", "from a past step to live; else drop the filter"),
    Key("s", "s", "sort", "sort by the next column (or click a header)"),
    Key("S,r", "S  r", "reverse", "reverse the order"),
    Key("M", "M", "map", "many ranks: colour their marks by the next quantity; ← → select one"),
    Key("v", "v", "collectives", "list the collectives of the timeline's step, or draw the history"),
    Key("full_stop", ".", "collective(1)", "next collective"),
    Key("comma", ",", "collective(-1)", "previous collective"),
    Key("d", "d", "comparison", "hide or show the last change's result"),
)
RANK_KEYS = (
    Key("escape,backspace", "esc", "back", "back", "esc back"),
    Key("down,j,full_stop", "↓  j  .", "collective(1)", "next collective", "↑↓ collective"),
    Key("up,k,comma", "↑  k  ,", "collective(-1)", "previous collective"),
    Key("pagedown", "page down", "collective(10)", "ten collectives on"),
    Key("pageup", "page up", "collective(-10)", "ten collectives back"),
    Key("enter", "enter", "fit_collective", "zoom the timeline to this collective", "enter zoom to it"),
    Key("tab,greater_than_sign", "tab  >", "next_rank(1)", "next rank", "tab next rank"),
    Key("shift+tab,less_than_sign", "shift+tab  <", "next_rank(-1)", "previous rank"),
)
TIMELINES_KEYS = (
    Key("escape,backspace", "esc", "back", "back", "esc back"),
    Key("enter", "enter", "fit_collective", "zoom to the selected collective", "enter zoom to it"),
)
"""And those of the overview."""
MACHINE_KEYS = (
    Key("escape,backspace", "esc", "back", "back", "esc back"),
    Key("up,k", "↑  k", "move(-1)", "previous rank"),
    Key("down,j", "↓  j", "move(1)", "next rank", "↑↓ rank"),
    Key("home", "home", "move(-100000)", "first rank"),
    Key("end", "end", "move(100000)", "last rank"),
    Key("tab,greater_than_sign", "tab  >", "next(1)", "next host; with one host, next rank", "tab next"),
    Key("shift+tab,less_than_sign", "shift+tab  <", "next(-1)", "previous host, or rank"),
    Key("pagedown", "page down", "scroll(8)", "scroll below the table (or the wheel)", "pgdn scroll"),
    Key("pageup", "page up", "scroll(-8)", "scroll back"),
    Key("enter", "enter", "app.rank", "open the selected rank"),
)
SCROLL_KEYS = (
    Key("escape,backspace", "esc", "back", "back", "esc back"),
    Key("up,k", "↑  k", "move(-1)", "up"),
    Key("down,j", "↓  j", "move(1)", "down", "↑↓ select"),
    Key("pageup", "page up", "page(-1)", "a page up"),
    Key("pagedown", "page down", "page(1)", "a page down"),
    Key("home", "home", "move(-100000)", "to the first"),
    Key("end", "end", "move(100000)", "to the last"),
)
LIST_KEYS = (*SCROLL_KEYS, Key("enter", "enter", "open", "open", "enter open"))
FINDINGS_KEYS = (
    *SCROLL_KEYS, Key("enter", "enter", "open", "open the finding's first rank", "enter open")
)
COLLECTIVES_KEYS = (
    *SCROLL_KEYS,
    Key("enter", "enter", "open",
        "show it on the timelines; of several, the one with most exposed time", "enter open"),
    Key("s", "s", "sort", "sort by exposed, waiting, transfer, start, bytes, bus bandwidth", "s sort"),
    Key("S,r", "S  r", "reverse", "reverse the order"),
    Key("tab", "tab", "group(1)", "group rows by operation, bucket, or collective", "tab group"),
    Key("shift+tab", "shift+tab", "group(-1)", "the grouping before"),
)
HOSTS_KEYS = (
    *SCROLL_KEYS,
    Key("r", "r", "retry", "retry unreachable hosts now (also done automatically)", "r try again now"),
)
TUNE_KEYS = (
    Key("escape,backspace", "esc", "back", "back", "esc back"),
    Key("up,k", "↑  k", "move(-1)", "previous knob"),
    Key("down,j", "↓  j", "move(1)", "next knob", "↑↓ knob"),
    Key("enter", "enter", "select",
        "select the knob: [ ] and b change it, on every screen", "enter select"),
    Key("r", "r", "restore", "back to the script's value", "r script's"),
    Key("pagedown", "page down", "scroll(8)", "scroll the log of changes", "pgdn scroll"),
    Key("pageup", "page up", "scroll(-8)", "scroll back"),
)
WORKLOADS_KEYS = (
    Key("escape", "esc", "back", "back", "esc back"),
    Key("up", "↑", "move(-1)", "previous workload"),
    Key("down", "↓", "move(1)", "next workload", "↑↓ workload"),
    Key("tab,shift+tab", "tab", "other_field",
        "switch between options and number of processes", "tab processes"),
    Key("enter", "enter", "run", "run it; asks first if that ends the previous job", "enter run"),
    Key("f9", "F9", "end", "end the job started here; asks first", "F9 end the job"),
    Key("pagedown", "page down", "scroll(4)", "scroll the options and the job's last lines"),
    Key("pageup", "page up", "scroll(-4)", "scroll back"),
)
TRIALS_KEYS = (
    Key("escape,backspace", "esc", "back", "leave; the trials go on", "esc back"),
    Key("s", "s", "stop", "stop the trials: nothing has to be undone", "s stop"),
    Key("k", "k", "keep", "set the best value found", "k keep the best"),
    Key("pagedown,down,j", "page down  ↓", "move(4)", "scroll", "↑↓ scroll"),
    Key("pageup,up", "page up  ↑", "move(-4)", "scroll back"),
)
# fmt: on
CHANGE_KNOB = {"larger", "smaller", "exact", "select", "restore"}
CHANGE_JOB = CHANGE_KNOB | {
    *("trials", "capture", "try_before", "slack", "keep", "workloads", "stop", "run", "end"),
}
"""Actions that change the job or which one runs, or begin to: not with ``--readonly``."""
_OF_JOBS_AND_TRACES = {
    *("earlier_step", "later_step", "slowest", "show_step", "findings", "timelines", "collectives"),
}
NEED_JOB = _OF_JOBS_AND_TRACES | {
    *("try_before", "slack", "capture", "captures", "machine", "measure", "record", "trials", "tune"),
    *("window", "pause"),
}
_NOT_OF_TRACES = NEED_JOB - _OF_JOBS_AND_TRACES | {
    *("larger", "smaller", "exact", "comparison", "jobs", "workloads", "hosts"),
}


def action_name(action: str) -> str:
    """Return ``move`` for ``screen.move(-1)``."""
    return action.partition("(")[0].rpartition(".")[2]


def fits(action: str, *, trace: bool, job: bool, replay: bool) -> bool:
    """Return whether an action can do anything with a trace, else with a job, recorded or not, or none."""
    name = action_name(action)
    if name in ("replay_seek", "next_event"):
        return replay
    if trace:
        return name not in _NOT_OF_TRACES
    return name != "trace_step" and (job or name not in NEED_JOB) and not (replay and name == "record")


def bindings(keys: tuple[Key, ...]) -> list[BindingType]:
    return [
        Binding(
            key.keys, key.action, key.hint.partition(" ")[2], show=bool(key.hint),
            key_display=key.hint.partition(" ")[0] or None, priority="ctrl+c" in key.keys,
        )
        for key in keys
    ]  # fmt: skip

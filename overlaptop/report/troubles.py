"""What is wrong with a job, in words: on the screen, among the notices and in ``--once`` alike. Pure."""

from __future__ import annotations

from overlaptop.fleet.snapshot import RankView
from overlaptop.fleet.trouble import Kind, Trouble
from overlaptop.text import age, clock, printable, runs_of

MOST_NAMED = 6
"""Beyond it ranks are counted."""


def in_brief(trouble: Trouble, now_ns: int) -> str:
    """``rank 1 failed``, ``rank 1 silent for 70 s``, ``no step for 70 s``."""
    for_s = age(max(0, now_ns - trouble.since_ns) / 1e9)
    match trouble.kind:
        case Kind.FAILED:
            return f"{_who(trouble)} failed"
        case Kind.DIED:
            return f"{_who(trouble)} died"
        case Kind.ALL_DIED:
            return "all ranks ended without a word"
        case Kind.SILENT:
            return f"{_who(trouble)} silent for {for_s}"
        case Kind.NO_STEP:
            return f"no step for {for_s}"


def in_full(trouble: Trouble) -> str:
    """The same in a sentence, with what is known of the cause."""
    since = clock(trouble.since_ns)
    match trouble.kind:
        case Kind.FAILED:
            return f"{_who(trouble)} failed: {printable(trouble.why)}{_after(trouble)}"
        case Kind.DIED:
            return f"{_who(trouble)} died without a word: killed, or by os._exit{_after(trouble)}"
        case Kind.ALL_DIED:
            return f"all ranks ended without a word, {_who(trouble)} first: by a signal, or os._exit"
        case Kind.SILENT:
            return f"{_who(trouble)} sent nothing since {since}: stopped, or its interpreter hangs"
        case Kind.NO_STEP:
            return f"no step has ended since {since}"


def color(trouble: Trouble) -> str:
    """Of its words: some rank is to blame, or it is not known which."""
    return "warning" if trouble.kind in (Kind.NO_STEP, Kind.ALL_DIED) else "error"


def ending(view: RankView, first: Trouble | None) -> str:
    """How a rank that has ended did: ``ended``, ``failed: ValueError: ...``, ``died after rank 1``.

    ``first``: the failure that came before all others.
    """
    end = view.end
    if end is None or not end.failed:
        return "ended"
    how = "failed" if end.clean else "died"
    after = f" after {_who(first)}" if first is not None and view.rank not in first.ranks else ""
    return printable(f"{how}{after}{': ' if end.failure else ''}{end.failure}")


def _who(trouble: Trouble) -> str:
    if len(trouble.ranks) > MOST_NAMED:
        return f"{len(trouble.ranks)} ranks"
    return f"rank{'s' * (len(trouble.ranks) > 1)} {runs_of(trouble.ranks)}"


def _after(trouble: Trouble) -> str:
    if not trouble.others:
        return ""
    return f"; {trouble.others} other rank{'s' * (trouble.others > 1)} ended badly after it"

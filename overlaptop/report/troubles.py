"""Troubles of a job in words: for the screen, the notices and ``--once``. Pure."""

import signal
from collections.abc import Sequence

from overlaptop.fleet.hang_cause import Blame, Hang
from overlaptop.fleet.snapshot import RankView
from overlaptop.fleet.trouble import Kind, Trouble, first_of, hang_at_end
from overlaptop.jobs.last_end import LastEnd
from overlaptop.jobs.processes import signal_name
from overlaptop.records import TroubleRecord
from overlaptop.text import age, byte_count, clock, named_ranks, plural, printable, runs
from overlaptop.wire.messages import RankEnd

ENDED_WELL, INTERRUPTED = "every rank ended well", "interrupted (SIGINT)"
_HUNG_BEFORE = " while no step ended"
_TO_DO = {
    Blame.NOT_ENTERED: "the line of the script says what runs instead of the collective",
    Blame.ENDED: "often the data had fewer batches: drop_last=True, or DDP's Join",
    Blame.DELAYED: "the GPU is still at earlier work: nvidia-smi shows whether it runs",
    Blame.DIFFERS: "compare the ranks' lines of the script",
    Blame.CANNOT_LEAVE: "look at the network, and at NCCL's log with NCCL_DEBUG=INFO",
    Blame.UNKNOWN: "nothing was sent: look for the process with ps",
}
MOST_NAMED = 3  # Most runs of ranks that are listed; the ranks of more are counted
MOST_LINES = 3  # Most script lines that are listed; more are counted


def in_brief(trouble: Trouble, now_ns: int) -> str:
    """Return such as ``rank 1 failed``, ``rank 1 silent for 70 s``, ``no step for 70 s``."""
    for_s = age(max(0, now_ns - trouble.since_ns) / 1e9)
    match trouble.kind:
        case Kind.FAILED:
            return f"{_who(trouble)} failed"
        case Kind.DIED:
            return f"{_who(trouble)} {_how(trouble.exit_code)}"
        case Kind.ALL_DIED:
            return f"all ranks {_how(trouble.exit_code)}"
        case Kind.SILENT:
            return f"{_who(trouble)} silent for {for_s}"
        case Kind.WAITING:
            return f"waiting for {_who(trouble)}: {for_s}"
        case Kind.HUNG:
            return f"HUNG for {for_s}"
        case Kind.NO_FIRST_STEP:
            return f"starting for {for_s}"
        case Kind.NO_STEP | Kind.NO_STEP_SEEN:
            return f"no step for {for_s}"


def of_last(end: LastEnd, now_ns: int) -> str:
    """Return such as ``the last one, train.py, ended 12 s ago: rank 1 killed by SIGKILL``."""
    trouble = first_of(end.ends, len(end.ends))
    if end.stopped:
        how = "the overlaptop that had started it ended it"
    else:
        how = in_full(trouble) if trouble is not None else _ended(end.ends)
        if end.hung and trouble is None:
            how += f"{_HUNG_BEFORE}; overlaptop report says where"
    return printable(
        f"the last one, {end.script}, ended {age(max(0, now_ns - end.ended_ns) / 1e9)} ago: {how}"
    )


def ended_well(ranks: Sequence[RankView]) -> str:
    """Return how ranks ended of which none failed: ``every rank ended well``, or ``interrupted (SIGINT)``
    and the hang before.
    """
    how, hang = _ended([view.end for view in ranks if view.end is not None]), hang_at_end(ranks)
    if how == ENDED_WELL or hang is None:
        return how
    blamed = f": {_hang(hang)[0]}" if hang.blame is not Blame.NO_COLLECTIVE else ""
    return printable(f"{how}{_HUNG_BEFORE}{blamed}")


def _ended(ends: Sequence[RankEnd]) -> str:
    return INTERRUPTED if any(end.interrupted for end in ends) else ENDED_WELL


def in_full(trouble: Trouble) -> str:
    return wordings(trouble)[0]


def record(job: str, trouble: Trouble) -> TroubleRecord:
    return TroubleRecord(job, trouble.kind.value, trouble.ranks, trouble.since_ns, in_full(trouble))


def wordings(trouble: Trouble) -> list[str]:
    """Return `in_full`, then shorter forms; all of them keep the most important part."""
    since, who, code = clock(trouble.since_ns), _who(trouble), trouble.exit_code
    match trouble.kind:
        case Kind.FAILED:
            parts = [f"{who} failed: {trouble.why}", _after(trouble)]
        case Kind.DIED:
            parts = [f"{who} {_how(code)}", _why(code), _after(trouble)]
        case Kind.ALL_DIED:
            parts = [f"all ranks {_how(code)}", _why(code), f"; {who} first"]
        case Kind.SILENT:
            parts = [f"{who} sent nothing since {since}", _silent(trouble)]
        case Kind.HUNG:
            assert trouble.hang is not None
            blamed, waits = _hang(trouble.hang)
            at = f": {trouble.hang.at}" if trouble.hang.at else ""
            parts = [f"HUNG: {blamed}", f"{at}{_silent(trouble)}", waits]
        case Kind.WAITING:
            assert trouble.hang is not None
            at = f" {place(trouble.hang.at)}" if trouble.hang.at else ""
            _, waits = _hang(trouble.hang)
            called = f" in {_call(trouble.hang.op, trouble.hang.bytes)}" if waits else ""
            parts = [f"waiting for {who}", at, f" since {since}", f"{waits}{called}"]
        case Kind.NO_STEP:
            parts = [f"no step has ended since {since}{_lines(trouble.hang)}"]
        case Kind.NO_FIRST_STEP | Kind.NO_STEP_SEEN:
            parts = _before_first_step(trouble)
    said = [printable("".join(parts[:end])) for end in range(len(parts), 0, -1)]
    if trouble.kind is Kind.HUNG:  # the start time goes first: `in_brief`, beside it, has the duration
        said.insert(0, said[0].replace("HUNG", f"HUNG since {since}", 1))
    return said


def to_do(trouble: Trouble) -> str:
    """Return where to look next in a hang; empty: not known."""
    return _TO_DO.get(trouble.hang.blame, "") if trouble.hang is not None else ""


def no_step_hint(ranks: Sequence[RankView]) -> str:
    """Return what would end a step, if no rank has ended one."""
    reasons = [view.info.source_reason for view in ranks if view.info is not None and not view.ended]
    stepped = any(view.last is not None for view in ranks)
    return printable(reasons[0]) if reasons and not stepped else ""


def color(trouble: Trouble) -> str:
    unknown = (Kind.WAITING, Kind.NO_STEP, Kind.NO_FIRST_STEP, Kind.NO_STEP_SEEN, Kind.ALL_DIED)
    return "warning" if trouble.kind in unknown else "error"


def condition(view: RankView, first: Trouble | None) -> list[str]:
    """Return why a rank steps no more or not yet, such as ``■ killed by SIGTERM after rank 1`` or ``○ no
    step since 14:03:10 (12 s)``, then shorter forms; empty: it steps. ``first``: the job's first failure.
    """
    if view.ended:
        return [f"■ {each}" for each in endings(view, first)]
    if view.node_lost:
        return []  # its host's connection says it: the rank keeps its last figures
    if view.last is None:
        if view.info is None:
            return ["◌ not seen yet"]
        return ["◌ this step is not known" if view.history else f"◌ {no_step_yet(view)}", "◌ no step yet"]
    if view.stale:
        what = "○ silent" if view.silent else "○ no step"
        since = clock(view.last.start_ns + view.last.step_ns)
        return [f"{what} since {since} ({age(view.age_s)})", f"{what} {age(view.age_s)}"]
    return []


def condition_color(view: RankView, first: Trouble | None) -> str:
    if view.silent or (first is not None and view.rank in first.ranks):
        return "error"
    return "warning" if view.last is not None else "dim"  # no warning before the first step


def endings(view: RankView, first: Trouble | None) -> list[str]:
    """Return ``killed by SIGTERM after rank 1``, then ``SIGTERM after rank 1``, ``SIGTERM``."""
    end = view.end
    if end is None or not end.failed:
        return [INTERRUPTED, "interrupted"] if end is not None and end.interrupted else ["ended"]
    after = f" after {_who(first)}" if first is not None and view.rank not in first.ranks else ""
    if end.failure:
        said = [printable(f"failed{after}: {end.failure}"), f"failed{after}", "failed"]
        return said if after else said[:1]
    how = _how(end.exit_code)
    name = how.removeprefix("killed by ").removeprefix("ended with ")
    return [f"{how}{after}", f"{name}{after}", name]


def _how(exit_code: int | None) -> str:
    if exit_code is None:
        return "died"
    name = signal_name(exit_code)
    return f"killed by {name}" if name else f"ended with exit status {exit_code}"


def _why(exit_code: int | None) -> str:
    if exit_code is None:
        return " without a word: by a signal, or os._exit"
    if exit_code == -signal.SIGKILL:
        return ": by somebody, or by the kernel if memory ran out"
    return "" if exit_code < 0 else ", without a reason: by os._exit"


def _hang(hang: Hang) -> tuple[str, str]:
    """Return such as ``rank 3 has not entered all_reduce 25 MiB`` and ``; rank 0 waits``."""
    who, many, what = _ranks(hang.ranks), len(hang.ranks) > 1, _call(hang.op, hang.bytes)
    has = "have" if many else "has"
    waits = f"; {_ranks(hang.waiting)} wait{'s' * (len(hang.waiting) == 1)}" if hang.waiting else ""
    match hang.blame:
        case Blame.NOT_ENTERED:
            return f"{who} {has} not entered {what}", waits
        case Blame.ENDED:
            return f"{who} {has} ended before {what}", waits
        case Blame.UNKNOWN:
            return f"{who} may not have entered {what}", waits
        case Blame.DELAYED:
            return f"{who} {has} issued {what} and not begun: delayed", waits
        case Blame.DIFFERS:
            return f"{who} issued {_call(hang.other, hang.other_bytes)} instead of {what}", waits
        case Blame.CANNOT_LEAVE:
            return f"all have entered {what}, none leaves", waits
        case Blame.NO_COLLECTIVE:
            return "no collective is known to be awaited", waits


def _lines(hang: Hang | None) -> str:
    lines = hang.lines if hang is not None else ()
    if len(lines) == 1:
        return f"; the script is at {lines[0][1]}"
    named = "".join(f"; {_ranks(ranks)} at {line}" for ranks, line in lines[:MOST_LINES])
    more = len(lines) - MOST_LINES
    return f"{named}; {plural(more, 'other line')}" if more > 0 else named


def _before_first_step(trouble: Trouble) -> list[str]:
    for_s, places = age(trouble.lasted_ns / 1e9), _places(trouble.hang)
    if trouble.ranks and trouble.hang is not None:
        here = len(trouble.hang.ranks)
        whole = here + len(trouble.ranks)
        return [f"{here} of {whole} ranks here after {for_s}", places.replace(":", ";", 1)]
    if trouble.kind is Kind.NO_STEP_SEEN:
        return [f"no step for {for_s}", places, f"; the script goes on, {trouble.why}"]
    return [f"starting for {for_s}", places]


def _places(hang: Hang | None) -> str:
    """Return such as ``: ranks 0-1 are in init_process_group (train.py:12)``; empty if not known."""
    lines = hang.lines if hang is not None else ()
    named = [f"{_ranks(ranks)} {'are' if len(ranks) > 1 else 'is'} {place(line)}" for ranks, line in lines]
    more = [plural(len(named) - MOST_LINES, "other line")] if len(named) > MOST_LINES else []
    return f": {'; '.join(named[:MOST_LINES] + more)}" if named else ""


def no_step_yet(view: RankView) -> str:
    """Return such as ``no step yet: in prepare (train.py:30)`` for a rank without a step."""
    stack = view.stalled.stack if view.stalled is not None else ()
    return printable(f"no step yet: {place(stack[0])}" if stack else "no step yet")


def place(line: str) -> str:
    """Return a line of a RankStalled as ``in prepare (train.py:30)``."""
    path, _, name = line.rpartition(" ")
    at = path.rpartition("/")[2]
    return f"at {at}" if name.startswith("<") else f"in {name} ({at})"


def _silent(trouble: Trouble) -> str:
    return ": stopped, or its interpreter hangs" if trouble.silent else ""


def _call(op: str, size_bytes: int | None) -> str:
    return f"{op.strip('_')} {byte_count(size_bytes)}" if size_bytes else op.strip("_")


def _who(trouble: Trouble) -> str:
    if len(trouble.hosts) == 1:
        return f"all ranks of {printable(trouble.hosts[0])}"
    return _ranks(trouble.ranks)


def _ranks(ranks: tuple[int, ...]) -> str:
    return named_ranks(ranks) if len(runs(ranks)) <= MOST_NAMED else f"{len(ranks)} ranks"


def _after(trouble: Trouble) -> str:
    if not trouble.others:
        return ""
    return f"; {plural(trouble.others, 'other rank')} ended badly after it"

"""Detects that this rank is stuck, and where. Runs in the training process, on the agent's thread."""

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from time import monotonic, time_ns
from types import FrameType

from overlaptop.agent.clock import now_ns
from overlaptop.agent.hooks.process_groups import members_of
from overlaptop.agent.stacks import script_frames
from overlaptop.timeline.averages import median
from overlaptop.wire.messages import MAX_LAST_GROUPS, MAX_STACK, GroupCalls, IssuedCall, RankStalled

HUNG_AFTER_S = 10.0
HUNG_AFTER_STEPS = 5  # A rank is stuck after both limits: 10 s, and five times the median of the last steps
LATE_S = 2.0  # The agent looks ten times a second: in a longer pause the whole process was stopped
LOOK_S = 1.0  # Seconds between two reports of a stuck rank
MAX_FILE_CHARS = 120
MAX_FRAMES = 1000


class HangWatch:
    """Reports where this rank is stuck. On the agent's thread."""

    def __init__(self, folder: Path, notice: Callable[[str, str], None]) -> None:
        """``folder``: the job's working folder. ``notice(level, text)`` is sent to the dashboard."""
        self._folder = folder
        self._notice = notice
        self._began_s, self._began_ns = monotonic(), now_ns()
        self._seen: object = None
        self._moved_s = self._looked_s = self._due_s = 0.0
        self._stuck = False
        self._calls: Mapping[str, tuple[IssuedCall, ...]] = {}

    def before_first_step(self, rank: int, thread: int, seen: object, now_s: float) -> RankStalled | None:
        """Report where the script is if its first step is overdue, as it prepares data or waits for another
        rank, and whether it moves; None: nothing new. ``seen``: changes while the job moves.
        """
        stuck = self._is_stuck((seen, position_of(thread)), HUNG_AFTER_S, now_s)
        if now_s - self._began_s <= HUNG_AFTER_S or now_s < self._due_s:
            return None
        self._due_s, self._stuck = now_s + LOOK_S, True
        return RankStalled(rank, stuck, (), stack_of(thread, self._folder), self._began_ns)

    def between_steps(
        self,
        rank: int,
        thread: int,
        seen: object,
        recent_ns: Sequence[int],
        last_calls: Callable[[], Mapping[str, tuple[IssuedCall, ...]]],
        now_s: float,
    ) -> RankStalled | None:
        """Report where a rank with steps, of these last lengths, is stuck; None: nothing new. ``seen``: as
        above. ``last_calls()``: by group.
        """
        limit_s = max(HUNG_AFTER_S, HUNG_AFTER_STEPS * median(recent_ns) / 1e9)
        was_stuck = self._stuck
        if not self._is_stuck(seen, limit_s, now_s):
            self._stuck = False
            return RankStalled(rank, hung=False) if was_stuck else None
        if was_stuck and now_s < self._due_s:
            return None
        stack = stack_of(thread, self._folder)
        if not was_stuck:
            self._calls = last_calls()
            issued_ns = max((call.at_ns for last in self._calls.values() for call in last), default=0)
            if time_ns() - issued_ns < HUNG_AFTER_S * 1e9:
                self._moved_s = now_s  # a collective that no hook has counted
                return None
            where = " < ".join(stack) or "no line of the script"
            self._notice("info", f"comes no further; Python is at {where}")
        self._due_s, self._stuck = now_s + LOOK_S, True
        return RankStalled(rank, True, groups_of(self._calls), stack)

    def _is_stuck(self, seen: object, limit_s: float, now_s: float) -> bool:
        """Whether ``seen`` has not changed for ``limit_s``. A pause of the whole process does not count."""
        if seen != self._seen or now_s - self._looked_s > LATE_S:
            self._seen, self._moved_s = seen, now_s
        self._looked_s = now_s
        return now_s - self._moved_s > limit_s


def position_of(thread: int) -> list[tuple[int, int]]:
    """Return the instruction at which each of a thread's frames is, innermost first."""
    position: list[tuple[int, int]] = []
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001 - it is documented
    while frame is not None and len(position) < MAX_FRAMES:
        position.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return position


def stack_of(thread: int, folder: Path) -> tuple[str, ...]:
    """Return ``file:line function`` for the innermost `script_frames` of a thread, never a variable.

    Files in ``folder`` are named relative to it. If the innermost line calls torch.distributed, its entry
    names the called function, which tells what the line waits for.
    """
    lines: list[str] = []
    for frame, called, _ in islice(script_frames(thread), MAX_STACK):
        file = frame.f_code.co_filename.removeprefix(f"{folder}/")
        name = called if called and not lines else frame.f_code.co_name
        lines.append(f"{file[-MAX_FILE_CHARS:]}:{frame.f_lineno} {name}")
    return tuple(lines)


def groups_of(calls: Mapping[str, tuple[IssuedCall, ...]]) -> tuple[GroupCalls, ...]:
    """Return these calls by group with torch's members of each group, most recent groups first, at most
    MAX_LAST_GROUPS.
    """
    members = members_of(calls)
    known = [GroupCalls(name, members[name], last) for name, last in calls.items() if name in members]
    known.sort(key=lambda group: -group.calls[-1].at_ns)
    return tuple(known[:MAX_LAST_GROUPS])

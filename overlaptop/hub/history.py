"""The hub's memory of a job for dashboards that join later: the original frames, bounded."""

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from overlaptop.hub.reader_queue import KEPT, Frame, make_frame
from overlaptop.wire.codec import decode
from overlaptop.wire.commands import CommandReport
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.joining import Gather
from overlaptop.wire.messages import (
    Facts,
    Notice,
    RankEnd,
    RankInfo,
    RankStalled,
    StackSamples,
    StepDetail,
    StepTotals,
)

FromRank = (
    RankInfo | StepTotals | StepDetail | Notice | RankEnd | CommandReport | Facts | DeviceSample | Gather
)
"""The messages that a rank may send."""

HISTORY_S = 180.0
_MAX_NOTICES_OF_RANK = 32
_SENT_STACKS_OF_RANK = 10
"""Seconds of stack samples for a new dashboard: it finds in them where a rank sleeps."""


class _Bounds(NamedTuple):
    """Most bytes of the kept frames of one kind: of one rank, and of all ranks together."""

    of_rank_bytes: int
    of_all_bytes: int


_BOUNDS: Mapping[type, _Bounds] = {
    StepTotals: _Bounds(1 << 20, 20 << 20),
    StepDetail: _Bounds(1 << 20, 64 << 20),
    DeviceSample: _Bounds(16 << 10, 8 << 20),
    StackSamples: _Bounds(64 << 10, 64 << 20),
}
_Kept = tuple[int, float, Frame]  # Number of arrival, time of arrival in seconds, frame


@dataclass(slots=True)
class _Recent:
    """Frames of one kind of one rank over the last minutes."""

    frames: deque[_Kept] = field(default_factory=deque)
    size_bytes: int = 0

    def keep(self, kept: _Kept, most_bytes: int) -> None:
        # Age counts from this rank's newest frame, so a hanging rank keeps its last minutes.
        frames, oldest_s = self.frames, kept[1] - HISTORY_S
        frames.append(kept)
        self.size_bytes += len(kept[2].payload)
        while frames and (frames[0][1] < oldest_s or self.size_bytes > most_bytes):
            self.size_bytes -= len(frames.popleft()[2].payload)


@dataclass(slots=True)
class _RankHistory:
    info: bytes | None = None
    pid: int | None = None
    notices: deque[_Kept] = field(default_factory=lambda: deque(maxlen=_MAX_NOTICES_OF_RANK))
    recent: dict[type, _Recent] = field(default_factory=lambda: {kind: _Recent() for kind in _BOUNDS})
    detail: Frame | None = None
    facts: dict[type, bytes] = field(default_factory=dict)
    end: bytes | None = None


class JobHistory:
    """The last minutes of every rank."""

    def __init__(self) -> None:
        self._ranks: dict[int, _RankHistory] = {}
        self._arrivals = itertools.count()

    def keep(self, message: FromRank, payload: bytes, now_s: float) -> Frame:
        number = next(self._arrivals)
        kept = (number, now_s, make_frame(message, payload, number))
        of_rank, kind = self._ranks.setdefault(message.rank, _RankHistory()), type(message)
        match message:
            case RankInfo():
                if of_rank.pid not in (None, message.pid):
                    # The previous process may have run elsewhere, on other devices, and other lines.
                    of_rank.facts.clear()
                    of_rank.recent |= {DeviceSample: _Recent(), StackSamples: _Recent()}
                of_rank.info, of_rank.pid, of_rank.end = payload, message.pid, None
            case Notice():
                of_rank.notices.append(kept)
            case RankEnd():
                of_rank.end = payload
            case _ if kind in _BOUNDS:
                of_rank_bytes, of_all_bytes = _BOUNDS[kind]
                of_rank.recent[kind].keep(kept, min(of_rank_bytes, of_all_bytes // len(self._ranks)))
                if kind is StepDetail:
                    of_rank.detail = kept[2]
            case _ if isinstance(message, Facts):
                of_rank.facts[kind] = payload
        return kept[2]

    def replay(self) -> list[Frame]:
        """Return the frames for a new dashboard: the ranks and their devices, their messages in order of
        arrival, and their ends.
        """
        facts = (payload for of_rank in self._in_order for payload in of_rank.facts.values())
        stacks = (list(each)[-_SENT_STACKS_OF_RANK:] for each in self._of_kind(StackSamples))
        return [
            *(Frame(payload, KEPT) for payload in (*self._infos, *facts)),
            *(frame for _, _, frame in self._recent(*stacks)),
            *(Frame(end, KEPT) for end in self.ends),
        ]

    def timed(self, now_s: float) -> tuple[list[bytes], list[tuple[float, bytes]], list[bytes]]:
        """Return the history with timelines and stacks, for a recording: first the ranks and their devices,
        then their messages with ages in seconds, and last their present state or end. No message is older
        than the oldest kept step: the steps before it are not missing.
        """
        facts = [item for of_rank in self._in_order for item in of_rank.facts.items()]
        first = [*self._infos, *(payload for kind, payload in facts if kind is not RankStalled)]
        last = [*(payload for kind, payload in facts if kind is RankStalled), *self.ends]
        recent = self._recent(*self._of_kind(StepDetail), *self._of_kind(StackSamples))
        begun_s = min((steps[0][1] for steps in self._of_kind(StepTotals) if steps), default=0.0)
        timed = [(max(0.0, now_s - max(at_s, begun_s)), frame.payload) for _, at_s, frame in recent]
        return first, timed, last

    @property
    def ends(self) -> list[bytes]:
        return [of_rank.end for of_rank in self._in_order if of_rank.end is not None]

    @property
    def is_hung(self) -> bool:
        payloads = (of_rank.facts.get(RankStalled) for of_rank in self._in_order)
        last = (decode(payload) for payload in payloads if payload is not None)
        return any(isinstance(each, RankStalled) and each.hung for each in last)

    def detail(self, rank: int) -> Frame | None:
        """Return the newest StepDetail of this rank."""
        of_rank = self._ranks.get(rank)
        return of_rank.detail if of_rank else None

    @property
    def _in_order(self) -> list[_RankHistory]:
        return [of_rank for _, of_rank in sorted(self._ranks.items())]

    @property
    def _infos(self) -> list[bytes]:
        return [of_rank.info for of_rank in self._in_order if of_rank.info is not None]

    def _of_kind(self, kind: type) -> list[deque[_Kept]]:
        return [of_rank.recent[kind].frames for of_rank in self._in_order]

    def _recent(self, *extra: Iterable[_Kept]) -> Iterator[_Kept]:
        usual = (*self._of_kind(StepTotals), *self._of_kind(DeviceSample))
        notices = (of_rank.notices for of_rank in self._in_order)
        return heapq.merge(*usual, *notices, *extra, key=itemgetter(0))

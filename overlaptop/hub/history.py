"""The hub's memory of a job for dashboards that join later: the original frames, bounded."""

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter

from overlaptop.hub.reader_queue import KEPT, Frame, make_frame
from overlaptop.wire.codec import decode
from overlaptop.wire.commands import CommandReport
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.gathering import Gather
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
_MAX_STEPS_OF_RANK = 4096
_MAX_STEPS = 1 << 17
"""Of all ranks together, about 20 MB. With more ranks, each keeps fewer."""
_MIN_STEPS_OF_RANK = 64
_MAX_STEP_BYTES_OF_RANK = 1 << 20
_MAX_NOTICES_OF_RANK = 32
_MAX_SAMPLES_OF_RANK = 128
"""Samples of its GPU: one minute at two a second."""
_MAX_SAMPLES = 1 << 16
"""Of all ranks together."""
_MIN_SAMPLES_OF_RANK = 16
_MAX_SAMPLE_BYTES_OF_RANK = 1 << 18
_MAX_DETAIL_BYTES = 64 << 20
"""Limit for the timelines of all ranks together. One rank has at most `_MAX_STEP_BYTES_OF_RANK`."""

_MAX_STACK_BYTES_OF_RANK = 1 << 16
_SENT_STACKS_OF_RANK = 10
"""Seconds of stack samples for a new dashboard: it finds in them where a rank sleeps."""
_Kept = tuple[int, float, Frame]
"""Number of arrival, time of arrival in seconds, frame."""


@dataclass(slots=True)
class _Recent:
    """Frames of one kind of one rank, bounded in time, number and bytes."""

    most_bytes: int
    frames: deque[_Kept] = field(default_factory=deque)
    size_bytes: int = 0

    def keep(self, kept: _Kept, most: int) -> None:
        # Age counts from this rank's newest frame, so a hanging rank keeps its last minutes.
        frames, oldest_s = self.frames, kept[1] - HISTORY_S
        frames.append(kept)
        self.size_bytes += len(kept[2].payload)
        while frames and (
            len(frames) > most or frames[0][1] < oldest_s or self.size_bytes > self.most_bytes
        ):
            self.size_bytes -= len(frames.popleft()[2].payload)


@dataclass(slots=True)
class _RankHistory:
    info: bytes | None = None
    pid: int | None = None
    notices: deque[_Kept] = field(default_factory=lambda: deque(maxlen=_MAX_NOTICES_OF_RANK))
    steps: _Recent = field(default_factory=lambda: _Recent(_MAX_STEP_BYTES_OF_RANK))
    detail: Frame | None = None
    details: _Recent = field(default_factory=lambda: _Recent(_MAX_STEP_BYTES_OF_RANK))
    stacks: _Recent = field(default_factory=lambda: _Recent(_MAX_STACK_BYTES_OF_RANK))
    facts: dict[type, bytes] = field(default_factory=dict)
    samples: _Recent = field(default_factory=lambda: _Recent(_MAX_SAMPLE_BYTES_OF_RANK))
    end: bytes | None = None


class JobHistory:
    """The last minutes of every rank."""

    def __init__(self) -> None:
        self._ranks: dict[int, _RankHistory] = {}
        self._arrivals = itertools.count()

    def keep(self, message: FromRank, payload: bytes, now_s: float) -> Frame:
        number = next(self._arrivals)
        kept = (number, now_s, make_frame(message, payload, number))
        of_rank = self._ranks.setdefault(message.rank, _RankHistory())
        match message:
            case RankInfo():
                if of_rank.pid not in (None, message.pid):
                    # The previous process may have run elsewhere, on other devices, and other lines.
                    of_rank.facts.clear()
                    of_rank.samples = _Recent(_MAX_SAMPLE_BYTES_OF_RANK)
                    of_rank.stacks = _Recent(_MAX_STACK_BYTES_OF_RANK)
                of_rank.info, of_rank.pid, of_rank.end = payload, message.pid, None
            case StepTotals():
                share = _MAX_STEPS // len(self._ranks)
                of_rank.steps.keep(kept, max(_MIN_STEPS_OF_RANK, min(share, _MAX_STEPS_OF_RANK)))
            case StepDetail():
                of_rank.detail = kept[2]
                share = _MAX_DETAIL_BYTES // len(self._ranks)
                of_rank.details.most_bytes = min(_MAX_STEP_BYTES_OF_RANK, share)
                of_rank.details.keep(kept, _MAX_STEPS_OF_RANK)
            case Notice():
                of_rank.notices.append(kept)
            case RankEnd():
                of_rank.end = payload
            case DeviceSample():
                share = _MAX_SAMPLES // len(self._ranks)
                of_rank.samples.keep(kept, max(_MIN_SAMPLES_OF_RANK, min(share, _MAX_SAMPLES_OF_RANK)))
            case StackSamples():
                of_rank.stacks.keep(kept, _MAX_SAMPLES_OF_RANK)
            case _ if isinstance(message, Facts):
                of_rank.facts[type(message)] = payload
        return kept[2]

    def replay(self) -> list[Frame]:
        """Return the frames for a new dashboard: the ranks and their devices, their messages in order of
        arrival, and their ends.
        """
        facts = (payload for of_rank in self._in_order for payload in of_rank.facts.values())
        stacks = (list(each.stacks.frames)[-_SENT_STACKS_OF_RANK:] for each in self._in_order)
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
        extra = (each.frames for of_rank in self._in_order for each in (of_rank.details, of_rank.stacks))
        recent = self._recent(*extra)
        begun_s = min((kept[0][1] for each in self._in_order if (kept := each.steps.frames)), default=0.0)
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

    @property
    def _in_order(self) -> list[_RankHistory]:
        return [of_rank for _, of_rank in sorted(self._ranks.items())]

    @property
    def _infos(self) -> list[bytes]:
        return [of_rank.info for of_rank in self._in_order if of_rank.info is not None]

    def _recent(self, *extra: Iterable[_Kept]) -> Iterator[_Kept]:
        kinds = ((each.steps.frames, each.notices, each.samples.frames) for each in self._in_order)
        return heapq.merge(*itertools.chain(*kinds), *extra, key=itemgetter(0))

    def detail(self, rank: int) -> Frame | None:
        of_rank = self._ranks.get(rank)
        return of_rank.detail if of_rank else None

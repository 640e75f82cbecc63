"""Batch: the messages read from a hub at one time. Keyframe: the messages that make up its present state.

In a recording (MCAP, profile `PROFILE`) each batch is one MCAP message with frames as of codec.frame. The
topic names the kind and the node: ``live/gpu-a``. A keyframe (``state/gpu-a``) repeats the state so far, so
that a reader can begin there. ``node/gpu-a`` has a NodeClock as JSON. Imports no mcap.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from overlaptop.wire.codec import FrameReader, WireError, decode, encode, frame
from overlaptop.wire.commands import Command, CommandOutcome
from overlaptop.wire.messages import (
    Facts,
    HubStatus,
    Notice,
    RankEnd,
    RankInfo,
    StackSamples,
    StepDetail,
    StepTotals,
    Welcome,
)
from overlaptop.wire.schema import Message

PROFILE = "overlaptop"
LIVE, STATE, NODE = "live", "state", "node"
ENCODING = "overlaptop-frames"
MAX_BATCH_BYTES = 64 << 20  # Maximum size of an unpacked chunk. A larger one counts as damaged.
_MAX_NOTICES = 200
_MAX_COMMANDS = 128
_LAST_STEPS = 16
"""Steps of each rank in a keyframe, measured and others, for a reader that begins in a hang."""
_LAST_DETAILS = 16  # Timelines of all ranks together: as many as ranks are compared


class NodeClock(msgspec.Struct, frozen=True):
    """A host's clock against the recorder's, as in NodeView."""

    offset_ns: int | None = None
    residual_ns: int | None = None


class Batch(NamedTuple):
    """Messages of one hub that were read together."""

    at_ns: int  # Unix time at which they were read
    node: str  # The host by its name. Empty: the reader's own machine.
    kind: str  # LIVE, STATE or NODE
    data: bytes
    after_gap: bool = False  # True if batches before it were lost

    def messages(self) -> list[Message]:
        """Return the messages, oldest first, without those of a newer program that cannot be read."""
        found = []
        try:
            for payload in FrameReader().feed(self.data):
                try:
                    found.append(decode(payload))
                except WireError:
                    continue
        except WireError:
            pass  # no frame begins there: another program wrote this
        return found

    def node_clock(self) -> NodeClock:
        """Return the clock of a NODE batch, unknown if it cannot be read."""
        try:
            return msgspec.json.decode(self.data, type=NodeClock)
        except (msgspec.MsgspecError, ValueError):
            return NodeClock()


def packed(messages: Iterable[Message]) -> bytes:
    return b"".join(frame(encode(message)) for message in messages)


class Keyframe:
    """The messages that bring a new reader up to date, with the last steps and without samples."""

    def __init__(self) -> None:
        self._welcome: Welcome | None = None
        self._status: HubStatus | None = None
        self._of_ranks: dict[tuple[int, type], Message] = {}
        self._steps: dict[tuple[int, bool], deque[StepTotals]] = {}
        """By rank, and whether they are measured."""
        self._details: deque[StepDetail] = deque(maxlen=_LAST_DETAILS)
        self._notices: deque[Notice] = deque(maxlen=_MAX_NOTICES)
        self._commands: dict[tuple[str, type], Message] = {}

    def _turn_to(self, welcome: Welcome) -> None:
        if self._welcome is not None and self._welcome.job != welcome.job:
            self._status = None
            for kept in (self._of_ranks, self._steps, self._details, self._notices, self._commands):
                kept.clear()
        self._welcome = welcome

    def take(self, messages: Sequence[Message]) -> None:
        for message in messages:
            match message:
                case StepTotals():  # most messages, so the others are not tried
                    kind = message.rank, message.measured
                    self._steps.setdefault(kind, deque(maxlen=_LAST_STEPS)).append(message)
                case StepDetail():
                    self._details.append(message)
                case Welcome():
                    self._turn_to(message)
                case HubStatus():
                    self._status = message
                case RankInfo():
                    self._meet(message)
                case Notice():
                    if message not in self._notices:
                        self._notices.append(message)
                case Command(id=key) | CommandOutcome(command=key):
                    self._commands[key, type(message)] = message
                    while len(self._commands) > _MAX_COMMANDS:
                        del self._commands[next(iter(self._commands))]
                case RankEnd():
                    self._of_ranks[message.rank, RankEnd] = message
                case _ if isinstance(message, Facts) and not isinstance(message, StackSamples):
                    self._of_ranks[message.rank, type(message)] = message

    def _meet(self, info: RankInfo) -> None:
        known = self._of_ranks.get((info.rank, RankInfo))
        self._of_ranks.pop((info.rank, RankEnd), None)
        if isinstance(known, RankInfo) and known.pid != info.pid:  # what the process before it ran on
            self._of_ranks = {key: each for key, each in self._of_ranks.items() if key[0] != info.rank}
            self._steps = {key: each for key, each in self._steps.items() if key[0] != info.rank}
            others = [each for each in self._details if each.rank != info.rank]
            self._details = deque(others, maxlen=_LAST_DETAILS)
        self._of_ranks[info.rank, RankInfo] = info

    def messages(self) -> list[Message]:
        """Return the state in the order in which to apply it. Empty before the hub's first answer."""
        if self._welcome is None or self._status is None:
            return []
        # Who a rank is comes first, how it ended last.
        order: dict[type, int] = {RankInfo: 0, RankEnd: 2}
        ranks = sorted(self._of_ranks.items(), key=lambda item: order.get(item[0][1], 1))
        return [
            self._welcome,
            *(message for _, message in ranks),
            *sorted(chain.from_iterable(self._steps.values()), key=lambda step: step.start_ns),
            *self._details,
            *self._notices,
            *self._commands.values(),
            self._status,
        ]

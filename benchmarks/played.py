"""Ranks of a made-up job that send what is due ten times a second, as agents do."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence

from dashboard import SyntheticSession

from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.messages import StepTotals
from overlaptop.wire.schema import Message
from tests.hub.conftest import Rank


class PlayedRanks:
    """Sends the totals of each step, timelines as asked for, and samples of each GPU."""

    def __init__(
        self, ranks: Sequence[Rank], steps_per_s: float, past_s: float, samples_per_s: float = 0.0
    ) -> None:
        """``ranks``: have greeted their hub. The steps of ``past_s`` seconds are sent at once."""
        self.detailed: Collection[int] = ()
        """The ranks whose timelines are sent, as the hub would tell them."""
        self._made = SyntheticSession(len(ranks), steps_per_s, past_s=past_s)
        self._made.watch(range(len(ranks)))
        self._ranks = ranks
        self._steps_per_s, self._samples_per_s = steps_per_s, samples_per_s
        self._began_s = time.monotonic() - past_s
        self._steps = self._samples = 0
        self._over = threading.Event()
        self._send()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and close the connections."""
        self._over.set()
        self._thread.join()
        for rank in self._ranks:
            rank.close()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            self._send()

    def _send(self) -> None:
        passed_s = time.monotonic() - self._began_s
        steps, samples = int(passed_s * self._steps_per_s), int(passed_s * self._samples_per_s)
        for number, rank in enumerate(self._ranks):
            messages: list[Message] = []
            for step in range(self._steps, steps):
                made = self._made.step(number, step)
                messages += [
                    each for each in made if number in self.detailed or isinstance(each, StepTotals)
                ]
            messages += [_sample(number) for _ in range(self._samples, samples)]
            rank.listen()
            rank.send(*messages)
        self._steps, self._samples = steps, samples


def _sample(rank: int) -> DeviceSample:
    return DeviceSample(
        rank, time.time_ns(), 281_000_000_000, 280_000_000_000, 1_200_000_000, 900_000_000, 0.94, 0.51,
        0.62, 1 << 36, 650_000, 1_700_000_000, 3_201_000_000, (), (),
    )  # fmt: skip

"""Reads torch's flight recorder every few seconds at most: a dump holds the GIL for a while."""

from __future__ import annotations

import math
from time import monotonic

from overlaptop.agent.sources.base import CollectiveCall
from overlaptop.agent.sources.flight_recorder import FlightRecorder, FlightRecorderError
from overlaptop.wire.messages import IssuedCall

PERIOD_S, SHARE = 20.0, 0.005
"""It is read no more often, and for no more of the time than so: 2,000 entries take some 20 ms."""
WATCHED_PERIOD_S, WATCHED_SHARE = 3.0, 0.01
"""The same when a dashboard shows this rank's timeline."""


class LaunchLog:
    """What the host has issued, for some of the steps; the same ones on all ranks."""

    def __init__(self) -> None:
        self._refusal = ""
        self._recorder: FlightRecorder | None = None
        self._read_step, self._took_s = -1, 0.0
        """The first of the steps for which it was read last, and how long that took."""
        try:
            self._recorder = FlightRecorder()
        except FlightRecorderError as refusal:
            self._refusal = str(refusal)

    @property
    def reason(self) -> str:
        """Why collectives go by their kernels' names; empty where they do not."""
        return f"collectives have no names: {self._refusal}" if self._refusal else ""

    @property
    def was_short(self) -> bool:
        """What it was asked for when it was read last was more than the flight recorder keeps."""
        return self._recorder is not None and self._recorder.was_short

    def due(self, steps: range, step_ns: int, *, watched: bool) -> bool:
        """Whether to read it for these steps: one of them is on a grid of a period's steps or more."""
        if self._recorder is None:
            return False
        period_s, share = (WATCHED_PERIOD_S, WATCHED_SHARE) if watched else (PERIOD_S, SHARE)
        period_steps = max(period_s, self._took_s / share) * 1e9 / max(step_ns, 1)
        grid = 1 << max(0, math.ceil(math.log2(period_steps)))
        first_on_grid = math.ceil(steps.start / grid) * grid
        overdue = steps.start - self._read_step > 2 * grid
        return first_on_grid in steps or self._read_step < 0 or overdue

    def read(self, from_step: int, from_unix_ns: int, before_ns: int) -> list[CollectiveCall] | None:
        """What was issued since then, when `from_step` began, and in the `before_ns` before it; None
        where it is not known.

        Never call it while a CUDA graph is captured.
        """
        assert self._recorder is not None, "it was due"
        began_s = monotonic()
        try:
            launches = self._recorder.read(from_unix_ns, before_ns)
        except FlightRecorderError as refusal:
            self._recorder, self._refusal = None, str(refusal)
            return None
        self._refusal = "the flight recorder is short: set TORCH_FR_BUFFER_SIZE" if launches is None else ""
        self._read_step, self._took_s = from_step, monotonic() - began_s
        return launches

    def last_calls(self) -> dict[str, tuple[IssuedCall, ...]]:
        """The last collectives of each group; empty where it is not known. As `read`, and as rarely."""
        try:
            return self._recorder.last_calls() if self._recorder is not None else {}
        except FlightRecorderError:
            return {}

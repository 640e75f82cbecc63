"""Names the collectives of traced steps: by the flight recorder, or as in a known step that they repeat.

The flight recorder is read every few seconds at most, but a training loop issues the same collectives in
each step. If a step launches the same NCCL kernels on the same streams between the same marks, in the same
order, as a looked-up step, it issued the same collectives, unless steps alternate. So a looked-up step is
used only if the steps before it issued the same, and never again after the same kernels turned out to be
other collectives. One case goes unseen: a rarer step with the same kernels but other sizes, until it is
looked up.

NCCL's kernels are joined to the collectives that launched them by their common order, never by a guess.
Between two marks the flight recorder logs collectives in the order of issue, and CUPTI records NCCL's
kernels in the order of launch. If both have the same number, and each kernel's kind fits its launch, they
are joined one by one. A launch of several operations may run any number of kernels: if there is exactly one
such launch, it gets the surplus kernels. Anything else stays unmatched.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic

from overlaptop.agent.sources.base import CollectiveCall
from overlaptop.agent.sources.flight_recorder import FlightRecorder, FlightRecorderError
from overlaptop.agent.sources.graph_captures import GraphCaptureWatch
from overlaptop.agent.sources.kernel_steps import LaunchInterval, NcclKernel, TracedStep
from overlaptop.timeline.collectives import sum_links_where_known
from overlaptop.wire.messages import CollectiveSpan, IssuedCall

PERIOD_S, SHARE = 20.0, 0.005
"""Shortest time between two look-ups, and the largest share of time for them: 2,000 entries take 20 ms."""
WATCHED_PERIOD_S, WATCHED_SHARE = 3.0, 0.01  # The same while a dashboard shows this rank's timeline
MOST_EARLY_READS, EARLY_PERIOD_S = 64, 30.0
"""Reads of steps that repeat no known one are counted: reads 1, 2, 4, 8 ... up to the first number are
looked up at once. Counting restarts when a setting changes, or this long after the last early look-up."""
REPEATS = 4  # Steps before a looked-up one that must have issued the same collectives
SHORT = "the flight recorder is short: set TORCH_FR_BUFFER_SIZE"
SELDOM_NAMED = "collectives have names in few steps: set TORCH_FR_BUFFER_SIZE={}"


class CollectiveNaming:
    """Looks up the launches of some steps, the same on all ranks. On the agent's thread."""

    def __init__(self, captures: GraphCaptureWatch) -> None:
        self._captures = captures
        self._repeated = RepeatedStep()
        self._recorder: FlightRecorder | None = None
        self._refusal = self._seldom = ""
        self._short = False  # Whether the last look-up came too late for steps that repeat no known one
        self._changed_step = 0  # Settings may differ from this step on. Set on the job's thread.
        self._read_step, self._took_s = -1, 0.0  # First step of the last look-up, and its duration
        self._unknown_reads, self._early_s = 0, 0.0
        """Reads of steps that repeat no known one, and the time of the last early look-up."""
        try:
            self._recorder = FlightRecorder()
        except FlightRecorderError as refusal:
            self._refusal = str(refusal)

    @property
    def reason(self) -> str:
        """Why collectives have no names, or only in few steps; empty: they have."""
        refusal = self._refusal or (SHORT if self._short else "")
        return f"collectives have no names: {refusal}" if refusal else self._seldom

    def settings_changed(self, step: int) -> None:
        """Called as this step begins: from it on, steps may issue others with the same kernels."""
        self._changed_step = step

    def name(self, steps: Sequence[TracedStep], host_step_ns: int, *, watched: bool) -> list[TracedStep]:
        """Return these steps, read together, with their collectives where these are known.

        ``host_step_ns``: length of a recent step by the host's clock.
        """
        if self._changed_step != self._repeated.from_step:
            self._repeated.forget(self._changed_step)
            self._unknown_reads = 0
        launches = self._look_up(steps, host_step_ns, watched=watched)
        named = [self._named(step, launches) for step in steps]
        recorder = self._recorder
        if launches and recorder and recorder.was_short and not any(map(self._repeated.knows, steps)):
            most = max(step.collective_count or 0 for step in steps)
            self._seldom = SELDOM_NAMED.format(2 * (REPEATS + 2) * most)
        return named

    def last_calls(self) -> dict[str, tuple[IssuedCall, ...]]:
        """Return the last collectives of each group, oldest first; empty if unknown. This is slow."""
        with self._captures.held_off() as free:
            try:
                return self._recorder.last_calls() if free and self._recorder is not None else {}
            except FlightRecorderError:
                return {}

    def _named(self, step: TracedStep, looked_up: list[CollectiveCall] | None) -> TracedStep:
        if looked_up is not None:
            self._repeated.learn(step, looked_up)
            return join(step, looked_up)
        # Without a recorder nothing would confirm that steps still repeat.
        repeated = None if self._refusal else self._repeated.launches(step)
        if repeated is not None:
            return join(step, repeated)
        if self._refusal or self._short:  # name collectives by their kernels
            return replace(join(step, []), comm_kernels_ns=None, matched_ns=None)
        return step

    def _look_up(
        self, steps: Sequence[TracedStep], host_step_ns: int, *, watched: bool
    ) -> list[CollectiveCall] | None:
        """Return the launches in these steps and before; None if no look-up is due, or they are unknown."""
        if not any(interval.kernels for step in steps for interval in step.intervals):
            return []
        if self._recorder is None:
            return None
        # Repeating steps are looked up as rarely as unwatched ones: only to confirm that they repeat.
        watched = watched and not all(map(self._repeated.knows, steps))
        is_due = self._is_due(steps, host_step_ns, watched=watched)
        with self._captures.held_off() as free:
            if not free or not (self._count_if_unknown(steps) or is_due):
                return None
            # On the host's clock: steps of equal GPU time may differ there.
            longest_ns = max(s.intervals[-1].to_unix_ns - s.intervals[0].from_unix_ns for s in steps)
            began_s = monotonic()
            try:
                launches = self._recorder.read(
                    steps[0].intervals[0].from_unix_ns, (REPEATS + 2) * longest_ns
                )
            except FlightRecorderError as refusal:
                self._recorder, self._refusal = None, str(refusal)
                return None
        self._short = launches is None and not any(map(self._repeated.knows, steps))
        self._seldom = ""
        self._read_step, self._took_s = steps[0].step, monotonic() - began_s
        return launches

    def _is_due(self, steps: Sequence[TracedStep], host_step_ns: int, *, watched: bool) -> bool:
        """Whether one of these steps lies on a grid of a period's steps, or a look-up is overdue."""
        period_s, share = (WATCHED_PERIOD_S, WATCHED_SHARE) if watched else (PERIOD_S, SHARE)
        period_steps = max(period_s, self._took_s / share) * 1e9 / max(host_step_ns, 1)
        grid = 1 << max(0, math.ceil(math.log2(period_steps)))
        first, last = steps[0].step, steps[-1].step
        is_on_grid = math.ceil(first / grid) * grid <= last
        return is_on_grid or self._read_step < 0 or first - self._read_step > 2 * grid

    def _count_if_unknown(self, steps: Sequence[TracedStep]) -> bool:
        """Count this read if its steps repeat no known one. Return whether to look them up early."""
        if any(map(self._repeated.knows, steps)):
            return False
        if monotonic() - self._early_s > EARLY_PERIOD_S:
            self._unknown_reads = 0
        self._unknown_reads += 1
        is_early = self._unknown_reads <= MOST_EARLY_READS and self._unknown_reads.bit_count() == 1
        if is_early:
            self._early_s = monotonic()
        return is_early


_Kernels = tuple[tuple[tuple[str, int, bool], ...], ...]
_Launches = tuple[tuple[CollectiveCall, ...], ...]


class RepeatedStep:
    """The collectives that each step issues, if steps repeat."""

    def __init__(self) -> None:
        self.forget(0)

    def forget(self, from_step: int) -> None:
        """From this step on steps may issue others: a setting has changed."""
        self.from_step = from_step
        self._kernels: _Kernels = ()
        self._launches: _Launches = ()
        self._ambiguous = False
        """True if the same kernels have been other collectives."""

    def learn(self, step: TracedStep, launches: Sequence[CollectiveCall]) -> None:
        """Learn from a looked-up step; `launches` as for `join`, including those of the steps before it."""
        kernels = _kernels_of(step)
        if step.step < self.from_step or not any(kernels):
            return
        own = tuple(tuple(map(_timeless, launches_in(interval, launches))) for interval in step.intervals)
        if kernels == self._kernels:
            self._ambiguous = self._ambiguous or own != self._launches
            return
        once = [launch for of_interval in own for launch in of_interval]
        # Skip the log's first launch: some of its operations may be missing.
        before = launches[1 : launches_before(step.intervals[0].from_unix_ns, launches)]
        if once and [*map(_timeless, before[-REPEATS * len(once) :])] == once * REPEATS:
            self._kernels, self._launches = kernels, own

    def knows(self, step: TracedStep) -> bool:
        return not self._ambiguous and step.step >= self.from_step and _kernels_of(step) == self._kernels

    def launches(self, step: TracedStep) -> list[CollectiveCall] | None:
        """Return the step's collectives, as `join` takes them; None if unknown.

        They have no sequence numbers: steps that were not seen may have issued more.
        """
        if not self.knows(step):
            return None
        return [
            replace(launch, issued_ns=interval.from_unix_ns)
            for interval, own in zip(step.intervals, self._launches, strict=True)
            for launch in own
        ]


def _kernels_of(step: TracedStep) -> _Kernels:
    return tuple(
        tuple((kernel.name, kernel.stream, kernel.replayed) for kernel in interval.kernels)
        for interval in step.intervals
    )


def _timeless(launch: CollectiveCall) -> CollectiveCall:
    return replace(launch, issued_ns=0, sequence=None)


def join(step: TracedStep, launches: Sequence[CollectiveCall]) -> TracedStep:
    """Return the step with its kernels joined to `launches`, which are sorted by time and include all
    launches of the step. A kernel without a known launch counts as a collective.
    """
    spans: list[CollectiveSpan] = []
    links = []
    kernels_ns = matched_ns = 0
    for interval in step.intervals:
        logged = [kernel for kernel in interval.kernels if not kernel.replayed]
        matched = match(logged, launches_in(interval, launches))
        unmatched = interval.kernels if matched is None else [k for k in interval.kernels if k.replayed]
        groups = list(matched or ())
        groups += [(_of_kernel(kernel), [kernel]) for kernel in unmatched]
        for call, kernels in groups:
            took_ns = sum(kernel.end_ns - kernel.start_ns for kernel in kernels)
            kernels_ns += took_ns
            matched_ns += took_ns if call.bytes is not None else 0
            start_ns, end_ns = min(k.start_ns for k in kernels), max(k.end_ns for k in kernels)
            spans.append(call.span(start_ns, end_ns))
            links.append(call.link)
    spans.sort(key=lambda each: each.start_ns)
    return replace(
        step,
        collectives=tuple(spans),
        collective_count=len(spans),
        link=sum_links_where_known(links),
        named=True,
        comm_kernels_ns=kernels_ns,
        matched_ns=matched_ns,
    )


def launches_in(interval: LaunchInterval, launches: Sequence[CollectiveCall]) -> Sequence[CollectiveCall]:
    """Return the launches of this interval; `launches` are sorted by time."""
    first, stop = (
        launches_before(at_ns, launches) for at_ns in (interval.from_unix_ns, interval.to_unix_ns)
    )
    return launches[first:stop]


def launches_before(unix_ns: int, launches: Sequence[CollectiveCall]) -> int:
    """Count the launches before this time; `launches` are sorted by time."""
    return bisect_left(launches, unix_ns, key=lambda launch: launch.issued_ns)


def match(
    kernels: Sequence[NcclKernel], launches: Sequence[CollectiveCall]
) -> list[tuple[CollectiveCall, list[NcclKernel]]] | None:
    """Return each launch with its kernels, given both in order; None if the order is ambiguous."""
    if len(kernels) == len(launches):
        shares = [1] * len(launches)
    elif sum(launch.several for launch in launches) == 1 and len(kernels) > len(launches):
        left_over = len(kernels) - len(launches)
        shares = [1 + left_over * launch.several for launch in launches]
    else:
        return None
    matched, at = [], 0
    for launch, share in zip(launches, shares, strict=True):
        own = list(kernels[at : at + share])
        if not all(_suits(kernel, launch, counted=share == 1) for kernel in own):
            return None
        matched.append((launch, own))
        at += share
    return matched


def _of_kernel(kernel: NcclKernel) -> CollectiveCall:
    return CollectiveCall(kernel.name, None, "", kernel.beside_compute, "nccl", "cuda", -1)


def _suits(kernel: NcclKernel, launch: CollectiveCall, *, counted: bool) -> bool:
    """Whether the launch may have run this kernel. NCCL's generic kernel fits any launch of one kernel."""
    return kernel.collective in launch.kernels or (kernel.collective == "Generic" and counted)

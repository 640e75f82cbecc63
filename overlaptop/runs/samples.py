"""Samples: the steps of a run, with a value of each figure for each step. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median, quantiles

from overlaptop import text
from overlaptop.fleet.wait_breakdown import RESTARTED_NS
from overlaptop.fleet.waits import FIRST_STEPS, StepWaits
from overlaptop.fleet.window import longest_going_ns, overlap_of
from overlaptop.records import Figure, Work
from overlaptop.timeline.arrivals import WaitTimes
from overlaptop.timeline.averages import mean_of_known
from overlaptop.trials.effect import LOOKS
from overlaptop.wire.bounds import MAX_INT64
from overlaptop.wire.messages import StepTotals

_MOST_TOTALS = 1 << 18  # Maximum steps of all ranks together, some 80 MB. The newest are kept.
_LEAST_STEPS = 12
"""Minimum steps of a block, unless there are only 7 blocks. A slow moment, or a burst of measured steps,
lasts for several steps. It would fill several shorter blocks, and count once for each."""
_LEAST_OF_ORDER = 0.1  # Minimum share of compared steps that have an order of operations
_BLOCKS = tuple(number for number in LOOKS if number <= 28)


class Samples:
    """Steps, and then their collectives. Either may be added repeatedly."""

    def __init__(
        self, from_ns: int = 0, to_ns: int = MAX_INT64, *, first_step: int = FIRST_STEPS, begun_ns: int = 0
    ) -> None:
        """Keep steps that begin between these Unix times. Steps before `first_step`, and those that ended
        before `begun_ns`, count only if there are no others.
        """
        self._first_step, self._begun_ns = first_step, begun_ns
        self._from_ns, self._to_ns = from_ns, to_ns
        self._steps: dict[int, dict[int, StepTotals]] = {}
        self._newest: dict[int, StepTotals] = {}
        self._totals = 0
        self._times: dict[int, list[WaitTimes]] = {}
        self._transfers: dict[int, Mapping[str, float]] = {}
        self._operations: dict[int, tuple[str, ...]] = {}
        self._going: dict[int, dict[int, StepTotals]] | None = None

    def add_steps(self, steps: Iterable[StepTotals]) -> None:
        self._going = None
        for step in steps:
            if not self._from_ns <= step.start_ns < self._to_ns:
                continue
            newest = self._newest.get(step.rank, step)
            if step.step <= newest.step and step.start_ns >= newest.start_ns + RESTARTED_NS:
                # The job was started again: it counts from 0 again.
                self._from_ns, self._totals = newest.start_ns + RESTARTED_NS, 0
                for kept in (self._newest, self._steps, self._times, self._transfers, self._operations):
                    kept.clear()
                newest = step
            if step.step >= newest.step:
                self._newest[step.rank] = step
            of_ranks = self._steps.setdefault(step.step, {})
            self._totals += step.rank not in of_ranks
            of_ranks[step.rank] = step
        while self._totals > _MOST_TOTALS and len(self._steps) > 1:
            oldest = next(iter(self._steps))
            self._totals -= len(self._steps.pop(oldest))
            for of_step in (self._times, self._transfers, self._operations):
                of_step.pop(oldest, None)

    def add_waits(self, waits: StepWaits) -> None:
        """Add the breakdown of a known step, not one of before the window or a restart."""
        known = self._steps.get(waits.step, {}).values()
        if not any(abs(step.start_ns - waits.start_ns) < RESTARTED_NS for step in known):
            return
        self._times[waits.step] = list(waits.times.values())
        if waits.collectives and waits.step not in self._operations:
            self._operations[waits.step] = _operations(waits)
            self._transfers[waits.step] = _transfers(waits)

    @property
    def going(self) -> dict[int, dict[int, StepTotals]]:
        """The steps that count, by number and rank: without the first ones, those of before the recording,
        those that a command disturbed, and those in which the job stalled.
        """
        if self._going is None:
            found = {
                number: of_ranks
                for number, of_ranks in sorted(self._steps.items())
                if not any(step.disturbed for step in of_ranks.values())
            }
            ends_ns = {
                number: max(step.start_ns + step.step_ns for step in of_ranks.values())
                for number, of_ranks in found.items()
            }
            found = {at: each for at, each in found.items() if ends_ns[at] >= self._begun_ns} or found
            found = {at: each for at, each in found.items() if at >= self._first_step} or found
            limit_ns = longest_going_ns([round(_length_ns(of_ranks)) for of_ranks in found.values()])
            self._going = {number: each for number, each in found.items() if _length_ns(each) <= limit_ns}
        return self._going

    @property
    def steps(self) -> list[StepTotals]:
        """The same steps of all ranks."""
        return [step for of_ranks in self.going.values() for step in of_ranks.values()]

    def lengths_ns(self) -> list[float]:
        return [_length_ns(of_ranks) for of_ranks in self.going.values()]

    def overlap(self) -> float | None:
        return overlap_of([step for step in self.steps if step.measured])

    def exposed_ns(self) -> int | None:
        return mean_of_known(step.exposed_ns for step in self.steps)

    def exposed_times(self) -> WaitTimes | None:
        """Return the mean over the compared steps and their ranks. None if no step was compared."""
        every = [times for step in self.going for times in self._times.get(step, ())]
        if not every:
            return None
        return WaitTimes(*(round(fmean(figures)) for figures in zip(*every, strict=True)))

    def work(self, world_size: int) -> Work:
        known = [step.comm_bytes for step in self.steps if step.comm_bytes is not None]
        seen = Counter(self._operations[step] for step in self.going if step in self._operations)
        least = max(2, _LEAST_OF_ORDER * seen.total())
        orders = [list(order) for order, steps in seen.most_common() if steps >= least]
        return Work(
            world_size=world_size,
            comm_bytes=round(median(known)) if known else None,
            operations=orders or None,
        )

    def figures(self) -> list[Figure]:
        """Return every figure known for a step: of the job, then by operation, group, bucket and rank."""
        values: defaultdict[str, dict[int, float]] = defaultdict(dict)
        for at, (step, of_ranks) in enumerate(self.going.items()):
            values["step"][at] = _length_ns(of_ranks)
            measured = [each for _, each in sorted(of_ranks.items()) if each.measured]
            if measured and len(measured) == len(of_ranks):
                for name, value in _of_step(measured).items():
                    values[name][at] = value
            if times := self._times.get(step):
                values["waiting"][at] = fmean(each.exposed_wait_ns for each in times)
                values["transfer"][at] = fmean(each.exposed_transfer_ns for each in times)
            for name, value in self._transfers.get(step, {}).items():
                values[name][at] = value
        ranked = {name: at for at, name in enumerate(("step", "overlap", "exposed", "waiting", "transfer"))}
        names = sorted(values, key=lambda name: (ranked.get(name, len(ranked)), name.startswith("rank ")))
        return [_figure(name, values[name]) for name in names]


def _length_ns(of_ranks: Mapping[int, StepTotals]) -> float:
    return fmean(step.step_ns for step in of_ranks.values())


def _of_step(measured: Sequence[StepTotals]) -> dict[str, float]:
    found = {}
    if (overlap := overlap_of(measured)) is not None:
        found["overlap"] = overlap
    for name in ("exposed", "compute"):
        own_ns = {step.rank: getattr(step, f"{name}_ns") for step in measured}
        if None not in own_ns.values():
            found[name] = fmean(own_ns.values())
            found |= {f"rank {rank} {name}": float(ns) for rank, ns in own_ns.items()}
    return found


def _operations(waits: StepWaits) -> tuple[str, ...]:
    """Return the collectives in each group's own order: the order across groups may vary."""
    in_order = sorted(waits.collectives, key=lambda each: each.group)
    return tuple(f"{each.group}: {each.op} {each.bytes}" for each in in_order)


def _transfers(waits: StepWaits) -> dict[str, float]:
    """Return the transfer times of a step in ns, by operation, group and bucket (collectives of the same
    operation, group and bytes).
    """
    found: Counter[str] = Counter()
    for each in waits.collectives:
        known = [ns for rank in each.ranks if (ns := each.transfer_ns(rank)) is not None]
        if known:
            bucket = f"bucket {each.op} {text.byte_count(each.bytes)} {each.group}"
            for name in (f"op {each.op}", f"group {each.group}", bucket):
                found[name] += round(fmean(known))
    return dict(found)


def _figure(name: str, values: Mapping[int, float]) -> Figure:
    """`values`: by the step's place in the run."""
    blocks = _blocks(values)
    spread = None
    if blocks:
        low, *_, high = quantiles(blocks, n=6)
        spread = (high - low) / 2
    return Figure(
        name=name,
        unit="share" if name == "overlap" else "ns",
        median=median(values.values()),
        spread=spread,
        steps=len(values),
        blocks=blocks,
    )


def _blocks(values: Mapping[int, float]) -> list[float]:
    """Cut the steps from the first value to the last into the most blocks (28, 14, 7) that each contain a
    value; return their medians, or nothing. Only 7 blocks may be shorter than _LEAST_STEPS.
    """
    first = min(values)
    steps = max(values) - first + 1
    for number in reversed(_BLOCKS):
        blocks: list[list[float]] = [[] for _ in range(number)]
        for at, value in values.items():
            blocks[(at - first) * number // steps].append(value)
        if all(blocks) and (number == _BLOCKS[0] or steps >= _LEAST_STEPS * number):
            return list(map(median, blocks))
    return []

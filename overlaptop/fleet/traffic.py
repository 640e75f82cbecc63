"""Compares the bytes over a rank's links with the bytes of its collectives. Pure."""

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter

from overlaptop.timeline.averages import mean_of_known
from overlaptop.wire.devices import DeviceFacts, DeviceSample
from overlaptop.wire.messages import StepTotals

WINDOW_S = 10.0  # Window of the rates. It grows to whole steps if steps are long.
LONGEST_WINDOW_S = 60.0
MAX_STEPS = 600
NAMED_S = 180.0
"""Collectives are named in one step every twenty seconds or more. Training steps repeat, so the bytes of a
named step count for all steps within this time."""
MAX_NAMED_STEPS = 64
LATE_AFTER_S = 3.0
LATE_AFTER_STEPS = 3
"""Earlier steps are too old to count once no step has ended for longer than both limits."""

NO_STEP = "no step has ended yet"
LATE = "no step has ended lately"
UNNAMED = "its collectives are not named"
UNKNOWN_BYTES = "some of its collectives are of a kind, or of a group, whose bytes are not known"
HOST_CLOCK = "collectives on the CPU do not go over the GPU's links"
BOTH_WAYS = "its collectives go over NVLink and over PCIe, to one GPU so and to another so"
NO_SAMPLES = "nothing has been measured yet"
NO_RATES = "the link's rates are not known"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes per second over the last seconds. tx: sent by the GPU. None if not known."""

    over: str
    """``nvlink`` or ``pcie``: the link that this GPU's collectives use within the node. ``nic``: the
    adapter nearest to it, for those between nodes."""
    rx_bytes_per_s: int | None  # From the link's counters
    tx_bytes_per_s: int | None
    collectives_rx_bytes_per_s: int | None
    """From the sizes of the collectives of all the job's ranks on this GPU."""
    collectives_tx_bytes_per_s: int | None
    window_s: float
    reason: str  # Why a figure is not known. Empty if all are.


class StepWindow:
    """A rank's newest steps, and the known bytes of their collectives on the links."""

    def __init__(self) -> None:
        self._steps: deque[StepTotals] = deque()
        self._step_ns = 0
        self._named: deque[StepTotals] = deque(maxlen=MAX_NAMED_STEPS)
        self._unknown_bytes = False
        """The newest step with named collectives has some with an unknown number of bytes on the links."""

    def add(self, step: StepTotals) -> None:
        """Add the next step. A step that a command disturbed does not count."""
        if step.disturbed:
            return
        if step.link_tx_bytes is not None and step.link_rx_bytes is not None:
            self._named.append(step)
            self._unknown_bytes = False
        elif step.comm_bytes is not None:
            self._named.clear()
            self._unknown_bytes = True
        while self._named and _end_ns(step) - _end_ns(self._named[0]) > NAMED_S * 1e9:
            self._named.popleft()
        steps, oldest_ns = self._steps, _end_ns(step) - WINDOW_S * 1e9
        steps.append(step)
        self._step_ns += step.step_ns
        while len(steps) > 1 and (len(steps) > MAX_STEPS or _end_ns(steps[0]) <= oldest_ns):
            self._step_ns -= steps.popleft().step_ns

    @property
    def window_s(self) -> float:
        """WINDOW_S, or a little more to cover whole steps. At most LONGEST_WINDOW_S."""
        mean_s = self._mean_step_ns / 1e9
        whole_s = mean_s * math.ceil(WINDOW_S / mean_s) if mean_s else WINDOW_S
        return min(whole_s, LONGEST_WINDOW_S)

    def accounted(self, now_ns: int | None, over: str = "link") -> tuple[float, float] | str:
        """Return bytes per second received and sent, or why they are not known: those of named steps over
        the mean length of all. `now_ns`: Unix time. None: the end of the newest step. `over`: ``link``
        within the node, ``nic`` between nodes.
        """
        if not self._steps or not self._step_ns:
            return NO_STEP
        newest_ns = _end_ns(self._steps[-1])
        late_ns = max(LATE_AFTER_S * 1e9, LATE_AFTER_STEPS * self._mean_step_ns)
        if now_ns is not None and now_ns - newest_ns > late_ns:
            return LATE
        named = map(attrgetter(f"{over}_rx_bytes", f"{over}_tx_bytes"), self._named)
        known = [each for each in named if None not in each]
        if not known:
            return UNKNOWN_BYTES if self._unknown_bytes else UNNAMED
        rx, tx = map(sum, zip(*known, strict=True))
        per_s = 1e9 / self._mean_step_ns
        return rx / len(known) * per_s, tx / len(known) * per_s

    @property
    def _mean_step_ns(self) -> float:
        return self._step_ns / len(self._steps) if self._steps else 0.0


def traffic_of(
    device: DeviceFacts,
    samples: Sequence[DeviceSample],
    ranks: Sequence[StepWindow],
    job_gpus: Collection[str],
    *,
    on_cpu: bool = False,
) -> Traffic:
    """Return the traffic on the links of one GPU.

    `samples`: the GPU's, oldest first. `ranks`: all of the job's ranks on it, since the link's counters
    include them all. `job_gpus`: UUIDs of all the job's GPUs. `on_cpu`: these ranks run their collectives
    on the CPU.
    """
    # The links to the job's other GPUs, or to any GPU if there are none.
    reaches = {link.kind for link in device.links if not link.peer_uuid or link.peer_uuid in job_gpus}
    kinds = reaches or {link.kind for link in device.links}
    over = "nvlink" if kinds & {"nvlink", "nvswitch"} else "pcie"
    if kinds >= {"nvlink", "pcie"} and "nvswitch" not in kinds:
        return _traffic(over, samples, ranks, BOTH_WAYS)
    accounted = HOST_CLOCK if on_cpu else _accounted(ranks, samples, "link")
    return _traffic(over, samples, ranks, accounted)


def nic_traffic_of(samples: Sequence[DeviceSample], ranks: Sequence[StepWindow]) -> Traffic:
    """Return the traffic of a network adapter. `samples`: of a rank near it, oldest first. `ranks`: all of
    the job's ranks near it.
    """
    return _traffic("nic", samples, ranks, _accounted(ranks, samples, "nic"))


def _traffic(
    over: str,
    samples: Sequence[DeviceSample],
    ranks: Sequence[StepWindow],
    accounted: tuple[float, float] | str,
) -> Traffic:
    window_s = max((each.window_s for each in ranks), default=WINDOW_S)
    oldest_ns = samples[-1].at_ns - window_s * 1e9 if samples else 0
    recent = [sample for sample in samples if sample.at_ns > oldest_ns]
    names = (f"{over}_rx_bytes_per_s", f"{over}_tx_bytes_per_s")
    rx, tx = (mean_of_known(getattr(sample, name) for sample in recent) for name in names)
    reasons = []
    if not recent:
        reasons.append(NO_SAMPLES)
    elif rx is None or tx is None:
        reasons.append(next((each.reason for each in recent[-1].unknown if each.name in names), NO_RATES))
    own_rx = own_tx = None
    if isinstance(accounted, str):
        reasons.append(accounted)
    else:
        own_rx, own_tx = map(round, accounted)
    return Traffic(over, rx, tx, own_rx, own_tx, window_s, "; ".join(reasons))


def _accounted(
    ranks: Sequence[StepWindow], samples: Sequence[DeviceSample], over: str
) -> tuple[float, float] | str:
    """Add up the rates of all ranks. Without samples, each step's own end is the present time."""
    now_ns = samples[-1].at_ns if samples else None
    rx = tx = 0.0
    for rank in ranks:
        each = rank.accounted(now_ns, over)
        if isinstance(each, str):
            return each
        rx, tx = rx + each[0], tx + each[1]
    return rx, tx


def _end_ns(step: StepTotals) -> int:
    return step.start_ns + step.step_ns

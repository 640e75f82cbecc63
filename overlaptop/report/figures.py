"""The job's totals as text, for the screen and for ``--once`` alike."""

from __future__ import annotations

from overlaptop.fleet.snapshot import Totals
from overlaptop.text import ABOUT, AT_LEAST, AT_MOST, bounded, count, duration, part_of, percent, ratio
from overlaptop.timeline.arrivals import WaitTimes


def totals_in_words(totals: Totals, *, exact: bool) -> dict[str, str]:
    """Each by its name, with its unit, and with its sign where it is a bound.

    ``exact``: every rank's source sees the gaps between kernels. Else compute is an upper bound, and so are
    overlap and speed-up; exposed is a lower one, attainable may be off either way.
    """
    return {
        "overlap": bounded(percent(totals.overlap), AT_MOST, exact=exact),
        "exposed": bounded(duration(totals.exposed_ns), AT_LEAST, exact=exact),
        "stall": duration(totals.stall_ns),
        "idle": duration(totals.idle_ns) if exact or totals.idle_ns is not None else "not seen",
        "speed-up": bounded(ratio(totals.speedup), AT_MOST, exact=exact),
        "attainable": bounded(ratio(totals.attainable), ABOUT, exact=exact),
        "dropped": count(totals.dropped),
    }


def exposed_in_words(times: WaitTimes) -> str:
    """What exposed communication was, in the unit of its sum: ``= waiting 3.20 + transfer 0.50``; ``not
    split`` where nothing of it is.

    Empty where there was none.
    """
    if not times.exposed_known:
        return "not split"
    parts = {
        "waiting": times.exposed_wait_ns,
        "transfer": times.exposed_transfer_ns,
        "not split": times.exposed_unsplit_ns,
    }
    exposed_ns = sum(parts.values())
    said = [name for name, ns in parts.items() if ns or name != "not split"]
    words = " + ".join(f"{name} {part_of(parts[name], exposed_ns)}" for name in said)
    return f"= {words}" if exposed_ns else ""

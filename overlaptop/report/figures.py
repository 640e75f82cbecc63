"""The job's totals and the agents' cost as text, for the screen and for ``--once``."""

from overlaptop.fleet.records import BOUNDS
from overlaptop.fleet.snapshot import WHOLE_TRACE, HubState, Snapshot, Totals
from overlaptop.report.order import MOST_LISTED
from overlaptop.text import ABOUT, bounded, count, duration, part_of, percent, plural, ratio
from overlaptop.timeline.arrivals import WaitTimes
from overlaptop.wire.messages import OwnCost

LOWER_COST = "--every N measures fewer steps, --phases-only none in detail, --no-telemetry leaves out NVML"


def totals_text(totals: Totals, *, exact: bool) -> dict[str, str]:
    """Return the totals by name, each with its unit; ``fused`` only if it is not 0. Unless all sources see
    gaps (``exact``), compute is an upper bound, and so all are bounds: only overlap shows the sign.
    """
    return {
        "overlap": bounded(percent(totals.overlap), BOUNDS["overlap"], exact=exact),
        "exposed": duration(totals.exposed_ns),
        **({"fused": duration(totals.fused_ns)} if totals.fused_ns else {}),
        "stall": duration(totals.stall_ns),
        "idle": duration(totals.idle_ns) if exact or totals.idle_ns is not None else "not seen",
        "speed-up": f"{ratio(totals.speedup)}, at best by overlap {ratio(totals.attainable)}",
        "dropped": count(totals.dropped),
    }


def exposed_text(times: WaitTimes, exposed_ns: int | None = None) -> str:
    """Return the parts of exposed time, in the unit of its sum: ``= waiting 3.20 + transfer 0.50``; ``not
    split`` without a breakdown; empty if there was no exposed communication.

    ``exposed_ns``: the exposed time of all steps, if `times` are means of some of them. It is then divided
    in the same proportions: ``≈ waiting 3.20 + transfer 0.50``.
    """
    if not times.exposed_known:
        return "not attributed"
    parts = {
        "waiting": times.exposed_wait_ns,
        "transfer": times.exposed_transfer_ns,
        "not attributed": times.exposed_not_attributed_ns,
    }
    sum_ns = sum(parts.values())
    whole_ns = sum_ns if exposed_ns is None else exposed_ns
    if not sum_ns or not whole_ns:
        return ""
    # If a part is not attributed, the others' zeros are uncertain.
    said = {
        name: ns
        for name, ns in parts.items()
        if ns or (name != "not attributed" and not times.exposed_not_attributed_ns)
    }
    words = " + ".join(f"{name} {part_of(ns / sum_ns * whole_ns, whole_ns)}" for name, ns in said.items())
    return f"{ABOUT if abs(whole_ns - sum_ns) > len(parts) else '='} {words}"  # less is rounding


def window_text(totals: Totals, *, brief: bool = False) -> str:
    """Return the totals' window and ranks: ``last 20 s (87 steps), mean of 8 ranks``, ``step 184, mean of 8
    ranks``; in brief ``last 20 s (87 steps)``, ``step 184``.
    """
    if not totals.steps:
        return ""
    of_ranks = f"{totals.ranks} ranks" if totals.ranks > 1 else ""
    if totals.steps == 1:
        number = totals.measured_step
        step = "whole trace" if number == WHOLE_TRACE else f"step {count(number)}"
        words = [step] if number is not None else []
    else:
        window, steps = totals.window.value, f"{totals.steps} steps"
        newest = "newest " if totals.cut and not brief else ""
        words = [window if window.endswith(f" {steps}") else f"{window} ({newest}{steps})"]
    if of_ranks and not brief:
        words.append(f"mean of {of_ranks}")
    if totals.paused_steps and not brief:
        words.append(f"{plural(totals.paused_steps, 'pause')} left out")
    return ", ".join(words)


def ranks_text(snapshot: Snapshot) -> str:
    """Return ``4 ranks``; ``1 of 4 ranks`` if traces are missing; ``1,016 of 1,024 ranks report``."""
    here = len(snapshot.ranks)
    number = snapshot.job.world_size if snapshot.job is not None else here
    lacks = snapshot.hub_state is HubState.TRACE and here < number
    if snapshot.hub_state is HubState.LIVE and number > MOST_LISTED:
        report = sum(
            view.last is not None and not (view.stale or view.ended or view.node_lost)
            for view in snapshot.ranks
        )
        if 0 < report < number:
            return f"{report:,} of {plural(number, 'rank')} report"
    return f"{here} of {plural(number, 'rank')}" if lacks else plural(number, "rank")


def cost_in_brief(cost: OwnCost) -> str:
    return with_error(cost.change, cost.error)


def cost_in_full(cost: OwnCost) -> str:
    within = ", which is within the error" if abs(cost.change) <= cost.error else ""
    detailed = ""
    if cost.measured_change is not None and cost.measured_error is not None:
        measured = with_error(cost.measured_change, cost.measured_error)
        detailed = f"; of steps measured in detail by {measured}"
    when = "" if cost.watched else " while nobody watches"
    return (
        f"overlaptop changes the length of steps by {cost_in_brief(cost)}{when}{within}{detailed}. "
        f"For less: {LOWER_COST}"
    )


def with_error(change: float, error: float | None) -> str:
    """Return ``+1.2 % ± 0.3``; without the error if it is not known."""
    known = f" ± {error * 100:.1f}" if error is not None else ""
    return f"{change * 100:+.1f} %{known}"

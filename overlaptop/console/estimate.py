"""``overlaptop estimate``: questions for pen and paper, answered by the models that the advice uses."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from overlaptop import text
from overlaptop.console import CommandError
from overlaptop.console.table import Table
from overlaptop.models.alpha_beta import AlphaBeta
from overlaptop.models.buckets import MIB, Compute, EvenGradients, Prediction, best, predict, sweep
from overlaptop.models.prefetch import PrefetchDepth, prefetch
from overlaptop.timeline.breakdown import Breakdown

ALPHA_SHARE = 0.1
"""Of a bucket's time, where nothing but the link is known: larger buckets would save less than this."""
SLACK = 0.01
"""A step may be longer than the shortest by this, if that takes fewer buckets."""
SHOWN_MB = (1, 2, 5, 10, 25, 50, 100, 200, 400, 1_000, 2_000, 5_000, 10_000)
MOST_BUCKETS = 100_000
"""Smaller buckets than these are not looked at: the answer should come at once."""


@dataclass(frozen=True, slots=True)
class OverlapQuestion:
    """What a step takes by how much of its communication is hidden."""

    compute_ns: int
    comm_ns: int
    overlap: float | None
    """None: only the two ends, nothing hidden and as much as can be."""


@dataclass(frozen=True, slots=True)
class BucketsQuestion:
    """How large DDP's buckets should be."""

    gradient_bytes: int
    bandwidth_bytes_per_s: float
    """Of the bus where `ranks` is known, else of the algorithm, as nccl-tests names them."""
    latency_ns: int
    backward_ns: int | None
    ranks: int | None


@dataclass(frozen=True, slots=True)
class PrefetchQuestion:
    """How many layers ahead FSDP should gather."""

    all_gather_ns: int
    layer_ns: int
    slowest_all_gather_ns: int | None


def run(question: str, values: Sequence[Any], *, as_json: bool) -> int:
    """Print the answer. CommandError with status 2 where the figures do not fit together.

    `question`: overlap, buckets or prefetch; `values`: the fields of its class above, in their order.
    """
    try:
        if question == "overlap":
            record, page = _overlap(OverlapQuestion(*values))
        elif question == "buckets":
            record, page = _buckets(BucketsQuestion(*values))
        else:
            record, page = _prefetch(PrefetchQuestion(*values))
    except ValueError as fault:
        raise CommandError(str(fault), 2) from fault
    record = {"type": "estimate", "question": question, **record}
    print(json.dumps(record) if as_json else page)  # noqa: T201
    return 0


# What overlap brings


def _overlap(question: OverlapQuestion) -> tuple[dict[str, object], str]:
    compute_ns, comm_ns = question.compute_ns, question.comm_ns
    if compute_ns + comm_ns == 0:
        raise ValueError("a step without compute and communication has no overlap to estimate")
    most_ns = min(compute_ns, comm_ns)
    hidden_ns = None if question.overlap is None else round(question.overlap * comm_ns)
    if hidden_ns is not None and hidden_ns > most_ns:
        raise ValueError(
            f"{text.percent(question.overlap)} of {text.duration(comm_ns)} communication cannot be hidden "
            f"behind {text.duration(compute_ns)} compute: --overlap can be at most "
            f"{most_ns * 1000 // comm_ns / 1000}"
        )
    rows = {"nothing hidden": _step(compute_ns, comm_ns, 0)}
    if hidden_ns is not None:
        rows["as given"] = _step(compute_ns, comm_ns, hidden_ns)
    rows["as much as can be"] = _step(compute_ns, comm_ns, most_ns)
    table = Table(["", "step", "overlap", "hidden", "exposed", "speed-up"], left=("",))
    for name, step in rows.items():
        times = (text.duration(step.hidden_ns), text.duration(step.exposed_ns))
        table.add(
            [
                name,
                text.duration(step.step_ns),
                text.percent(step.overlap),
                *times,
                text.ratio(step.speedup),
            ]
        )
    given = rows.get("as given")
    record: dict[str, object] = {
        "compute_ns": compute_ns,
        "comm_ns": comm_ns,
        "overlap": given.overlap if given else None,
        "hidden_ns": given.hidden_ns if given else None,
        "exposed_ns": given.exposed_ns if given else None,
        "step_ns": given.step_ns if given else None,
        "speedup": given.speedup if given else None,
        "attainable": rows["nothing hidden"].attainable,
        "least_step_ns": rows["as much as can be"].step_ns,
        "most_step_ns": rows["nothing hidden"].step_ns,
    }
    return record, table.render()


def _step(compute_ns: int, comm_ns: int, hidden_ns: int) -> Breakdown:
    """A step of nothing else, without gaps."""
    return Breakdown(
        step_ns=compute_ns + comm_ns - hidden_ns,
        compute_ns=compute_ns,
        comm_ns=comm_ns,
        hidden_ns=hidden_ns,
        exposed_ns=comm_ns - hidden_ns,
        compute_only_ns=compute_ns - hidden_ns,
        copy_only_ns=0,
        idle_ns=0,
    )


# DDP's bucket size


def _buckets(question: BucketsQuestion) -> tuple[dict[str, object], str]:
    link = _link(question)
    # Without a backward nothing is known of what is hidden: only sizes and times of buckets are printed.
    backward_ns = question.backward_ns or 0
    gradients, compute = EvenGradients(question.gradient_bytes, backward_ns), Compute(backward_ns)
    grain_bytes = MIB * math.ceil(question.gradient_bytes / MIB / MOST_BUCKETS)
    whole_bytes = math.ceil(question.gradient_bytes / grain_bytes) * grain_bytes
    if question.backward_ns is None:
        cap_bytes = _least_cap_bytes(link, whole_bytes, grain_bytes)
        chosen, least_exposed_ns = predict(gradients, compute, link, cap_bytes), None
    else:
        all_sizes = list(
            sweep(gradients, compute, link, lowest_bytes=grain_bytes, highest_bytes=whole_bytes,
                  grain_bytes=grain_bytes)
        )  # fmt: skip
        chosen, least_exposed_ns = best(all_sizes, SLACK), best(all_sizes).exposed_ns
    shown = {mb * MIB for mb in SHOWN_MB if grain_bytes <= mb * MIB < whole_bytes}
    shown |= {chosen.cap_bytes, whole_bytes}
    rows = [predict(gradients, compute, link, cap_bytes) for cap_bytes in sorted(shown)]
    record = {
        "gradient_bytes": question.gradient_bytes,
        "alpha_ns": link.alpha_ns,
        "beta_bytes_per_s": link.beta_bytes_per_s,
        "ranks": question.ranks,
        "backward_ns": question.backward_ns,
        **_bucket_record(question, link, chosen),
        "least_exposed_ns": least_exposed_ns,
        "sizes": [_bucket_record(question, link, row) for row in rows],
    }
    page = [
        _link_words(question, link),
        "",
        _buckets_table(question, link, chosen, rows),
        "",
        _advice(question, link, chosen, least_exposed_ns),
    ]
    return record, "\n".join(page)


def _link(question: BucketsQuestion) -> AlphaBeta:
    if question.ranks is None:
        return AlphaBeta(question.latency_ns, question.bandwidth_bytes_per_s)
    return AlphaBeta.of_all_reduce(question.ranks, question.latency_ns, question.bandwidth_bytes_per_s)


def _least_cap_bytes(link: AlphaBeta, whole_bytes: int, grain_bytes: int) -> int:
    """The smallest bucket of which alpha takes at most ALPHA_SHARE: ``alpha beta (1 - share) / share``."""
    least_bytes = link.half_speed_bytes * (1 - ALPHA_SHARE) / ALPHA_SHARE
    return min(max(1, math.ceil(least_bytes / grain_bytes)) * grain_bytes, whole_bytes)


def _bucket_record(question: BucketsQuestion, link: AlphaBeta, found: Prediction) -> dict[str, object]:
    known = question.backward_ns is not None
    return {
        "bucket_cap_mb": found.cap_bytes // MIB,
        "buckets": len(found.end_ns),
        "bucket_ns": _longest_ns(found),
        "alpha_share": _alpha_share(link, found),
        "comm_ns": found.comm_ns,
        "hidden_ns": found.hidden_ns if known else None,
        "exposed_ns": found.exposed_ns if known else None,
    }


def _buckets_table(
    question: BucketsQuestion, link: AlphaBeta, chosen: Prediction, rows: list[Prediction]
) -> str:
    known = question.backward_ns is not None
    table = Table(
        ["bucket_cap_mb", "buckets", "each takes", "latency", "all take", "hidden", "exposed", ""]
    )
    for row in rows:
        table.add(
            [
                str(row.cap_bytes // MIB),  # to be pasted: no commas
                text.count(len(row.end_ns)),
                text.duration(_longest_ns(row)),
                text.whole_percent(_alpha_share(link, row)),
                text.duration(row.comm_ns),
                text.duration(row.hidden_ns if known else None),
                text.duration(row.exposed_ns if known else None),
                "<" if row.cap_bytes == chosen.cap_bytes else "",
            ]
        )
    return table.render()


def _link_words(question: BucketsQuestion, link: AlphaBeta) -> str:
    bandwidth = text.rate(link.beta_bytes_per_s)
    if question.ranks is not None:
        bandwidth += f" ({text.rate(question.bandwidth_bytes_per_s)} on the bus, {question.ranks} ranks)"
    return (
        f"{text.byte_count(question.gradient_bytes)} of gradients; an all-reduce takes "
        f"{text.duration(link.alpha_ns)} + bytes / {bandwidth}"
    )


def _advice(
    question: BucketsQuestion, link: AlphaBeta, chosen: Prediction, least_exposed_ns: int | None
) -> str:
    count = len(chosen.end_ns)
    setting = f"bucket_cap_mb={chosen.cap_bytes // MIB}: {text.count(count)} bucket{'s' * (count > 1)}"
    if question.backward_ns is None:
        return (
            f"{setting}, of which latency takes {text.whole_percent(_alpha_share(link, chosen))}. "
            "Give --backward-ms to see what of it is exposed."
        )
    longer = " Communication outlasts backward." if chosen.comm_ns > question.backward_ns else ""
    return (
        f"{setting}, {text.duration(chosen.exposed_ns)} exposed; the least at any size is "
        f"{text.duration(least_exposed_ns)}.{longer}\n"
        "With fewer, backward and what is exposed after it would be more than "
        f"{text.whole_percent(SLACK)} longer than at best."
    )


def _longest_ns(found: Prediction) -> int:
    return int((found.end_ns - found.start_ns).max())


def _alpha_share(link: AlphaBeta, found: Prediction) -> float:
    """The part of the communication that is latency, a fraction."""
    return min(1.0, len(found.end_ns) * link.alpha_ns / found.comm_ns) if found.comm_ns else 0.0


# FSDP's prefetch depth


def _prefetch(question: PrefetchQuestion) -> tuple[dict[str, object], str]:
    found = prefetch(question.all_gather_ns, question.layer_ns, question.slowest_all_gather_ns)
    record = {
        **asdict(question),
        "depth": found.depth,
        "exposed_ns": found.exposed_ns,
        "slowest_exposed_ns": None if question.slowest_all_gather_ns is None else found.slowest_exposed_ns,
    }
    return record, _prefetch_page(question, found)


def _prefetch_page(question: PrefetchQuestion, found: PrefetchDepth) -> str:
    layers = f"{found.depth} layer{'s' * (found.depth > 1)} ahead"
    all_gather, layer = text.duration(question.all_gather_ns), text.duration(question.layer_ns)
    slowest_ns = question.slowest_all_gather_ns
    if question.all_gather_ns >= question.layer_ns:
        slow = "" if slowest_ns is None else f", {text.duration(found.slowest_exposed_ns)} at the slowest"
        return (
            f"prefetch {layers}: an all-gather takes {all_gather}, a layer {layer}, so each layer waits "
            f"{text.duration(found.exposed_ns)} at any depth{slow}.\n"
            "What helps: more compute a layer (a larger batch), fewer bytes (a lower precision), sharding "
            "within a node only."
        )
    hidden = f"an all-gather of {all_gather} is"
    if slowest_ns is not None:
        hidden = f"an all-gather of {all_gather}, and now and then one of {text.duration(slowest_ns)}, are"
    return f"prefetch {layers}: {hidden} hidden behind layers of {layer}."

"""``overlaptop estimate``: estimates on paper, without a job."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import asdict

from overlaptop import text
from overlaptop.commands.output import CommandError, print_data
from overlaptop.commands.quantities import bytes_per_s, duration_ns, milliseconds_ns, size_bytes
from overlaptop.commands.table import Table
from overlaptop.models.buckets import (
    MIB,
    EvenBuckets,
    Link,
    algorithm_bandwidth,
    even_buckets,
    fewest,
    sweep,
)
from overlaptop.models.prefetch import prefetch
from overlaptop.records import BucketsEstimate, BucketSize, OverlapEstimate, PrefetchEstimate, Record
from overlaptop.timeline.overlap import Breakdown

MOST_RANKS = 1_000_000
USAGE = """\
overlaptop estimate --compute-ms T --comm-ms T [--overlap F] [--json]
       overlaptop estimate --gradients SIZE --bandwidth RATE --latency T [--backward-ms T] [--ranks N]
           [--json]
       overlaptop estimate --all-gather-ms T --layer-ms T [--slowest-all-gather-ms T] [--json]
"""
DESCRIPTION = """\
Estimate, without a job: the gain from overlap, the best size of DDP's buckets, and how many layers ahead
FSDP should gather.

  overlaptop estimate --compute-ms 40 --comm-ms 15 --overlap 0.9
  overlaptop estimate --gradients 1.6GB --bandwidth 200GB/s --latency 20us --backward-ms 30 --ranks 8
  overlaptop estimate --all-gather-ms 2 --layer-ms 5

Sizes have units (1.6GB, 25MiB), bandwidths (200GB/s, 400Gbit/s) and --latency (20us) too: k M G are
decimal, Ki Mi Gi binary, B is bytes, b and bit are bits. A time in ms may have a unit of its own (0.04s).
"""
EPILOG = """\
the formulas:
  overlap        hidden = overlap * comm; step = compute + comm - hidden (no gaps, no copies);
                 speed-up = (compute + comm) / step, at most (compute + comm) / max(compute, comm).
                 The same words as in the dashboard: overlap as HolisticTraceAnalysis defines it
  one bucket     alpha + bytes / beta: --latency is alpha, the time of a tiny all-reduce on all ranks.
                 With --ranks N, --bandwidth is bus bandwidth as nccl-tests prints it (busbw), and beta =
                 bandwidth / (2 (N-1)/N); without, it is beta itself (algbw)
  k buckets      of S bytes in all, gradients ready evenly over a backward of B, one stream:
                 B + exposed = max(B/k + k alpha + S/beta,  B + alpha + S/(k beta))
                 Named is the smallest k with which that is within 1 % of its least, as bucket_cap_mb (in
                 MiB, as DDP counts): each bucket also costs launches and a share of the GPU. Without
                 --backward-ms: the smallest bucket with at most a tenth of alpha
  prefetch       all-gathers run one after another; one issued d layers ahead may take d layers' time:
                 depth = ceil(slowest all-gather / layer). Where the usual one takes as long as a layer or
                 longer, no depth hides it, and each layer waits for the difference

An estimate knows nothing of late ranks, of gaps, or of compute that slows down beside communication.
stdout carries the answer (--json: one record, times in ns; null: not known).
exit status: 0, or 2 for a usage error.
"""
ALPHA_SHARE = 0.1
"""Largest share of latency in a bucket's time, if only the link is known: larger buckets would save
less."""
SLACK = 0.01
"""Accepted slowdown over the shortest step, if it needs fewer buckets."""
SHOWN_MB = (1, 2, 5, 10, 25, 50, 100, 200, 400, 1_000, 2_000, 5_000, 10_000)
MOST_BUCKETS = 100_000
"""Most buckets that are tried, so that the answer comes at once."""

Answer = tuple[Record, str]
"""A record and its page."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.usage, parser.description, parser.epilog = USAGE, DESCRIPTION, EPILOG
    overlap = parser.add_argument_group("what overlap brings")
    overlap.add_argument("--compute-ms", type=milliseconds_ns, metavar="T", help="compute in a step")
    overlap.add_argument("--comm-ms", type=milliseconds_ns, metavar="T", help="communication in a step")
    overlap.add_argument(
        "--overlap", type=_fraction, metavar="F", help="the part of it that is hidden: 0 to 1, or 90%%"
    )
    buckets = parser.add_argument_group("DDP's bucket size")
    buckets.add_argument("--gradients", type=size_bytes, metavar="SIZE", help="all gradients of the model")
    buckets.add_argument(
        "--bandwidth", type=bytes_per_s, metavar="RATE", help="of an all-reduce of many bytes"
    )
    buckets.add_argument("--latency", type=duration_ns, metavar="T", help="of an all-reduce of a few bytes")
    buckets.add_argument(
        "--backward-ms", type=milliseconds_ns, metavar="T", help="backward without communication"
    )
    buckets.add_argument("--ranks", type=_ranks, metavar="N", help="then --bandwidth is bus bandwidth")
    prefetch = parser.add_argument_group("FSDP's prefetch depth")
    prefetch.add_argument(
        "--all-gather-ms", type=milliseconds_ns, metavar="T", help="one layer's parameters, usually"
    )
    prefetch.add_argument("--layer-ms", type=milliseconds_ns, metavar="T", help="one layer's compute")
    prefetch.add_argument(
        "--slowest-all-gather-ms",
        type=milliseconds_ns,
        metavar="T",
        help="an occasional slow one, to be hidden as well",
    )
    parser.add_argument("--json", action="store_true", help="print a record instead of a table")


def run(options: argparse.Namespace) -> int:
    """Answer one question."""
    values = {name: value for name, value in vars(options).items() if value is not None}
    asked = [each for each in _QUESTIONS if values.keys() & {*each.needed, *each.more}]
    if not asked:
        raise CommandError("nothing to estimate: give --compute-ms, --gradients or --all-gather-ms", 2)
    firsts = [min(values.keys() & {*each.needed, *each.more}) for each in asked]
    if len(asked) > 1:
        first, other = map(_option, firsts[:2])
        raise CommandError(f"{first} and {other} belong to two questions: ask one at a time", 2)
    question = asked[0]
    if missing := [_option(name) for name in question.needed if name not in values]:
        raise CommandError(f"{_option(firsts[0])} goes with {' and '.join(missing)}", 2)
    try:
        record, page = question.answer(*(values.get(name) for name in (*question.needed, *question.more)))
    except ValueError as fault:
        raise CommandError(str(fault), 2) from fault
    print_data(record if options.json else page)
    return 0


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _fraction(words: str) -> float:
    try:
        fraction = float(words[:-1]) / 100 if words.endswith("%") else float(words)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, or 0% to 100%, not {words!r}")
    return fraction


def _ranks(words: str) -> int:
    if not (words.isascii() and words.isdecimal() and len(words) < 8 and 2 <= int(words) <= MOST_RANKS):
        raise argparse.ArgumentTypeError(f"must be a whole number from 2 to {MOST_RANKS:,}, not {words!r}")
    return int(words)


def _overlap(compute_ns: int, comm_ns: int, overlap: float | None) -> Answer:
    """Return the step's length by overlap; None: only without and with full overlap."""
    if compute_ns + comm_ns == 0:
        raise ValueError("a step without compute and communication has no overlap to estimate")
    most_ns = min(compute_ns, comm_ns)
    hidden_ns = None if overlap is None else round(overlap * comm_ns)
    if hidden_ns is not None and hidden_ns > most_ns:
        raise ValueError(
            f"{text.percent(overlap)} of {text.duration(comm_ns)} communication cannot be hidden "
            f"behind {text.duration(compute_ns)} compute: --overlap can be at most "
            f"{most_ns * 1000 // comm_ns / 1000}"
        )

    def step(hidden_ns: int) -> Breakdown:
        """Return a step of compute and communication only, without gaps."""
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

    least, most = step(0), step(most_ns)
    given = None if hidden_ns is None else step(hidden_ns)
    table = Table(["", "step", "overlap", "hidden", "exposed", "speed-up"], left=("",))
    for name, row in (("nothing hidden", least), ("as given", given), ("as much as can be", most)):
        if row is not None:
            table.add(
                name,
                text.duration(row.step_ns),
                text.percent(row.overlap),
                text.duration(row.hidden_ns),
                text.duration(row.exposed_ns),
                text.ratio(row.speedup),
            )
    record = OverlapEstimate(
        question="overlap",
        compute_ns=compute_ns,
        comm_ns=comm_ns,
        overlap=given.overlap if given else None,
        hidden_ns=given.hidden_ns if given else None,
        exposed_ns=given.exposed_ns if given else None,
        step_ns=given.step_ns if given else None,
        speedup=given.speedup if given else None,
        attainable=least.attainable,
        least_step_ns=most.step_ns,
        most_step_ns=least.step_ns,
    )
    return record, table.render()


def _buckets(
    total_bytes: int, bandwidth: float, latency_ns: int, backward_ns: int | None, ranks: int | None
) -> Answer:
    """Return the best size of DDP's buckets. `bandwidth` in bytes per second: bus bandwidth if `ranks` is
    known, else algorithm bandwidth, as nccl-tests defines them.
    """
    link = Link(latency_ns, bandwidth if ranks is None else algorithm_bandwidth(ranks, bandwidth))
    known = backward_ns is not None
    # Without a backward the hidden time is unknown: only sizes and times of buckets are printed.
    backward_ns = backward_ns or 0
    grain_bytes = MIB * math.ceil(total_bytes / MIB / MOST_BUCKETS)
    whole_bytes = math.ceil(total_bytes / grain_bytes) * grain_bytes
    least_exposed_ns = None
    if known:
        every = list(sweep(total_bytes, backward_ns, link, grain_bytes))
        chosen = fewest(every, backward_ns, SLACK)
        least_exposed_ns = min(each.exposed_ns for each in every)
    else:
        # The smallest size with at most ALPHA_SHARE of latency: alpha beta (1 - share) / share.
        least_bytes = latency_ns * link.beta_bytes_per_s / 1e9 * (1 - ALPHA_SHARE) / ALPHA_SHARE
        cap_bytes = min(max(1, math.ceil(least_bytes / grain_bytes)) * grain_bytes, whole_bytes)
        chosen = even_buckets(total_bytes, backward_ns, link, cap_bytes)
    shown = {mb * MIB for mb in SHOWN_MB if grain_bytes <= mb * MIB < whole_bytes}
    shown |= {chosen.cap_bytes, whole_bytes}
    rows = [even_buckets(total_bytes, backward_ns, link, cap_bytes) for cap_bytes in sorted(shown)]

    def alpha_share(row: EvenBuckets) -> float:
        """Return the share of latency in the communication."""
        return min(1.0, row.count * latency_ns / row.comm_ns) if row.comm_ns else 0.0

    def size(row: EvenBuckets) -> BucketSize:
        return BucketSize(
            bucket_cap_mb=row.cap_bytes // MIB,
            buckets=row.count,
            bucket_ns=row.bucket_ns,
            alpha_share=alpha_share(row),
            comm_ns=row.comm_ns,
            hidden_ns=row.hidden_ns if known else None,
            exposed_ns=row.exposed_ns if known else None,
        )

    table = Table(
        ["bucket_cap_mb", "buckets", "each takes", "latency", "all take", "hidden", "exposed", ""]
    )
    for row in rows:
        table.add(
            str(row.cap_bytes // MIB),  # no commas, so that it can be pasted
            text.count(row.count),
            text.duration(row.bucket_ns),
            text.whole_percent(alpha_share(row)),
            text.duration(row.comm_ns),
            text.duration(row.hidden_ns if known else None),
            text.duration(row.exposed_ns if known else None),
            "<" if row.cap_bytes == chosen.cap_bytes else "",
        )
    on_the_bus = "" if ranks is None else f" ({text.rate(bandwidth)} on the bus, {ranks} ranks)"
    setting = f"bucket_cap_mb={chosen.cap_bytes // MIB}: {text.plural(chosen.count, 'bucket')}"
    if known:
        longer = " Communication outlasts backward." if chosen.comm_ns > backward_ns else ""
        advice = (
            f"{setting}, {text.duration(chosen.exposed_ns)} exposed; the least at any size is "
            f"{text.duration(least_exposed_ns)}.{longer}\n"
            "With fewer buckets, backward plus exposed communication would be more than "
            f"{text.whole_percent(SLACK)} longer than the optimum."
        )
    else:
        advice = (
            f"{setting}; latency is {text.whole_percent(alpha_share(chosen))} of communication. "
            "Give --backward-ms for the exposed time."
        )
    record = BucketsEstimate(
        question="buckets",
        gradient_bytes=total_bytes,
        alpha_ns=latency_ns,
        beta_bytes_per_s=link.beta_bytes_per_s,
        ranks=ranks,
        backward_ns=backward_ns if known else None,
        **asdict(size(chosen)),
        least_exposed_ns=least_exposed_ns,
        sizes=[size(row) for row in rows],
    )
    head = (
        f"{text.byte_count(total_bytes)} of gradients; an all-reduce takes {text.duration(latency_ns)} + "
        f"bytes / {text.rate(link.beta_bytes_per_s)}{on_the_bus}"
    )
    return record, f"{head}\n\n{table.render()}\n\n{advice}"


def _prefetch(all_gather_ns: int, layer_ns: int, slowest_ns: int | None) -> Answer:
    found = prefetch(all_gather_ns, layer_ns, slowest_ns)
    record = PrefetchEstimate(
        question="prefetch",
        all_gather_ns=all_gather_ns,
        layer_ns=layer_ns,
        slowest_all_gather_ns=slowest_ns,
        depth=found.depth,
        exposed_ns=found.exposed_ns,
        slowest_exposed_ns=None if slowest_ns is None else found.slowest_exposed_ns,
    )
    layers = f"{text.plural(found.depth, 'layer')} ahead"
    all_gather, layer = text.duration(all_gather_ns), text.duration(layer_ns)
    if all_gather_ns >= layer_ns:
        slow = "" if slowest_ns is None else f", {text.duration(found.slowest_exposed_ns)} at the slowest"
        return record, (
            f"prefetch {layers}: an all-gather takes {all_gather}, a layer {layer}, so each layer waits "
            f"{text.duration(found.exposed_ns)} at any depth{slow}.\n"
            "What helps: more compute a layer (a larger batch), fewer bytes (a lower precision), sharding "
            "within a node only."
        )
    hidden = f"an all-gather of {all_gather} is"
    if slowest_ns is not None:
        hidden = f"an all-gather of {all_gather}, and now and then one of {text.duration(slowest_ns)}, are"
    return record, f"prefetch {layers}: {hidden} hidden behind layers of {layer}."


class _Question(NamedTuple):
    answer: Callable[..., Answer]
    """Called with the options below, in their order."""
    needed: tuple[str, ...]
    more: tuple[str, ...]


_QUESTIONS = (
    _Question(_overlap, ("compute_ms", "comm_ms"), ("overlap",)),
    _Question(_buckets, ("gradients", "bandwidth", "latency"), ("backward_ms", "ranks")),
    _Question(_prefetch, ("all_gather_ms", "layer_ms"), ("slowest_all_gather_ms",)),
)

"""``overlaptop estimate``: questions for pen and paper."""

from __future__ import annotations

import argparse

from overlaptop.console.arguments import make_parser
from overlaptop.console.parse_quantities import bytes_per_s, duration_ns, milliseconds_ns, size_bytes

MOST_RANKS = 1_000_000
USAGE = """\
overlaptop estimate --compute-ms T --comm-ms T [--overlap F] [--json]
       overlaptop estimate --gradients SIZE --bandwidth RATE --latency T [--backward-ms T] [--ranks N]
           [--json]
       overlaptop estimate --all-gather-ms T --layer-ms T [--slowest-all-gather-ms T] [--json]
"""
DESCRIPTION = """\
Three questions for pen and paper, with no job running: what overlap brings, how large DDP's buckets should
be, and how many layers ahead FSDP should gather.

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
                 --backward-ms: the smallest bucket of which alpha is at most a tenth
  prefetch       all-gathers run one after another; one issued d layers ahead may take d layers' time:
                 depth = ceil(slowest all-gather / layer). Where the usual one takes as long as a layer or
                 longer, no depth hides it, and each layer waits for the difference

An estimate knows nothing of late ranks, of gaps, or of compute that slows down beside communication.
stdout carries the answer (--json: one record, times in ns; null: not known).
exit status: 0, or 2 for a usage error.
"""
_QUESTIONS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    # the question, the options that it needs, and those that it takes as well, in the order of its fields
    ("overlap", ("compute_ms", "comm_ms"), ("overlap",)),
    ("buckets", ("gradients", "bandwidth", "latency"), ("backward_ms", "ranks")),
    ("prefetch", ("all_gather_ms", "layer_ms"), ("slowest_all_gather_ms",)),
)


def run(words: list[str]) -> int:
    """Answer one question."""
    parser = make_parser("overlaptop estimate", DESCRIPTION, EPILOG, USAGE)
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
    options = vars(parser.parse_args(words))
    given = {name for name, value in options.items() if value is not None} - {"json"}
    asked = [each for each in _QUESTIONS if given.intersection(each[1] + each[2])]
    if not asked:
        parser.error("nothing to estimate: give --compute-ms, --gradients or --all-gather-ms")
    if len(asked) > 1:
        first, other = (min(given.intersection(each[1] + each[2])) for each in asked[:2])
        parser.error(f"{_option(first)} and {_option(other)} belong to two questions: ask one at a time")
    question, needed, more = asked[0]
    if missing := [_option(name) for name in needed if name not in given]:
        parser.error(f"{_option(min(given.intersection(needed + more)))} goes with {' and '.join(missing)}")
    from overlaptop.console import estimate

    return estimate.run(question, [options[name] for name in needed + more], as_json=options["json"])


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _fraction(text: str) -> float:
    try:
        fraction = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, or 0% to 100%, not {text!r}")
    return fraction


def _ranks(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 8 and 2 <= int(text) <= MOST_RANKS):
        raise argparse.ArgumentTypeError(f"must be a whole number from 2 to {MOST_RANKS:,}, not {text!r}")
    return int(text)

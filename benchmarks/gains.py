"""What findings promise, against what the step loses once the fault is off.

    python benchmarks/gains.py [--jobs ddp,fsdp2] [--faults dataset,gc] [--both-ms 0,15]

Rank 1 is slowed in one way after the other (`answers.py`). True is the step's median length with the fault
less the mean of those before and after it, ± half of their difference. Promised is the largest gain of
findings about rank 1, the median over the second half of the fault. With --both-ms both ranks also sleep as
long in each step: hosts bound the job then.
"""

import os
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from answers import SLOW_RANK, Look, options_of_faults, watched
from pairs import UNKNOWN, number, print_head, print_row

MOST_ERROR, LEAST_MS = 0.25, 0.5
"""An error beyond what the true loss is uncertain by, and above both, this share of the loss and these ms,
breaks the promise."""


def main() -> None:
    """Run the jobs, print a line for each fault, then the median error and how many promises broke."""
    parser = options_of_faults(__doc__)
    parser.add_argument("--both-ms", default="0,15", help="default: %(default)s")
    parser.set_defaults(jobs="ddp,fsdp2", faults="dataset,forward,gc,compute", shares="0.5", healthy=0.0)
    options = parser.parse_args()
    print_head("job", "both, ms", "fault", "step, ms", "true, ms", "promised, ms", "error, ms", "rules")
    errors: list[float] = []
    missing = broken = 0
    for both_ms in options.both_ms.split(","):
        os.environ["ANSWERS_BOTH_MS"] = both_ms
        for job in options.jobs.split(","):
            looks, switches = watched(job, options)
            for on, off, after in zip(switches[::2], switches[1::2], switches[2::2], strict=False):
                promised_ms, rules = promised(looks, on, off)
                true_ms = off["step_ms"] - (on["step_ms"] + after["step_ms"]) / 2
                unsure_ms = abs(on["step_ms"] - after["step_ms"]) / 2
                error_ms = None if promised_ms is None else promised_ms - true_ms
                lengths = " → ".join(f"{each['step_ms']:.1f}" for each in (on, off, after))
                print_row(
                    job, both_ms, on["fault"], lengths, f"{true_ms:.1f} ± {unsure_ms:.1f}",
                    number(promised_ms), number(error_ms), rules,
                )  # fmt: skip
                if error_ms is None:
                    missing += 1
                    continue
                errors.append(abs(error_ms) / max(abs(true_ms), LEAST_MS))
                broken += abs(error_ms) - unsure_ms > max(MOST_ERROR * true_ms, LEAST_MS)
    middle = f"{median(errors):.1%}" if errors else UNKNOWN
    print(f"\nmedian error {middle} of {len(errors)} promises; {broken} broken; {missing} without one")


def promised(
    looks: Sequence[Look], on: Mapping[str, Any], off: Mapping[str, Any]
) -> tuple[float | None, str]:
    """Return what was promised of rank 1, ms, and by which rules."""
    since_ns = (on["at_ns"] + off["at_ns"]) / 2
    gains: list[float] = []
    rules: set[str] = set()
    for look in looks:
        if since_ns <= look.at_ns < off["at_ns"]:
            gained = look.gains_ns.items()
            known = {rule: ns for (rule, ranks), ns in gained if SLOW_RANK in ranks and ns is not None}
            if known:
                gains.append(max(known.values()) / 1e6)
                rules |= known.keys()
    return (median(gains) if gains else None), ", ".join(sorted(rules)) or UNKNOWN


if __name__ == "__main__":
    main()

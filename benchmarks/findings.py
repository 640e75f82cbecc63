"""What is found of jobs with one thing wrong, and of healthy ones: a table of what was expected and found.

    python benchmarks/findings.py [--nproc 2] [--seconds 60] [CASE ...]

Runs each case under torchrun, one after the other, on GPUs where there are any, and asks for its findings
once a second from the first half of the time on. A finding counts where it was there most of the times.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from time import monotonic, sleep

from tables import print_head, print_row
from torchrun import WORKLOADS, job_folder, running, torchrun

from overlaptop.findings.evidence import evidence_of
from overlaptop.findings.find import find
from overlaptop.fleet.job_session import JobSession

MOSTLY = 0.5


@dataclass(frozen=True)
class Case:
    """A workload with its options, and the rule that ought to find something; empty: none."""

    words: str
    expected: str = ""
    environment: dict[str, str] = field(default_factory=dict)


ONE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
CASES = {
    "ddp": Case("ddp.py"),
    "fsdp": Case("fsdp.py"),
    "allreduce_matmul": Case("allreduce_matmul.py"),
    "after-backward": Case("ddp.py --mode after-backward", "one_after_the_other"),
    "one-bucket": Case("ddp.py --bucket-cap-mb 10000", "bucket_too_large"),
    "small-buckets": Case("ddp.py --bucket-cap-mb 1", "bucket_too_small"),
    "little-compute": Case("ddp.py --batch 1 --seq 32", "communication_bound"),
    "blocking": Case("ddp.py", "one_after_the_other", {"CUDA_LAUNCH_BLOCKING": "1"}),
    "timing-events": Case("ddp.py", "timing_events", {**ONE, "TORCH_NCCL_ENABLE_TIMING": "1"}),
    "one-queue": Case("fsdp.py", "one_queue", ONE),
    "no-p2p": Case("ddp.py --batch 1", "peer_to_peer_off", {"NCCL_P2P_DISABLE": "1"}),
}


def found_in(case: Case, nproc: int, seconds: float) -> tuple[Counter[str], int]:
    """How often each rule found something, and how often it was asked."""
    script, *options = case.words.split()
    command = torchrun(nproc, WORKLOADS / script, *options)
    found: Counter[str] = Counter()
    asked = 0
    with (
        job_folder(),
        running(
            command, env=os.environ | case.environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as job,
        closing(JobSession()) as session,
    ):  # fmt: skip
        begun_s = monotonic()
        while (gone_s := monotonic() - begun_s) < seconds and job.poll() is None:
            snapshot = session.tick()
            session.watch([view.rank for view in snapshot.ranks])
            if gone_s > seconds / 2 and (evidence := evidence_of(snapshot)).steps:
                asked += 1
                found.update({each.rule for each in find(evidence)})
            sleep(1.0)
    return found, asked


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], help="default: all")
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each case")
    options = parser.parse_args()
    print_head("case", "expected", "found (of the times asked)")
    for name in options.cases or CASES:
        found, asked = found_in(CASES[name], options.nproc, options.seconds)
        usual = [f"{rule} {times}/{asked}" for rule, times in found.most_common() if times > MOSTLY * asked]
        print_row(name, CASES[name].expected or "-", ", ".join(usual) or "-")


if __name__ == "__main__":
    main()

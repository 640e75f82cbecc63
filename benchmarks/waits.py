"""What it costs a dashboard to know who waits for whom, as a share of one core.

    python benchmarks/waits.py [--ranks 8] [--collectives 200] [--steps-per-s 20] [--seconds 5]

A fleet is given the messages of that many steps a second of all ranks, and asked for a Snapshot ten times
for each second of the job. The second line is what the same steps cost without collectives.
"""

from __future__ import annotations

import argparse
import random
from itertools import chain
from time import process_time_ns

from synthetic import BUCKET_BYTES, greetings

from overlaptop.fleet.fleet import Fleet
from overlaptop.wire.messages import CollectiveSpan, StepDetail, StepTotals
from overlaptop.wire.schema import Message

SNAPSHOTS_PER_S = 10
ROUNDS = 5
"""Of which the cheapest counts: the machine may be busy with other things."""
T0_NS = 1_700_000_000_000_000_000


def messages(ranks: int, step: int, step_ns: int, collectives: int) -> list[Message]:
    """All ranks' messages of one step: collectives one after the other, half of each beside compute."""
    made: list[Message] = []
    draw = random.Random(step)
    slot_ns = step_ns // max(1, collectives)
    lasts_ns = [draw.randrange(slot_ns // 4) for _ in range(collectives)]
    for rank in range(ranks):
        spans = tuple(
            CollectiveSpan(
                "allreduce_",
                BUCKET_BYTES,
                "0 default_pg",
                True,
                at * slot_ns + (last_ns if rank == at % ranks else draw.randrange(last_ns + 1)),
                at * slot_ns + slot_ns * 3 // 4,
                sequence=step * collectives + at + 1,
            )
            for at, last_ns in enumerate(lasts_ns)
        )
        comm = tuple(at for span in spans for at in (span.start_ns, span.end_ns))
        compute = tuple(at for n in range(collectives) for at in (n * slot_ns, n * slot_ns + slot_ns // 2))
        start_ns = T0_NS + step * step_ns
        made.append(
            StepTotals(
                rank=rank, step=step, start_ns=start_ns, step_ns=step_ns, compute_ns=step_ns // 2,
                comm_ns=None if not spans else sum(comm[1::2]) - sum(comm[::2]), hidden_ns=0, exposed_ns=0,
                compute_only_ns=0, copy_only_ns=0, idle_ns=0, stall_ns=0, forward_ns=None, backward_ns=None,
                optimizer_ns=None, collectives=collectives, comm_bytes=None, dropped=0,
            )
        )  # fmt: skip
        made.append(StepDetail(rank, step, start_ns, step_ns, (), compute, comm, (), (), spans))
    return made


def busy_ns(batches: list[list[Message]], ranks: int) -> tuple[int, int]:
    """CPU time of the snapshots between these batches, and the steps that were split in them."""
    fleet = Fleet(lambda: T0_NS)
    for greeting in greetings(ranks, T0_NS):
        fleet.apply(greeting)
    taken_ns = split = 0
    for batch in batches:
        began_ns = process_time_ns()
        for message in batch:
            fleet.apply(message)
        snapshot = fleet.snapshot()
        taken_ns += process_time_ns() - began_ns
        split += len(snapshot.fresh_waits)
    return taken_ns, split


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--collectives", type=int, default=200)
    parser.add_argument("--steps-per-s", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=5)
    options = parser.parse_args()
    step_ns, steps = 10**9 // options.steps_per_s, options.steps_per_s * options.seconds
    for collectives in (options.collectives, 0):
        made = [messages(options.ranks, step, step_ns, collectives) for step in range(steps)]
        each = max(1, options.steps_per_s // SNAPSHOTS_PER_S)
        batches = [list(chain(*made[at : at + each])) for at in range(0, steps, each)]
        taken_ns, split = min(busy_ns(batches, options.ranks) for _ in range(ROUNDS))
        share = taken_ns / (options.seconds * 10**9)
        print(f"{collectives} collectives: {share:.1%} of a core, {split} of {steps} steps split")


if __name__ == "__main__":
    main()

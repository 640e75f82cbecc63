"""A job in which a rank comes late to its collectives, by how much."""

from msgspec.structs import replace

from overlaptop.wire.messages import CollectiveSpan
from tests.fleet.builders import MS, detail, info, status, step, welcome
from tests.fleet.fakes import FakeSession

STEPS = 8  # As many as a Snapshot takes at once


def split_step(rank, number, *, late_ms=0, end_ms=50):
    """80 ms with two all-reduces of all ranks, one hidden, one exposed. On the other ranks they begin at 10
    and 30 ms, here so much later; they end at 30 and at ``end_ms``.
    """
    first, second = 10 + late_ms, 30 + late_ms
    spans = ((first, 30), (second, end_ms))
    collectives = tuple(
        CollectiveSpan("allreduce_", size, "0 default_pg", True, start * MS, end * MS)
        for (start, end), size in zip(spans, (1 << 20, 2 << 20), strict=True)
    )
    comm, exposed = sum(end - start for start, end in spans), end_ms - second
    totals = step(rank, number, compute=80 - exposed, comm=comm, hidden=comm - exposed, idle=0, stall=0)
    made = replace(
        detail(rank, number),
        compute_spans_ns=(0, second * MS, end_ms * MS, 80 * MS),
        comm_spans_ns=(first * MS, 30 * MS, second * MS, end_ms * MS),
        stall_spans_ns=(),
        collectives=collectives,
    )
    return totals, made


def say_step(session, number, *, late=None, late_ms=16, ranks=4, ends=lambda _rank: 50):
    """All ranks tell of this step, in which rank ``late`` comes so much later."""
    for rank in range(ranks):
        late_by = late_ms if rank == late else 0
        session.say(*split_step(rank, number, late_ms=late_by, end_ms=ends(rank)))


def waiting_job(late=lambda _number: 2, *, ranks=4, late_ms=16, ends=lambda _rank: 50):
    """``late``: which rank is, in the step of that number; ``ends``: when a rank leaves the second
    collective, in ms.
    """
    session = FakeSession(welcome(world_size=ranks, script="train.py"), status())
    session.say(*(info(rank) for rank in range(ranks)))
    for number in range(STEPS):
        say_step(session, number, late=late(number), late_ms=late_ms, ranks=ranks, ends=ends)
    return session

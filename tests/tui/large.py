"""A job with more ranks than rows."""

from msgspec.structs import replace

from overlaptop.wire.messages import GroupMembers
from tests.fleet.builders import MS, T0, detail, info, status, step, welcome
from tests.fleet.fakes import FakeSession

NODE_RANKS = 8
SLOW_PLACE, SLOW_NODE, ABSENT_NODE, LATE = 3, 10, 20, 137
"""A GPU position and a node with a slow link, a node without agents, and the late rank."""
STEPS = 6


def exposed_ms(rank):
    """How much communication of the rank is exposed, of 30 ms."""
    if rank == LATE:
        return 1
    return 10 + 5 * (rank % NODE_RANKS == SLOW_PLACE) + 12 * (rank // NODE_RANKS == SLOW_NODE)


def present(ranks):
    """The ranks with an agent."""
    return [rank for rank in range(ranks) if rank // NODE_RANKS != ABSENT_NODE]


def large_job(ranks=1024):
    """Rank 0's timeline names the groups of its node and of its place on all nodes."""
    session = FakeSession(welcome(world_size=ranks, script="train.py"), status())
    for rank in present(ranks):
        place = {"host": f"gpu-{rank // NODE_RANKS}", "local_rank": rank % NODE_RANKS}
        session.say(info(rank, world_size=ranks, **place))
        for number in range(STEPS):
            made = step(rank, number, compute=60, comm=30, hidden=30 - exposed_ms(rank), stall=2)
            session.say(replace(made, start_ns=T0 + number * 100 * MS, step_ns=100 * MS))
    groups = {"tp": range(NODE_RANKS), "dp": range(0, ranks, NODE_RANKS)}
    members = tuple(GroupMembers(name, tuple(each)) for name, each in groups.items())
    session.say(replace(detail(0, STEPS - 1), groups=members))
    session.clock.pass_s(STEPS / 10)
    return session

"""A job without processes: Snapshots made of a few figures, and a session that plays them."""

from overlaptop.fleet.snapshot import HubState
from overlaptop.wire.commands import CommandReport
from overlaptop.wire.messages import RankEnd
from tests.fleet.builders import info, status, step, welcome
from tests.fleet.fakes import FakeSession


def rank_info(rank, **changes):
    """Its compute is an upper bound."""
    return info(rank, exact=False, **changes)


def totals(rank, number, *, comm=20, hidden=15, **changes):
    """50 ms of step, all of it compute but for what is exposed."""
    exposed = comm - hidden
    return step(
        rank, number, compute=50 - exposed, comm=comm, hidden=hidden, idle=0, stall=exposed, **changes
    )


class PlayedSession(FakeSession):
    """Each tick applies the next batch of messages; after the last, nothing comes any more."""

    def __init__(self, *batches, hub_state=HubState.LIVE):
        super().__init__(hub_state=hub_state)
        self._batches, self._hub_state = list(batches), hub_state

    def tick(self):
        self.clock.pass_s(1)
        self.say(*(self._batches.pop(0) if self._batches else ()))
        self.fleet.set_hub_state(HubState.ENDED if self.fleet.hub().job_ended else self._hub_state)
        return super().tick()


def arrival():
    """Both ranks announce themselves, and there is no history."""
    return [welcome(), rank_info(0), rank_info(1), status()]


def reported(command, rank, state, step=None, text=""):
    """How far a rank is with a command."""
    return CommandReport(rank, command.id, command.name, 0, state, step, text)


def end():
    """Both ranks leave."""
    return [*(RankEnd(rank=rank, at_ns=0, clean=True, exit_code=0) for rank in (0, 1)), status(ended=True)]

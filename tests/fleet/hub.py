"""What a hub publishes of its ranks' messages: their reports come to dashboards as outcomes."""

from collections import defaultdict
from typing import get_args

from overlaptop.fleet.job_state import JobState
from overlaptop.fleet.snapshot import HubState
from overlaptop.hub.executions import CommandExecutions
from overlaptop.hub.history import FromRank
from overlaptop.wire.codec import decode
from overlaptop.wire.commands import CHANGES, RESTORE, Argument, Command, CommandReport, describe
from overlaptop.wire.messages import RankEnd, RankInfo, Welcome

from .builders import Clock, info, status, welcome


class PlayedHub:
    """A hub without a process. A report on a command that it was not given begins that command."""

    def __init__(self):
        self._job = ""
        self._begin("")

    def _begin(self, job):
        if job != self._job or not job:
            self._job = job
            self._executions = CommandExecutions(lambda _: None)
            self._ranks = set()

    def publish(self, *messages):
        """These messages as dashboards receive them."""
        published = []
        for message in messages:
            match message:
                case Welcome():
                    self._begin(message.job)
                case RankInfo():
                    self._ranks.add(message.rank)
                case RankEnd():
                    self._ranks.discard(message.rank)
                case Command() if not self._executions.knows(message.id):
                    self._executions.begin(message, sorted(self._ranks), 0.0)
                case CommandReport() if not self._executions.knows(message.command):
                    self._executions.begin(_unheard(message), sorted(self._ranks), 0.0)
            if isinstance(message, get_args(FromRank)):
                self._executions.receive(message, 0.0)
            if not isinstance(message, CommandReport):
                published.append(message)
            published += map(decode, self._executions.settle())
        return published


def _unheard(report):
    """A command of the report's kind."""
    if report.name in CHANGES:
        return Command(report.command, RESTORE, (), "", 0, "a_knob")
    return Command(report.command, report.name, (Argument("steps", 1),), "", 0)


class PlayedFleet(JobState):
    """A JobState behind PlayedHubs, one a node."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._played = defaultdict(PlayedHub)

    def apply(self, message, node=""):
        for each in self._played[node].publish(message):
            super().apply(each, node)


class PlayedJob:
    """A PlayedFleet with ranks that have announced themselves, and its clock."""

    def __init__(self, ranks=2):
        self.clock = Clock()
        self.fleet = PlayedFleet(self.clock)
        self.fleet.set_hub_state(HubState.LIVE)
        self.send(welcome(world_size=ranks), status(), *(info(rank) for rank in range(ranks)))

    def send(self, *messages):
        for message in messages:
            self.fleet.apply(message)


def sent(session):
    """The commands that went through it, in words."""
    return [describe(command) for command in session.sent]

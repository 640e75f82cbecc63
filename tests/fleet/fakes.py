"""What stands in for a session, a hub and another host: tests speak through them, and cut lines."""

from dataclasses import dataclass, field
from types import SimpleNamespace

from msgspec.structs import replace

from overlaptop.fleet.job_session import JobSession
from overlaptop.fleet.snapshot import HubState
from overlaptop.jobs.record import JobRecord
from overlaptop.wire.messages import Found

from .builders import T0, Clock, info, status, step, welcome
from .hub import PlayedFleet, PlayedHub


def record(job="job-1", script="train.py", *, hub_pid=1, cwd="/work", **changes):
    made = JobRecord(
        protocol=1, job=job, script=script, cwd=cwd, host="gpu-a", world_size=2, python="python",
        starter_pid=1, starter_start_ticks=1, hub_pid=hub_pid, hub_start_ticks=1, started_ns=T0,
        dashboard_socket="dash.sock", rank_pids=(),
    )  # fmt: skip
    return replace(made, **changes)


@dataclass
class FakeHub:
    to: JobRecord
    alive: bool = True
    last_received_s: float | None = None
    dropped: int = 0
    closed: bool = False
    watched: frozenset = frozenset()
    bursts: int = 0
    inbox: list = field(default_factory=list)
    sent: list = field(default_factory=list)
    _hub: PlayedHub = field(default_factory=PlayedHub)

    def say(self, *messages):
        self.inbox += self._hub.publish(*messages)
        self.last_received_s = 0.0

    def poll(self):
        messages, self.inbox = self.inbox, []
        return messages

    def watch(self, ranks, bursts=0):
        self.watched, self.bursts = frozenset(ranks), bursts

    def send(self, message):
        if self.last_received_s is None:
            return False
        self.sent.append(message)
        return True

    def close(self):
        self.closed = True


class FakeHost:
    """Another host with jobs of its own. Tests break its connection, which a hub connection outlives."""

    def __init__(self, name, *jobs):
        self.name = name
        self.jobs = list(jobs)
        self.hubs = []
        self.ready = self.known = True
        self.connecting = False
        self.note = ""
        self.detail = ""
        self.readonly = False
        self.bytes_per_s = 2_000.0
        self.clock = SimpleNamespace(offset_ns=5_000_000, residual_ns=100_000)
        self.closed = False

    @property
    def hub(self):
        """The newest one."""
        return self.hubs[-1]

    def connect(self):
        self.ready, self.note = True, ""
        for hub in self.hubs:
            hub.last_received_s = 0.0

    def cut(self, note="the line broke"):
        """Nothing comes and nothing goes; that the hub may have died nobody knows."""
        self.ready, self.note = False, note
        for hub in self.hubs:
            hub.last_received_s = None

    def maintain(self):
        pass

    def list_jobs(self):
        return list(self.jobs)

    def open_hub(self, to):
        self.hubs.append(FakeHub(to))
        return self.hub

    def is_gone(self, job):
        return False

    def close(self):
        self.closed = True


class FakeSession:
    """Snapshots of a real JobState; time passes only when the test says so."""

    def __init__(self, *messages, hub_state=HubState.LIVE, jobs=(), job_key="job-1"):
        self.clock = Clock()
        self.fleet = PlayedFleet(self.clock)
        self.fleet.set_hub_state(hub_state, "" if hub_state is HubState.LIVE else "waiting for a job")
        self.jobs = tuple(jobs)
        self.job_key = job_key
        self.watched = frozenset()
        self.selected = []
        self.sent = []
        self.found = []  # Rules of the findings that the hub was told of
        self.no_line = ""
        self.ticks = 0
        self.say(*messages)

    def say(self, *messages):
        for message in messages:
            self.fleet.apply(message)

    def tick(self):
        self.ticks += 1
        return self.fleet.snapshot()

    def watch(self, ranks, bursts=0):
        self.watched = frozenset(ranks)

    def send(self, command):
        if self.no_line:
            return self.no_line
        if isinstance(command, Found):
            self.found.append(command.rule)
            return ""
        self.sent.append(command)
        self.fleet.apply(command)
        return ""

    def select(self, key):
        self.selected.append(key)
        self.job_key = key

    def close(self):
        pass


class Hosts:
    """Hosts by these names, each with two ranks of job-1; a host without a name is this machine."""

    def __init__(self, *names, jobs=(), selector=None, **options):
        self.clock = Clock()
        self.hosts = [FakeHost(name, *(jobs or [record()])) for name in names or [""]]
        self.start(selector, **options)

    def start(self, selector=None, **options):
        """Begin another session."""
        clocks = {"clock_ns": self.clock, "monotonic_s": self.clock.monotonic_s}
        self.session = JobSession(selector, self.hosts, **clocks, **options)

    @property
    def host(self):
        return self.hosts[0]

    def list(self, *jobs):
        """All hosts list these jobs from now on."""
        for host in self.hosts:
            host.jobs = list(jobs)

    def look(self, after_s=1.0):
        self.clock.pass_s(after_s)
        return self.session.tick()

    def ranks(self, host):
        return [2 * self.hosts.index(host), 2 * self.hosts.index(host) + 1]

    def live(self, steps=(0,), job="job-1"):
        """All hosts are joined and have sent these steps."""
        self.session.tick()
        world = 2 * len(self.hosts)
        for host in self.hosts:
            if host.hubs and host.hub.to.job == job:
                host.hub.say(welcome(job, world))
                for rank in self.ranks(host):
                    host.hub.say(info(rank, host=host.name, world_size=world, job=job))
                    host.hub.say(*(step(rank, number) for number in steps))
                host.hub.say(status())
        return self.session.tick()

    def go_on(self, number):
        for host in self.hosts:
            if host.ready:
                host.hub.say(*(step(rank, number) for rank in self.ranks(host)))

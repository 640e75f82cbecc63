"""A job on several hosts, whose connections a test breaks and restores, as a session for the app."""

from overlaptop.fleet.job_session import JobSession
from tests.fleet.builders import Clock, detail, info, status, step, welcome
from tests.fleet.fakes import FakeHost, record


class Cluster:
    """Hosts by these names, each with two ranks of job-1: the first has ranks 0 and 1."""

    def __init__(self, *names, jobs=()):
        self.clock = Clock()
        self.hosts = [FakeHost(name, self.clock, *(jobs or (record(),))) for name in names]
        self.session = JobSession(hosts=self.hosts, clock_ns=self.clock, monotonic_s=self.clock.monotonic_s)

    def host(self, name):
        return next(host for host in self.hosts if host.name == name)

    def live(self, *others):
        """Every host but the ``others`` is joined and has told of some steps. Returns the session."""
        self.session.tick()
        for number, host in enumerate(self.hosts):
            if host.name not in others and host.hubs:
                self.send_history(host, 2 * number)
        self.session.tick()
        return self.session

    def send_history(self, host, first):
        world = 2 * len(self.hosts)
        messages = [welcome(world_size=world, script="/home/me/train.py")]
        for rank in (first, first + 1):
            messages.append(
                info(rank, host=f"{host.name}.example", local_rank=rank - first, world_size=world)
            )
            messages += [step(rank, number, hidden=28 - 2 * rank) for number in range(40)]
            messages.append(detail(rank, 39))
        host.hub.say(*messages, status())

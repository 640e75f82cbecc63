"""A job on several hosts, whose connections a test breaks and restores, as a session for the app."""

from overlaptop.fleet.job_session import JobSession
from tests.fleet.builders import Clock, detail, info, status, step, welcome
from tests.fleet.fakes import FakeHost, record


class Cluster:
    """Hosts by these names, each with two ranks of job-1: the first has ranks 0 and 1."""

    def __init__(self, *names):
        self.clock = Clock()
        self.hosts = [FakeHost(name, record()) for name in names]
        self.session = JobSession(hosts=self.hosts, clock_ns=self.clock, monotonic_s=self.clock.monotonic_s)

    def host(self, name):
        return next(host for host in self.hosts if host.name == name)

    def live(self, *others):
        """Every host but the ``others`` is joined and has told of some steps. Returns the session."""
        self.session.tick()
        world = 2 * len(self.hosts)
        for number, host in enumerate(self.hosts):
            if host.name in others or not host.hubs:
                continue
            host.hub.say(welcome(world_size=world, script="/home/me/train.py"))
            for local_rank in (0, 1):
                rank, name = 2 * number + local_rank, f"{host.name}.example"
                host.hub.say(info(rank, host=name, local_rank=local_rank, world_size=world))
                host.hub.say(*(step(rank, number, hidden=28 - 2 * rank) for number in range(40)))
                host.hub.say(detail(rank, 39))
            host.hub.say(status())
        self.session.tick()
        return self.session

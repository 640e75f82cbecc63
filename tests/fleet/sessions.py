"""Jobs on this machine or several hosts, whose hubs and connections tests cut, and their session."""

from overlaptop.fleet.job_session import JobSession

from .builders import Clock, info, status, step, welcome
from .fakes import FakeHost, record


class Hosts:
    """Hosts by these names, each with two ranks of job-1; a host without a name is this machine."""

    def __init__(self, *names, jobs=(), selector=None, **options):
        self.clock = Clock()
        self.hosts = [FakeHost(name, self.clock, *(jobs or [record()])) for name in names or [""]]
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

    def send_history(self, host, steps=(0,), job="job-1"):
        """Its hub's history, then nothing more."""
        world = 2 * len(self.hosts)
        said = [welcome(job, world)]
        for rank in self.ranks(host):
            said.append(info(rank, host=host.name, world_size=world, job=job))
            said += [step(rank, number) for number in steps]
        host.hub.say(*said, status())

    def live(self, steps=(0,), job="job-1"):
        """All hosts are joined and have sent these steps."""
        self.session.tick()
        for host in self.hosts:
            if host.hubs and host.hub.to.job == job:
                self.send_history(host, steps, job)
        return self.session.tick()

    def go_on(self, number):
        for host in self.hosts:
            if host.ready:
                host.hub.say(*(step(rank, number) for rank in self.ranks(host)))

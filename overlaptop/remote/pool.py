"""The connections to all hosts: four attempts at a time. At the start, ssh may ask on the terminal."""

import sys
from collections.abc import Callable, Iterable, Sequence
from selectors import DefaultSelector

from overlaptop.jobs.processes import raise_descriptor_limit
from overlaptop.remote import failures
from overlaptop.remote.bootstrap import remote_command
from overlaptop.remote.child import end_all
from overlaptop.remote.connection import ConnectionState
from overlaptop.remote.host import RemoteHost
from overlaptop.remote.targets import SRUN, Target

AT_ONCE = 4  # Logins at the same time. An sshd refuses some if there are more than ten.
_POLL_S = 0.02
_CLOSE_PATIENCE_S = 0.5


class ConnectionPool:
    """The connections to these hosts, without a Slurm job's other nodes if its first one gathers them."""

    def __init__(
        self,
        targets: Sequence[Target],
        report: Callable[[str], None],
        *,
        python: str = "",
        remote_dir: str = "",
        readonly: bool = False,
    ) -> None:
        """``report``: called with progress, line by line. Options and ValueError: as in remote_command."""
        words = remote_command(python, remote_dir, readonly=readonly)
        raise_descriptor_limit()
        self._selector = DefaultSelector()
        self._report = report
        self._words = words
        first = {each.place: each for each in reversed(targets) if each.kind == SRUN}
        self._later = [each for each in targets if each.kind == SRUN and each != first[each.place]]
        self.hosts = self._hosts(each for each in targets if each not in self._later)

    def connect(self, *, interactive: bool) -> None:
        """Try each connection once, wait for the results, and report them.

        First all hosts are tried without questions. Then, if ``interactive``, those where ssh wants to ask
        are tried one after the other on the terminal. Ctrl-C closes all connections.
        """
        try:
            self._settle(self.hosts)
            gathered = {each.target.place for each in self.hosts if _gathers(each)}
            others = self._hosts(each for each in self._later if each.place not in gathered)
            self._later.clear()
            self.hosts += others
            self._settle(others)
            if interactive:
                for host in [each for each in self.hosts if each.needs_terminal]:
                    self._report(f"{host.name}: once more, with your help")
                    host.start(interactive=True, on_stderr=_show)
                    self._settle((host,))
        except BaseException:
            self.close()
            raise

    def poll(self) -> None:
        for host in self.hosts:
            host.maintain()

    def receive(self) -> None:
        """Read the available data. For an event loop that watches `fileno`."""
        for key, _ in self._selector.select(0):
            host: RemoteHost = key.data
            host.receive()

    def fileno(self) -> int:
        """Return the descriptor that is readable whenever `receive` has work."""
        return self._selector.fileno()

    def close(self) -> None:
        """Give all connections up and wait until their processes have ended: at most 1.5 s."""
        for host in self.hosts:
            host.close()
        end_all([process for each in self.hosts for process in each.processes], _CLOSE_PATIENCE_S)
        self._selector.close()

    def _hosts(self, targets: Iterable[Target]) -> tuple[RemoteHost, ...]:
        more = self._words, self._selector
        return tuple(RemoteHost(target, *more, may_start=self._may_start) for target in targets)

    def _may_start(self) -> bool:
        return sum(host.logging_in for host in self.hosts) < AT_ONCE

    def _settle(self, hosts: Sequence[RemoteHost]) -> None:
        waiting = list(hosts)
        while waiting:
            self.poll()  # all hosts: a relay ends if it receives no message for long
            for host in tuple(waiting):
                if host.settled:
                    waiting.remove(host)
                    self._report(_describe(host))
            self._selector.select(_POLL_S)


def _gathers(host: RemoteHost) -> bool:
    """Whether all nodes of a Slurm job can be reached through this one (``--gather``)."""
    jobs = host.list_jobs()
    return host.target.kind == SRUN and bool(jobs) and all(job.is_root for job in jobs)


def _describe(host: RemoteHost) -> str:
    name, jobs = host.name, host.jobs
    if host.state is not ConnectionState.UP:
        return f"{name}: {host.reason}"
    if jobs is None:
        return f"{name}: reached; {host.reason}"
    return failures.one_line(f"{name}: connected (overlaptop {jobs.version} on {jobs.host})")


def _show(data: bytes) -> None:
    """Show the user ssh's own output while it asks."""
    sys.stderr.buffer.write(data)
    sys.stderr.flush()

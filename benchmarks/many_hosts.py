"""What watching many hosts at once costs: time to connect, clock residuals, bytes a second, CPU.

One OpenSSH server on loopback plays all hosts: each has a socket directory, a hub and a rank of one job of
its own, and is reached by its own ssh. First only the connections, then the dashboard on them in a
terminal of its own. The ranks send what those of benchmarks/dashboard.py do.

    PYTHONPATH=. python benchmarks/many_hosts.py [--hosts N] [--steps-per-s HZ] [--seconds S]
        [--max-startups WORD] [--profile FILE]
"""

from __future__ import annotations

import argparse
import getpass
import os
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import terminals
from msgspec.structs import replace
from synthetic import PlayedRanks
from torchrun import end, start

from overlaptop.fleet.snapshot import HubState
from tests.hubs import KEY, Hubs, Rank
from tests.processes import eventually
from tests.remote.hosts import SSHD, make_key, public_part
from tests.remote.watching import Watching

T = TypeVar("T")

COLUMNS, ROWS = 160, 45
SETTLE_S = 3.0
"""After the first picture: late imports and the history belong to the start."""
TICK_S = 0.25


class Hosts:
    """Names that ssh knows, behind one server, each with a socket directory of its own."""

    def __init__(self, folder: Path, count: int, max_startups: str) -> None:
        self.names = [f"node-{number:02}" for number in range(count)]
        self._folder = folder
        host_key, key = make_key(folder / "host_key"), make_key(folder / "key")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        settings = [
            "ListenAddress 127.0.0.1", f"Port {port}", f"HostKey {host_key}",
            f"PidFile {folder}/pid", f"AuthorizedKeysFile {key}.pub", "UsePAM no", "StrictModes no",
            "AcceptEnv OVERLAPTOP_DIR", "PasswordAuthentication no", "PrintMotd no",
            "PermitRootLogin prohibit-password",
            *([f"MaxStartups {max_startups}"] if max_startups else []),
        ]  # fmt: skip
        (folder / "sshd_config").write_text("\n".join(settings) + "\n")
        (folder / "known").write_text(f"nodes {public_part(host_key)}\n")
        lines = []
        for name in self.names:
            self.directory(name).mkdir(mode=0o700)
            lines += [f"Host {name}", f"  SetEnv OVERLAPTOP_DIR={self.directory(name)}"]
        lines += [
            "Host *", "  HostName 127.0.0.1", f"  Port {port}", f"  User {getpass.getuser()}",
            f"  IdentityFile {key}", "  IdentitiesOnly yes", "  IdentityAgent none",
            f"  UserKnownHostsFile {folder}/known", "  HostKeyAlias nodes", "  StrictHostKeyChecking yes",
        ]  # fmt: skip
        (folder / "ssh_config").write_text("\n".join(lines) + "\n")
        ssh = folder / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec ssh -F {folder}/ssh_config "$@"\n')
        ssh.chmod(0o755)
        os.environ["OVERLAPTOP_SSH"] = str(ssh)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where root's sshd shuts itself in
        with (folder / "log").open("wb") as log:
            self._sshd = start([str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
        eventually((folder / "pid").exists)

    def directory(self, name: str) -> Path:
        """Of the sockets of this host's jobs."""
        return self._folder / name

    def refused(self) -> int:
        """Logins that the server turned away since there were too many at a time."""
        log = (self._folder / "log").read_text(errors="replace")
        return sum("MaxStartups" in line and "drop" in line for line in log.splitlines())

    def close(self) -> None:
        """End the server."""
        end(self._sshd)


@contextmanager
def job_on(hosts: Hosts, steps_per_s: float, past_s: float) -> Iterator[None]:
    """One job with a rank on each host, each with a hub of its own."""
    count = len(hosts.names)
    ranks = []
    with ExitStack() as stack:
        for number, name in enumerate(hosts.names):
            directory, hubs = hosts.directory(name), Hubs()
            stack.callback(_in_socket_dir, directory, hubs.end_all)
            _in_socket_dir(directory, hubs.start)
            rank = _in_socket_dir(directory, partial(Rank, number))
            rank.info = replace(
                rank.info, world_size=count, host=name, source="kernels", compute_exact=True
            )
            ranks.append(rank.greet())
        played = PlayedRanks(ranks, steps_per_s, past_s)
        stack.callback(played.close)
        played.detailed = (0,)  # the overview shows one rank's timeline: that of the first
        yield


def connections_alone(hosts: Hosts, seconds: float) -> None:
    """Connect, follow the job for so long without a screen, and say what that cost."""
    began_s, count = time.monotonic(), len(hosts.names)
    with Watching(*hosts.names, key=KEY).connect() as watching:
        connected_s = time.monotonic() - began_s
        up = sum(connection.ready for connection in watching.pool.connections)
        watching.until(lambda snapshot: sum(view.last is not None for view in snapshot.ranks) == count)
        whole_s = time.monotonic() - began_s
        watching.go_on(SETTLE_S)
        received: dict[str, list[float]] = {name: [] for name in hosts.names}
        cpu_s, from_s = time.thread_time(), time.monotonic()
        while time.monotonic() - from_s < seconds:
            watching.session.pause(TICK_S)
            for node in watching.tick().nodes:
                if node.bytes_per_s is not None:
                    received[node.name].append(node.bytes_per_s)
        used = (time.thread_time() - cpu_s) / (time.monotonic() - from_s)
        nodes = watching.tick().nodes
    live = sum(node.hub_state is HubState.LIVE for node in nodes)
    residuals_ms = sorted(node.residual_ns / 1e6 for node in nodes if node.residual_ns is not None)
    rates = [statistics.mean(each) for each in received.values() if each]
    print(
        f"connected      {up} of {count} hosts in {connected_s:.1f} s, {hosts.refused()} logins turned away"
    )
    print(f"whole picture  {live} live, a step of each rank {whole_s:.1f} s after the start")
    print(
        f"clocks         residual {statistics.median(residuals_ms):.2f} ms in the median, "
        f"{residuals_ms[-1]:.2f} ms at most"
    )
    print(
        f"bytes          {statistics.mean(rates) / 1024:.1f} KiB/s a host, {max(rates) / 1024:.1f} at most"
    )
    print(f"CPU            {used * 100:.1f} % of one core for connections and session without a screen")


def on_the_screen(hosts: Hosts, seconds: float, profile: str) -> None:
    """The dashboard on all hosts: what it takes of a core while nobody touches it."""
    started_s = time.monotonic()
    profiled = ["-m", "cProfile", "-o", profile] if profile else []
    words = [*profiled, "-m", "overlaptop", *hosts.names]
    with terminals.on_terminal(words, COLUMNS, ROWS) as (pid, terminal):
        terminals.read_until(terminal, ["exposed", hosts.names[-1]], 60.0)
        painted_s = time.monotonic() - started_s
        terminals.read_for(terminal, SETTLE_S)
        children = _children(pid)
        before_s, before_children_s = terminals.cpu_s(pid), sum(map(terminals.cpu_s, children))
        from_s = time.monotonic()
        count = terminals.read_for(terminal, seconds)
        passed_s = time.monotonic() - from_s
        used = terminals.cpu_s(pid) - before_s
        used_by_ssh = sum(map(terminals.cpu_s, children)) - before_children_s
        os.write(terminal, b"q")
        terminals.read_for(terminal, 3.0)
    print(f"dashboard      painted {painted_s:.1f} s after its start")
    print(f"CPU            {used / passed_s * 100:.1f} % of one core for the dashboard")
    print(
        f"               and {used_by_ssh / passed_s * 100:.1f} % for its {len(children)} processes of ssh"
    )
    print(f"terminal       {count / passed_s / 1024:.1f} KiB/s")


def _in_socket_dir(directory: Path, call: Callable[[], T]) -> T:
    """Call it while this process looks for jobs there."""
    os.environ["OVERLAPTOP_DIR"] = str(directory)
    try:
        return call()
    finally:
        del os.environ["OVERLAPTOP_DIR"]


def _children(pid: int) -> Sequence[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--steps-per-s", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--max-startups", default="", help="of the server; else as sshd has it by itself")
    parser.add_argument("--profile", default="", help="write a profile of the dashboard here")
    options = parser.parse_args()
    if shutil.which("ssh") is None or not SSHD.exists():
        parser.exit(1, "many_hosts.py: needs OpenSSH's client and server\n")
    # Short: the names of sockets lie below it.
    folder = Path(tempfile.mkdtemp(prefix="ot-", dir="/tmp"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        hosts = Hosts(folder, options.hosts, options.max_startups)
        stack.callback(hosts.close)
        stack.enter_context(job_on(hosts, options.steps_per_s, past_s=20.0))
        print(
            f"{options.hosts} hosts behind one sshd (MaxStartups {options.max_startups or 'by default'}), "
            f"a rank each at {options.steps_per_s:g} steps/s"
        )
        connections_alone(hosts, options.seconds)
        on_the_screen(hosts, options.seconds, options.profile)


if __name__ == "__main__":
    main()

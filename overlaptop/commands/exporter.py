"""``overlaptop exporter``: metrics of running jobs for Prometheus."""

import argparse
import signal
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from overlaptop.commands.arguments import Hosts, add_flag, add_hosts, add_job, add_value, hosts_of, positive
from overlaptop.commands.jobs import connect
from overlaptop.commands.output import CommandError, print_message, refusing
from overlaptop.fleet.job_session import JobSelector, JobSession
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.jobs.record import list_jobs

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

DESCRIPTION = """\
Serve metrics of all jobs of this machine, or of a job on other hosts, to Prometheus, until Ctrl-C. Jobs may
come and go. Needs: pip install 'overlaptop[metrics]'
"""
EPILOG = """\
Only this machine can read the port unless --listen names another address. Then give --tls-cert and
--tls-key: without them, anyone on the network can read the names of scripts and hosts.
exit status: 1 when the port or folder cannot be used, 2 for a usage error; 0 after SIGTERM, 130 after
Ctrl-C.
"""
LOOK_EVERY_S = 2.0
TICK_S = 0.2
KEPT_S = 60.0  # An ended job keeps its series for this time: a scrape then sees how it ended
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
FILE_NAME = "overlaptop.prom"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = partial(add_value, parser)
    add("--port", "N", "serve /metrics on this TCP port", type=_port)
    add("--listen", "ADDRESS", "serve on this address (default 127.0.0.1)", default="127.0.0.1")
    add("--tls-cert", "FILE", "serve https with this certificate", type=Path)
    add("--tls-key", "FILE", "the certificate's private key", type=Path)
    add("--textfile", "DIR", f"write DIR/{FILE_NAME} for node_exporter's textfile collector", type=Path)
    add("--every", "SECONDS", "how often (default 15)", type=positive, default=15)
    add_job(parser, "metrics of this job only")
    detail = "have the ranks measure as many steps as for a dashboard: waiting, late ranks, collectives"
    add_flag(parser, "--detail", detail)
    add_hosts(parser)


def run(options: argparse.Namespace) -> int:
    if options.port is None and options.textfile is None:
        raise CommandError("name where metrics go: --port N or --textfile DIR", 2)
    if (options.tls_cert is None) != (options.tls_key is None):
        raise CommandError("--tls-cert and --tls-key go together", 2)
    from prometheus_client import CollectorRegistry

    from overlaptop.export.metrics import JobsCollector

    collector, registry = JobsCollector(), CollectorRegistry(auto_describe=False)
    registry.register(collector)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so does a service manager end it
    if options.port is not None:
        _serve(options, registry)
    write_at_s = 0.0
    with closing(FollowedJobs(options.job, hosts_of(options), detail=options.detail)) as jobs:
        try:
            while True:
                followed = jobs.tick()
                for session, snapshot in followed:
                    collector.add(snapshot, session.send)
                collector.keep(snapshot.job.job for _, snapshot in followed if snapshot.job is not None)
                if options.textfile is not None and time.monotonic() >= write_at_s:
                    write_at_s = time.monotonic() + options.every
                    _write(options.textfile, registry)
                jobs.pause()
        finally:
            if options.textfile is not None:
                (options.textfile / FILE_NAME).unlink(missing_ok=True)


class FollowedJobs:
    """The followed jobs and their sessions: of this machine all or one, of other hosts one."""

    def __init__(self, key: str | None, hosts: Hosts | None, *, detail: bool) -> None:
        self._key, self._detail = key, detail
        self._remote = None if hosts is None else connect(hosts, JobSelector(key=key), readonly=True)
        self._sessions: dict[str, Session] = {} if self._remote is None else {"": self._remote}
        self._look_at_s = 0.0

    def tick(self) -> list[tuple[Session, Snapshot]]:
        """Return the running jobs, and those of this machine that ended less than KEPT_S ago."""
        if self._remote is None and time.monotonic() >= self._look_at_s:
            self._look_at_s = time.monotonic() + LOOK_EVERY_S
            for key in (record.job for record in list_jobs()):
                if key not in self._sessions and self._key in (None, key):
                    self._sessions[key] = self._session_of(key)
        followed: list[tuple[Session, Snapshot]] = []
        for key, session in list(self._sessions.items()):
            snapshot = session.tick()
            if self._detail:
                session.watch({view.rank for view in snapshot.ranks})
            gone_s = (snapshot.at_ns - snapshot.hub_since_ns) / 1e9
            is_over = snapshot.hub_state is not HubState.LIVE and not session.jobs and gone_s > KEPT_S
            if is_over and self._remote is None:
                self._sessions.pop(key).close()
            else:
                followed.append((session, snapshot))
        return followed

    def _session_of(self, key: str) -> JobSession:
        """Follow this job alone: a restart of it is another job here."""
        selector = JobSelector(key=key, matches=lambda record: record.job == key)
        return JobSession(selector, readonly=not self._detail)

    def pause(self) -> None:
        if self._remote is not None:
            self._remote.pause(TICK_S)
        else:
            time.sleep(TICK_S)

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()


def _serve(options: argparse.Namespace, registry: "CollectorRegistry") -> None:
    from prometheus_client import start_http_server

    where = f"{options.listen} port {options.port}"
    certificate, key = (None if path is None else str(path) for path in (options.tls_cert, options.tls_key))
    with refusing(OSError, where=f"{where}: ", status=1):
        server, _ = start_http_server(
            options.port, options.listen, registry, certfile=certificate, keyfile=key
        )
    if options.listen not in _LOOPBACK and certificate is None:
        print_message(f"{where}: served without TLS, to anyone who can reach it")
    scheme = "http" if certificate is None else "https"
    print_message(f"{scheme}://{options.listen}:{server.server_port}/metrics")


def _write(folder: Path, registry: "CollectorRegistry") -> None:
    from prometheus_client import write_to_textfile

    with refusing(OSError, where=f"--textfile {folder}: ", status=1):
        write_to_textfile(str(folder / FILE_NAME), registry)


def _port(text: str) -> int:
    """Read a port. 0 stands for any free one."""
    if not (text.isascii() and text.isdecimal() and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"must be a port, 0 to 65535, not {text!r}")
    return int(text)

"""The jobs here or on other hosts: ``--list``, and a session of the job of a command."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext

from overlaptop import records, text
from overlaptop.commands.arguments import Hosts, hosts_of
from overlaptop.commands.following import pause
from overlaptop.commands.output import CommandError, print_data, print_message, refusing, table
from overlaptop.fleet.hosts_session import HERE, HERE_BYTES_PER_S, HostsSession
from overlaptop.fleet.job_session import JobSelector, JobSession, Tap
from overlaptop.fleet.session import Session
from overlaptop.jobs import last_end
from overlaptop.jobs.credit import DEFAULT_BYTES_PER_S
from overlaptop.jobs.folder import why_not_writable
from overlaptop.jobs.record import JobRecord, list_jobs
from overlaptop.remote.connection import ConnectionState
from overlaptop.remote.pool import ConnectionPool
from overlaptop.report.troubles import of_last

_NO_JOB = (
    "no job with an agent runs {where}; start one: torchrun ... -m overlaptop.agent train.py, "
    "or: overlaptop demo"
)


def run(options: argparse.Namespace) -> int:
    hosts = hosts_of(options)
    jobs = list_records(hosts)
    if options.json:
        print_data(*jobs)
    elif jobs:
        print_data(_table(jobs))
    else:
        print_message(_no_job("here" if hosts is None else "there"))
    return 0


def list_records(hosts: Hosts | None) -> list[records.JobRecord]:
    with closing(connect(hosts)) if hosts is not None else nullcontext() as session:
        jobs = list_jobs() if session is None else session.find_jobs()
    return [records.JobRecord(**records.shared(records.JobRecord, job)) for job in jobs]


def _table(jobs: Sequence[records.JobRecord]) -> str:
    now_ns = time.time_ns()
    rows = []
    for job in jobs:
        age = "ended" if job.ended else text.duration(max(0, now_ns - job.started_ns))
        rows.append([job.job, job.script, str(job.world_size), age, job.host, job.cwd])
    head = ["job", "script", "ranks", "running for", "host", "directory"]
    return table(head, rows, left={"job", "script", "host", "directory"})


def connect(
    hosts: Hosts, selector: JobSelector | None = None, *, readonly: bool = False, tap: Tap | None = None
) -> HostsSession:
    """Reach the hosts; ssh asks on the terminal. CommandError if none can be reached yet."""
    how = {"python": hosts.python, "remote_dir": hosts.remote_dir}
    with refusing(ValueError):
        pool = ConnectionPool(hosts.targets, **how, readonly=readonly, report=print_message)
    pool.connect(interactive=sys.stdin.isatty())
    if not any(host.state is ConnectionState.UP for host in pool.hosts):
        pool.close()
        count = len(hosts.targets)
        raise CommandError(
            "the host cannot be reached" if count == 1 else f"none of {count} hosts can be reached"
        )
    for host in pool.hosts:
        host.limit_bytes_per_s = hosts.bytes_per_s or DEFAULT_BYTES_PER_S
    return HostsSession(pool, selector, readonly=readonly, tap=tap)


@contextmanager
def join(
    key: str | None, hosts: Hosts | None = None, *, wait: bool = False, tap: Tap | None = None
) -> Iterator[Session]:
    """Open a session of the job called `key`, or of the only one, here or on those hosts. CommandError if
    there is no such job, or several, or no host can be reached.
    """
    if hosts is None:
        chosen = _choose(key, None, wait=wait)
        if not chosen.is_root:
            with closing(JobSession(JobSelector(key=chosen.job), tap=tap)) as local:
                yield local
            return
        key, hosts = chosen.job, Hosts((HERE,), bytes_per_s=HERE_BYTES_PER_S)
    with closing(connect(hosts, tap=tap)) as session:
        session.select(_choose(key, session, wait=wait).job)
        yield session


def _choose(key: str | None, session: HostsSession | None, *, wait: bool) -> JobRecord:
    """Return the job called `key`, or the only one, here or on the session's hosts. Without a job: wait if
    `wait`, else CommandError with status 1; with several and no `key` with status 2.
    """
    waiting, where = False, "here" if session is None else "there"
    while True:
        jobs = list_jobs() if session is None else session.find_jobs()
        wanted = [job for job in jobs if key is None or job.job == key]
        if len(wanted) > 1:
            raise CommandError(f"several jobs run {where}, choose one with --job: {_names(wanted)}", 2)
        if wanted:
            return wanted[0]
        missing = _no_job(where)
        if key is not None and jobs:
            missing = f"no job {key} runs {where}; there is: {_names(jobs)}"
        if not wait:
            raise CommandError(missing)
        if not waiting:
            print_message(f"waiting: {missing}")
            waiting = True
        pause(session)


def _no_job(where: str) -> str:
    missing = _NO_JOB.format(where=where)
    if where != "here":
        return missing
    ended = last_end.read()
    how = "" if ended is None else f"; {of_last(ended, time.time_ns())}"
    return why_not_writable() or missing + how


def _names(jobs: Sequence[JobRecord]) -> str:
    return ", ".join(f"{job.job} ({job.script})" for job in jobs)

"""Which job a command without a screen is about, and the session that follows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from overlaptop.console import CommandError, print_message
from overlaptop.console.hosts import Hosts, connect
from overlaptop.fleet.job_session import JobSelector, JobSession
from overlaptop.fleet.session import Session
from overlaptop.wire import writable
from overlaptop.wire.endpoints import EndpointError, JobRecord, list_jobs

LOOK_EVERY_S = 0.2
NO_JOB = (
    "no job with an agent runs {where}; start one: torchrun ... -m overlaptop.agent train.py, "
    "or: overlaptop demo"
)
HERE, THERE = "here", "there"


def join(key: str | None, hosts: Hosts | None = None, *, wait: bool = False) -> Session:
    """A session of the job called `key`, or to the only one, here or on those hosts; close it.

    Raises CommandError as `choose` does, and where no host can be reached.
    """
    if hosts is None:
        return JobSession(JobSelector(key=choose(key, wait=wait).job))
    session = connect(hosts)
    try:
        found = choose(key, wait=wait, find=session.find_jobs, pause=session.pause, where=THERE)
        session.select(found.job)
    except BaseException:
        session.close()
        raise
    return session


def find_jobs() -> Sequence[JobRecord]:
    """Return the jobs of this machine; CommandError where their folder cannot be trusted or read."""
    try:
        return list_jobs()
    except EndpointError as fault:
        raise CommandError(str(fault)) from fault


def choose(
    key: str | None,
    *,
    wait: bool,
    find: Callable[[], Sequence[JobRecord]] = find_jobs,
    pause: Callable[[float], None] = time.sleep,
    where: str = HERE,
) -> JobRecord:
    """Find the job called `key`, or the only job there is, among those that `find` gives.

    Where there is none yet: wait for it if `wait`, else CommandError with status 1. Several jobs and no
    `key`: CommandError with status 2.
    """
    waits = False
    while True:
        jobs = find()
        wanted = [job for job in jobs if key is None or job.job == key]
        if len(wanted) > 1:
            raise CommandError(f"several jobs run {where}, choose one with --job: {_names(wanted)}", 2)
        if wanted:
            return wanted[0]
        missing = no_job(where)
        if key is not None and jobs:
            missing = f"no job {key} runs {where}; there is: {_names(jobs)}"
        if not wait:
            raise CommandError(missing)
        if not waits:
            print_message(f"waiting: {missing}")
            waits = True
        pause(LOOK_EVERY_S)


def no_job(where: str) -> str:
    """Why there is none; CommandError as from `find_jobs`."""
    try:
        return (where == HERE and writable.why_not()) or NO_JOB.format(where=where)
    except EndpointError as fault:
        raise CommandError(str(fault)) from fault


def _names(jobs: Sequence[JobRecord]) -> str:
    return ", ".join(f"{job.job} ({job.script})" for job in jobs)

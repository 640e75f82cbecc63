"""Which job a command without a screen is about."""

from __future__ import annotations

import time

from overlaptop.commands import CommandError, say
from overlaptop.wire.endpoints import EndpointError, JobRecord, list_jobs

LOOK_EVERY_S = 0.2
NO_JOB = (
    "no job with an agent runs here; start one: torchrun ... -m overlaptop.agent train.py, "
    "or: overlaptop demo"
)


def choose(key: str | None, *, wait: bool) -> JobRecord:
    """Find the job called `key`, or the only job there is.

    Where there is none yet: wait for it if `wait`, else CommandError with status 1. Several jobs and no
    `key`: CommandError with status 2.
    """
    said = False
    while True:
        jobs = find_jobs()
        wanted = [job for job in jobs if key is None or job.job == key]
        if len(wanted) > 1:
            raise CommandError(f"several jobs run here, choose one with --job: {_names(wanted)}", 2)
        if wanted:
            return wanted[0]
        missing = NO_JOB
        if key is not None and jobs:
            missing = f"no job {key} runs here; there is: {_names(jobs)}"
        if not wait:
            raise CommandError(missing)
        if not said:
            say(f"waiting: {missing}")
            said = True
        time.sleep(LOOK_EVERY_S)


def find_jobs() -> list[JobRecord]:
    """Return the jobs of this machine; CommandError where their folder cannot be trusted or read."""
    try:
        return list_jobs()
    except EndpointError as fault:
        raise CommandError(str(fault)) from fault


def _names(jobs: list[JobRecord]) -> str:
    return ", ".join(f"{job.job} ({job.script})" for job in jobs)

"""``--list``: the jobs of this machine, or of other hosts."""

from __future__ import annotations

import dataclasses
import json
import time

from overlaptop import text
from overlaptop.console import print_message
from overlaptop.console.choice import HERE, THERE, find_jobs, no_job
from overlaptop.console.hosts import Hosts, connect
from overlaptop.console.table import Table


def run(hosts: Hosts | None = None, *, as_json: bool) -> int:
    """Print a row, or a line of JSON, for each job, newest first."""
    if hosts is None:
        jobs = find_jobs()
    else:
        session = connect(hosts)
        try:
            jobs = session.find_jobs()
        finally:
            session.close()
    if as_json:
        for job in jobs:
            print(json.dumps({"type": "job", **dataclasses.asdict(job)}))  # noqa: T201
        return 0
    if not jobs:
        print_message(no_job(HERE if hosts is None else THERE))
        return 0
    table = Table(
        ["job", "script", "ranks", "running for", "host", "directory"],
        left={"job", "script", "host", "directory"},
    )
    now_ns = time.time_ns()
    for job in jobs:
        age = "ended" if job.ended else text.duration(max(0, now_ns - job.started_ns))
        table.add([job.job, job.script, str(job.world_size), age, job.host, job.cwd])
    print(table.render())  # noqa: T201
    return 0

"""The socket directory, by which ranks, hubs and dashboards find each other, and the jobs in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from overlaptop.agent.sources.cupti.holders import TOOLS, tool_in
from overlaptop.doctor.facts import Facts
from overlaptop.doctor.findings import Finding, fault, ok, unknown, warning
from overlaptop.jobs import writable
from overlaptop.jobs.folder import JobFolderError, base_dir
from overlaptop.jobs.record import JobRecord, list_jobs, read_job
from overlaptop.jobs.sockets import dashboards_socket
from overlaptop.wire.protocol import PROTOCOL_VERSION

LEAST_FREE_BYTES, FEW_FREE_BYTES = 1 << 20, 16 << 20
"""The jobs' logs and the log of changes take some MB."""
MAX_JOBS = 32
"""That are looked at, the newest."""
_A_KEY = "0" * 12
"""As long as the key of a job that torchrun started."""
_LARGEST_PID = 1 << 22
_NETWORK = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "ceph", "9p", "afs", "fuse.sshfs")
_ENVIRON_BYTES = 1 << 20


def check_directory(facts: Facts) -> Finding:
    """Whether a job that starts now can make its sockets here, and a dashboard can find them."""
    try:
        path = base_dir(create=False)
        dashboards_socket(_A_KEY, _LARGEST_PID)
    except JobFolderError as reason:
        return fault("sockets", str(reason))
    except OSError as error:  # there is not one temporary directory
        text = f"no temporary directory can be used ({error.strerror})"
        return fault("sockets", text, "set OVERLAPTOP_DIR")
    there = path.exists()
    place = path if there else path.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return fault(
            "sockets", f"nothing can be made in {place}", "set OVERLAPTOP_DIR to another directory"
        )
    kind = _file_system(facts.text("proc/self/mounts") or "", place)
    if kind in _NETWORK:
        return warning(
            "sockets",
            f"{place} is on a network file system ({kind}), where jobs of other hosts look like dead ones",
            "set OVERLAPTOP_DIR to a directory of this machine alone",
        )
    try:
        space = facts.space(place)
    except OSError as error:
        return unknown("sockets", f"{place} does not say how much room it has ({error.strerror})")
    if why := writable.fault(space, LEAST_FREE_BYTES):
        return fault("sockets", f"{place} {why}", writable.WAY_OUT)
    if (free_bytes := space.f_bavail * space.f_frsize) < FEW_FREE_BYTES:
        return warning("sockets", f"{place} has {free_bytes >> 20} MiB left", "make room")
    return ok("sockets", f"{path}, {'ours, mode 0700' if there else 'which the first job makes'}")


def _file_system(mounts: str, place: Path) -> str:
    """The kind of the file system that a folder is on; empty: it is not told."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        point = Path(words[1].replace("\\040", " "))
        # Of two mounts on the same folder the later one is seen.
        if (place == point or point in place.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), words[2]
    return kind


def check_jobs(facts: Facts) -> Iterator[Finding]:
    """Whether the jobs that run here can be watched, and how well."""
    try:
        jobs = list_jobs()
        base = base_dir(create=False)
    except (JobFolderError, OSError):
        return  # check_directory says so
    for job in jobs[:MAX_JOBS]:
        yield _job(facts, job)
    strange = sorted(path for path in base.glob("*/job.json") if read_job(path.parent.name) is None)
    for path in strange[:MAX_JOBS]:
        remedy = "another version of overlaptop has written it, update the older one"
        yield warning("jobs", f"{path} cannot be read", remedy)
    if not jobs and not strange:
        yield ok("jobs", "none runs here")


def _job(facts: Facts, job: JobRecord) -> Finding:
    name = f"{job.job}, {job.script}, {len(job.rank_pids)} of {job.world_size} ranks here"
    if job.protocol != PROTOCOL_VERSION:
        older = "this one" if job.protocol > PROTOCOL_VERSION else "that one"
        return fault(
            "jobs",
            f"{name}: it speaks protocol {job.protocol}, this overlaptop {PROTOCOL_VERSION}",
            f"watch it by `{job.python} -m overlaptop`, or update {older}",
        )
    for pid in job.rank_pids:
        if (tool := tool_in(_tools_of(facts, pid))) is not None:
            return warning(
                "jobs",
                f"{name}: {tool} holds CUPTI in process {pid}, so single kernels are not seen",
                "start it without that tool",
            )
    return ok("jobs", f"{name}, protocol {job.protocol}")


def _tools_of(facts: Facts, pid: int) -> dict[str, str]:
    """Of a process's environment, what belongs to tools that hold CUPTI; nothing where it is not ours."""
    data = b""
    with suppress(OSError), (facts.root / "proc" / str(pid) / "environ").open("rb") as file:
        data = file.read(_ENVIRON_BYTES)
    pairs = (entry.decode(errors="replace").partition("=") for entry in data.split(b"\0"))
    return {name: value for name, _, value in pairs if name in TOOLS}

"""The records of jobs: who and where, in a file in each job's folder, kept by its hub.

This module is imported in the training process.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from overlaptop.jobs.files import read_regular, write_whole
from overlaptop.jobs.folder import (
    OUR_FILES,
    RECORD_NAME,
    JobFolderError,
    job_dir,
    job_keys,
    remove_job_files,
    try_lock,
)
from overlaptop.jobs.processes import is_alive, process_start_time
from overlaptop.wire.bounds import MAX_RANKS, Int64
from overlaptop.wire.protocol import JOB_KEY
from overlaptop.wire.relaying import RemoteJob

_MAX_RECORD_BYTES = 1 << 18
_MAX_FOLDERS = 16
_MAX_FOLDER_CHARS = 4096
FOLDER = r"\A/[^:\x00-\x1f]*\Z"
Folder = Annotated[str, Meta(pattern=FOLDER, max_length=_MAX_FOLDER_CHARS)]
"""Absolute, and one entry of PYTHONPATH whatever is in its name."""


class JobRecord(msgspec.Struct, frozen=True):
    """The record of a job in its folder: ``job.json``."""

    protocol: Int64
    job: Annotated[str, Meta(pattern=JOB_KEY)]
    script: str
    cwd: str
    host: str
    world_size: Int64
    python: str
    """Interpreter of the job, in which overlaptop can be imported."""
    starter_pid: Int64
    starter_start_ticks: Int64 | None
    """Of the process that started the hub, a rank; None if it had ended before the hub could look."""
    hub_pid: Int64
    hub_start_ticks: Int64
    started_ns: Int64
    """Unix time at which a hub saw this job first."""
    dashboard_socket: Annotated[str, Meta(pattern=OUR_FILES)]
    """Name of the hub's ZeroMQ socket in the job's folder."""
    rank_pids: tuple[Int64, ...]
    """Of the ranks connected now, by rank."""
    import_path: Annotated[tuple[Folder, ...], Meta(max_length=_MAX_FOLDERS)] = ()
    """Folders that `python` needs on PYTHONPATH to import overlaptop, besides those it searches anyway."""
    ended: bool = False
    """Ranks were connected, and none is any more."""
    restarter_pid: Int64 = 0
    """The launcher that may start failed ranks again; 0: none will."""
    restarter_start_ticks: Int64 | None = None

    @classmethod
    def of_remote(cls, job: RemoteJob) -> JobRecord:
        """The record of a job on another host, where its processes and its socket are."""
        return cls(**msgspec.structs.asdict(job), python="")

    @property
    def remote(self) -> RemoteJob:
        """What another host is to know of it; the pids of the first MAX_RANKS ranks."""
        values = {name: getattr(self, name) for name in RemoteJob.__struct_fields__}
        return RemoteJob(**{**values, "rank_pids": self.rank_pids[:MAX_RANKS]})

    @property
    def gone(self) -> bool:
        """Whether none of the job's processes is left that could start a hub again.

        To be asked once its hub has ended: a job that was killed together with it reports no end.
        """
        if self.starter_alive:
            return False
        try:
            return all(process_start_time(pid) is None for pid in self.rank_pids)
        except OSError:
            return False  # /proc cannot be read just now

    @property
    def may_restart(self) -> bool:
        """Whether a launcher that starts failed ranks again still runs."""
        return is_alive(self.restarter_pid, self.restarter_start_ticks)

    @property
    def starter_alive(self) -> bool:
        """Whether the process that started the hub still runs."""
        return is_alive(self.starter_pid, self.starter_start_ticks)

    @property
    def hub_alive(self) -> bool:
        """Whether the hub that wrote this still runs."""
        return is_alive(self.hub_pid, self.hub_start_ticks)

    @property
    def dashboard_path(self) -> Path:
        """The hub's ZeroMQ socket."""
        return job_dir(self.job) / self.dashboard_socket


def write_job(record: JobRecord) -> None:
    """Writes ``job.json``."""
    # The relay's start script reads it, and knows no \u escapes. json.loads passes surrogates too.
    text = json.dumps(msgspec.structs.asdict(record), indent=1, ensure_ascii=False) + "\n"
    write_whole(job_dir(record.job) / RECORD_NAME, text.encode(errors="surrogatepass"))


def read_job(key: str) -> JobRecord | None:
    """The record of this job; None when there is none that can be understood."""
    try:
        values = json.loads(read_regular(job_dir(key) / RECORD_NAME, _MAX_RECORD_BYTES))
        record = msgspec.convert(values, JobRecord)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError, JobFolderError):
        return None
    return record if record.job == key else None


def list_jobs() -> list[JobRecord]:
    """The jobs of this user on this machine whose hub is alive, the newest first.

    What is not a job is passed over. Raises JobFolderError when the socket directory is not to be
    trusted; one that does not exist has no jobs.
    """
    records = [record for key in job_keys() if (record := read_job(key)) and record.hub_alive]
    return sorted(records, key=lambda record: record.started_ns, reverse=True)


def clean_stale() -> None:
    """Removes the folders of jobs whose hub and starter are gone and whose lock nobody holds."""
    for key in job_keys():
        with suppress(OSError, JobFolderError):
            _clean(key)


def _clean(key: str) -> None:
    record = read_job(key)
    if record is not None and (record.hub_alive or record.starter_alive):
        return
    folder = job_dir(key)
    try:
        lock = try_lock(folder, create=False)
    except FileNotFoundError:
        remove_job_files(folder)
        return
    if lock is not None:
        try:
            remove_job_files(folder)
        finally:
            os.close(lock)

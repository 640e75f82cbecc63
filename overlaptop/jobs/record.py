"""The record of a job and its hub, which writes it. Imported in the training process."""

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
from overlaptop.wire.bounds import Int64
from overlaptop.wire.joining import RemoteJob

_MAX_RECORD_BYTES = 1 << 18
_MAX_FOLDERS = 16
_MAX_FOLDER_CHARS = 4096
FOLDER = r"\A/[^:\x00-\x1f]*\Z"
Folder = Annotated[str, Meta(pattern=FOLDER, max_length=_MAX_FOLDER_CHARS)]
"""Absolute path that is a valid single entry of PYTHONPATH."""


class JobRecord(RemoteJob, frozen=True, array_like=False, kw_only=True):
    """The record of a job in its folder: ``job.json``."""

    dashboard_socket: Annotated[str, Meta(pattern=OUR_FILES)]
    python: str  # Interpreter of the job, which can import overlaptop
    import_path: Annotated[tuple[Folder, ...], Meta(max_length=_MAX_FOLDERS)] = ()
    """Folders that `python` needs on PYTHONPATH to import overlaptop, beyond those it searches anyway."""
    restarter_pid: Int64 = 0  # The launcher that may restart failed ranks. 0 if there is none.
    restarter_start_ticks: Int64 | None = None
    root_host: str = ""  # Address of the root's TCP socket. Empty without ``--gather``.
    root_port: Int64 = 0

    @classmethod
    def of_remote(cls, job: RemoteJob) -> "JobRecord":
        return cls(**msgspec.structs.asdict(job), python="")

    @property
    def remote(self) -> RemoteJob:
        return RemoteJob(**{name: getattr(self, name) for name in RemoteJob.__struct_fields__})

    @property
    def gone(self) -> bool:
        """Whether no process of the job is left that could start a new hub.

        Check this once the hub has ended: a job that was killed together with it reports no end.
        """
        if self.starter_alive:
            return False
        try:
            return all(process_start_time(pid) is None for pid in self.rank_pids)
        except OSError:
            return False  # /proc cannot be read now

    @property
    def may_restart(self) -> bool:
        return is_alive(self.restarter_pid, self.restarter_start_ticks)

    @property
    def starter_alive(self) -> bool:
        return is_alive(self.starter_pid, self.starter_start_ticks)

    @property
    def hub_alive(self) -> bool:
        return is_alive(self.hub_pid, self.hub_start_ticks)

    @property
    def dashboard_path(self) -> Path:
        return job_dir(self.job) / self.dashboard_socket


def write_job(record: JobRecord) -> None:
    # The relay's start script reads it, and does not support \u escapes. json.loads accepts surrogates,
    # too.
    text = json.dumps(msgspec.structs.asdict(record), indent=1, ensure_ascii=False) + "\n"
    write_whole(job_dir(record.job) / RECORD_NAME, text.encode(errors="surrogatepass"))


def read_job(key: str) -> JobRecord | None:
    """Return the record of this job. None if there is no readable one."""
    try:
        values = json.loads(read_regular(job_dir(key) / RECORD_NAME, _MAX_RECORD_BYTES))
        record = msgspec.convert(values, JobRecord)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError, JobFolderError):
        return None
    return record if record.job == key else None


def list_jobs() -> list[JobRecord]:
    """Return this user's jobs on this machine whose hubs are alive, newest first.

    Raises JobFolderError if the socket directory is not private. A missing directory has no jobs.
    """
    records = [record for key in job_keys() if (record := read_job(key)) and record.hub_alive]
    return sorted(records, key=lambda record: record.started_ns, reverse=True)


def clean_stale() -> None:
    """Remove the folders of jobs whose hub and starter have ended and whose lock is free."""
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

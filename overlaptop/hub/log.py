"""The hub's log: its stderr, a small file in the job's folder."""

import os
import time
from contextlib import suppress

from overlaptop.jobs.folder import LOG_NAME, job_dir

MAX_BYTES = 1 << 16


def open_log(job: str) -> int:
    """Return a descriptor for the hub's stderr. An earlier hub's log is kept while it is small."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    log = os.open(job_dir(job) / LOG_NAME, flags, 0o600)
    if _is_full(log):
        os.ftruncate(log, 0)
    return log


def log_line(text: str) -> None:
    with suppress(OSError):
        if not _is_full(2):
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            os.write(2, f"{stamp} hub {os.getpid()}: {text}\n".encode(errors="replace"))


def _is_full(log: int) -> bool:
    return os.fstat(log).st_size >= MAX_BYTES

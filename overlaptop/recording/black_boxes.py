"""Black boxes: recordings of a job's last minutes, written by its hub into ``black_boxes`` of the socket
directory. Their names have job, start and occasion. Those of the newest jobs are kept. Imports no mcap.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from overlaptop.jobs.folder import JobFolderError, base_dir

ENDED, FAILED, HUNG, FOUND = "ended", "failed", "hung", "found-"
"""Occasions. The name of the finding's rule follows FOUND."""
KEPT_JOBS = 20
_FOLDER = "black_boxes"  # Not a valid job key, so it is never taken for a job's folder
_NAME = re.compile(r"\A([a-z0-9-]{1,40})\.([0-9]{1,19})\.(ended|failed|hung|found-[a-z0-9_]{1,40})\.mcap\Z")


class BlackBox(NamedTuple):
    """A black box on the disk."""

    started_ns: int  # Unix time at which the job's hub started
    job: str
    occasion: str
    path: Path


def path_of(job: str, started_ns: int, occasion: str) -> Path:
    """Return the path of a new black box, and make its folder. Raises OSError or JobFolderError."""
    folder = base_dir(create=False) / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{job}.{started_ns}.{occasion}.mcap"


def found(job: str | None = None) -> list[BlackBox]:
    """Return the black boxes of this job, or all, newest job first: each job's end, troubles, findings.

    Raises JobFolderError if the socket directory is not private.
    """
    try:
        names = [(path, _NAME.match(path.name)) for path in (base_dir(create=False) / _FOLDER).iterdir()]
    except OSError:
        return []
    boxes = [BlackBox(int(name[2]), name[1], name[3], path) for path, name in names if name is not None]
    wanted = [each for each in boxes if job is None or each.job == job]
    order = {ENDED: 0, FAILED: 1, HUNG: 1}
    return sorted(wanted, key=lambda each: (-each.started_ns, each.job, order.get(each.occasion, 2)))


def forget_old() -> None:
    with suppress(OSError, JobFolderError):
        boxes = found()
        jobs = dict.fromkeys((each.started_ns, each.job) for each in boxes)
        kept = set(list(jobs)[:KEPT_JOBS])
        for each in boxes:
            if (each.started_ns, each.job) not in kept:
                each.path.unlink(missing_ok=True)

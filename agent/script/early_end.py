"""Records the end of a script that never imported torch: no hub knows its job."""

from __future__ import annotations

import os

from overlaptop.agent import placement
from overlaptop.agent.clock import now_ns
from overlaptop.jobs import last_end
from overlaptop.jobs.folder import base_dir
from overlaptop.jobs.last_end import LastEnd
from overlaptop.jobs.processes import process_start_time, unix_ns
from overlaptop.wire.messages import RankEnd


def record(script: str, failure: str) -> None:
    """Record the exit so that `overlaptop` can report it. Raises OSError or JobFolderError."""
    place, at_ns = placement.from_environment() or placement.alone(), now_ns()
    end = RankEnd(place.rank, at_ns, clean=True, failure=failure)
    base_dir()  # created by the first job
    began_ns = unix_ns(process_start_time(os.getpid()) or 0)
    last_end.write(LastEnd(script, at_ns, 1, (end,), place.job), began_ns)

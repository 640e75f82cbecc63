"""What the commands do: each module has the work of a command, or what several share."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlaptop.launch.supervised import SupervisedJob


class CommandError(Exception):
    """A command cannot go on; the message is one clear line, `status` the exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def print_data(data: str | Mapping[str, object]) -> None:
    """Print on stdout at once: text, or a record as a line of JSON."""
    print(data if isinstance(data, str) else json.dumps(data), flush=True)  # noqa: T201


def print_message(message: str) -> None:
    """Print on stderr something that is no data."""
    from overlaptop.text import printable

    print(f"overlaptop: {printable(message)}", file=sys.stderr, flush=True)  # noqa: T201


def job_failure(job: SupervisedJob) -> CommandError:
    """Why a job that was started here failed; its own last lines are printed on stderr."""
    from overlaptop.text import printable

    for line in job.complaint():
        print(printable(line), file=sys.stderr)  # noqa: T201
    return CommandError(f"the job failed ({job.how_it_ended})", 2 if job.usage_error else 1)

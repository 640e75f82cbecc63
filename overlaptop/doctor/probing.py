"""Runs probe.py in a child with the interpreter that is looked at, and reads what it reports."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from typing import Any

from overlaptop.doctor.children import Completed
from overlaptop.doctor.facts import Facts
from overlaptop.jobs.hub_command import import_path
from overlaptop.remote.failures import one_line

SOFTWARE, GPUS = "software", "gpus"
TIMEOUT_S = {SOFTWARE: 60.0, GPUS: 20.0}
"""torch may lie on a slow file system; NVML answers within a second or so, or its driver hangs."""

Section = Mapping[str, Any]
"""A line of a probe, about one thing: see `report` in probe.py."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What a probe has reported by its end."""

    sections: Mapping[str, Section]
    """By what each is of. One that is missing: the probe did not get so far."""
    end: str
    """How it ended, in words, if not as it should: it could not be started, crashed, or took too long."""


@contextmanager
def probing(facts: Facts, what: str) -> Iterator[Callable[[], ProbeReport]]:
    """Starts a probe, and gives what waits for its report. ``what``: SOFTWARE or GPUS."""
    source = resources.files(__package__).joinpath("probe.py").read_text(encoding="utf-8")
    try:
        child = facts.start([facts.python, "-c", source, what], _environ(facts))
    except OSError as error:
        unstarted = ProbeReport({}, f"the interpreter cannot be run ({error.strerror or error})")
        yield lambda: unstarted
        return
    timeout_s = TIMEOUT_S[what]

    def read() -> ProbeReport:
        ran = child.wait(timeout_s)
        return ProbeReport(_sections(ran.output), _end(ran, timeout_s))

    try:
        yield read
    finally:
        child.close()


def _end(ran: Completed, timeout_s: float) -> str:
    if ran.status == 0:
        return ""
    if ran.status is None:
        return f"it had not ended after {timeout_s:.0f} s"
    if ran.status < 0:
        return f"a signal ({-ran.status}) ended it"
    lines = [line for line in ran.errors.splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else f"it ended with status {ran.status}"


def _environ(facts: Facts) -> dict[str, str]:
    """The child's: it imports nothing from the folder that the user is in, and finds what we have found."""
    environ = {**facts.environ, "PYTHONSAFEPATH": "1"}
    if facts.python == sys.executable:
        folders = [*filter(None, environ.get("PYTHONPATH", "").split(os.pathsep)), *import_path()]
        if folders:
            environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))
    return environ


def _sections(output: str) -> dict[str, Section]:
    found: dict[str, Section] = {}
    for line in output.splitlines():
        with suppress(ValueError, RecursionError):  # what a library prints
            values = json.loads(line)
            if isinstance(values, dict) and isinstance(of := values.get("of"), str):
                found[of] = values
    return found

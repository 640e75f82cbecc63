"""Runs probe.py in a child with the interpreter that is looked at, and reads what it reports."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources

from overlaptop.doctor.children import Completed
from overlaptop.doctor.facts import Facts, Running
from overlaptop.remote.failures import one_line
from overlaptop.wire.endpoints import import_path

SOFTWARE, GPUS = "software", "gpus"
TIMEOUT_S = {SOFTWARE: 60.0, GPUS: 20.0}
"""torch may lie on a slow file system; NVML answers within a second or so, or its driver hangs."""


class Section:
    """One line of a probe, about one thing. A value that is missing, or of another kind, is None."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def text(self, name: str) -> str | None:
        """A text; None also where it is empty."""
        value = self._values.get(name)
        return value if isinstance(value, str) and value else None

    def number(self, name: str) -> int | None:
        """A whole number."""
        value = self._values.get(name)
        return value if type(value) is int else None

    def flag(self, name: str) -> bool:
        """Whether it is true."""
        return self._values.get(name) is True

    def texts(self, name: str) -> list[str]:
        """A list of texts; empty where there is none."""
        value = self._values.get(name)
        return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What a probe has reported by its end."""

    sections: Mapping[str, Section]
    end: str
    """How it ended, in words, if not as it should: it could not be started, crashed, or took too long."""

    def section(self, name: str) -> Section | None:
        """What it reported of this; None: it did not get so far."""
        return self.sections.get(name)


class Probe:
    """A probe under way."""

    def __init__(self, facts: Facts, what: str) -> None:
        """``what``: SOFTWARE or GPUS. Starts it; where that fails, `read` has the reason."""
        self._timeout_s = TIMEOUT_S[what]
        self._child: Running | None = None
        self._fault = ""
        source = resources.files(__package__).joinpath("probe.py").read_text(encoding="utf-8")
        try:
            self._child = facts.start([facts.python, "-c", source, what], _environ(facts))
        except OSError as error:
            self._fault = f"the interpreter cannot be run ({error.strerror or error})"

    def read(self) -> ProbeReport:
        """Waits for its end, within bounds."""
        if self._child is None:
            return ProbeReport({}, self._fault)
        ran = self._child.wait(self._timeout_s)
        return ProbeReport(_sections(ran.output), self._end(ran))

    def close(self) -> None:
        """Gives it up."""
        if self._child is not None:
            self._child.close()

    def _end(self, ran: Completed) -> str:
        if ran.status == 0:
            return ""
        if ran.status is None:
            return f"it had not ended after {self._timeout_s:.0f} s"
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
    found = {}
    for line in output.splitlines():
        with suppress(ValueError, RecursionError):  # what a library prints
            values = json.loads(line)
            if isinstance(values, dict) and isinstance(of := values.get("of"), str):
                found[of] = Section(values)
    return found

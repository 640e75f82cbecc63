"""Changes of jobs that are not shown any more: kept, newest job first, and bounded."""

from __future__ import annotations

import pytest

from overlaptop.tui.model.earlier_changes import EarlierChanges
from tests.fleet.builders import T0, status, welcome
from tests.fleet.fakes import FakeSession

from .knobs import by_another, turn_to


def follow(*jobs):
    """What is kept after these jobs were shown, each with so many changes."""
    session, earlier = FakeSession(welcome(), status()), EarlierChanges()
    for job, changes in jobs:
        turn_to(session, job, f"{job}.py")
        for number in range(changes):
            by_another(session, 1 + number, at_ns=T0 + number)
        earlier.see(session.tick())
    return earlier


@pytest.mark.parametrize(
    ("jobs", "told"),
    [
        ((("a", 2), ("b", 0), ("c", 3), ("d", 1)), [("c.py", 3), ("a.py", 2)]),
        ((("a", 2), ("b", 1), ("a", 2)), [("b.py", 1)]),  # shown again
        ((("a", 2), ("b", 1), ("a", 3), ("c", 0)), [("a.py", 3), ("b.py", 1)]),
        ((("a", 50), ("b", 60), ("c", 60), ("d", 0)), [("c.py", 60), ("b.py", 60), ("a.py", 8)]),
        ((("a", 8), ("b", 100), ("c", 100), ("d", 0)), [("c.py", 100), ("b.py", 28)]),
    ],
)
def test_the_newest_job_comes_first_each_once_and_the_oldest_changes_are_forgotten(jobs, told):
    kept = follow(*jobs).newest_first
    assert [(each.script, len(each.changes)) for each in kept] == told
    assert kept[-1].changes[-1].value == dict(jobs)[kept[-1].script[0]]  # of each the newest

"""What sets the step's length, in a word or two."""

from dataclasses import replace

import pytest

from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.first_line import bound_by
from overlaptop.report.who_is_late import FirstLine, Kind
from tests.fleet.builders import MS
from tests.tui.waits import waiting_job

SAID = FirstLine("", "")
SLACK = SAID._replace(kind=Kind.SLACK)


def bound(said=SAID, found=(), **figures):
    snapshot = waiting_job().tick()
    known = {"measured_ns": 100 * MS, "exposed_ns": 10 * MS, "idle_ns": 10 * MS, "launch_bound": ()}
    totals = replace(snapshot.totals, **(known | figures))
    return bound_by(replace(snapshot, totals=totals, wait_window=None), found, said)


@pytest.mark.parametrize(
    ("figures", "word"),
    [
        ({}, "GPU-bound"),
        ({"exposed_ns": 60 * MS}, "communication-bound"),
        ({"idle_ns": 60 * MS}, "host-bound"),
        ({"exposed_ns": 40 * MS, "idle_ns": 40 * MS}, ""),
        ({"idle_ns": None}, ""),
        ({"exposed_ns": None}, ""),
        ({"said": SAID._replace(late_rank=2)}, "waiting for rank 2"),
        ({"said": SLACK, "launch_bound": (1,)}, "host-bound"),
        ({"said": SLACK}, ""),
    ],
)
def test_the_part_that_takes_most_of_the_step_bounds_it(figures, word):
    assert bound(**figures) == word


def test_loaders_that_win_most_bound_the_job():
    found = Finding("", "", "", Certainty.MEASURED, 40 * MS, rule="data_loading")
    assert bound(found=(found,)) == "data-bound"
    assert bound(found=(replace(found, ranks=(1,)),)) == "GPU-bound"

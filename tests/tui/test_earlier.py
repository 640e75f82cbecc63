"""The rows of watched jobs and knob settings, and the comparison with the row before."""

import pytest
from msgspec.structs import replace

from overlaptop.tui.model.earlier import MAX_ROWS, JobsSeen
from overlaptop.tui.model.state import ViewState
from overlaptop.tui.tune.change_panel import panel_lines
from overlaptop.wire.commands import make_setting
from overlaptop.wire.knobs import Knob
from tests.fleet.builders import MS, info, status, step, welcome
from tests.fleet.fakes import FakeSession

from .fakes import text_of
from .knobs import ACCUMULATION, BUCKET, by_another, controlled_job, obey, report, send_knobs, with_value


class Watched(FakeSession):
    """It may turn from job to job."""

    def __init__(self):
        super().__init__()
        self.seen = JobsSeen()

    def job(self, key, *, steps=20, ranks=2, script="train.py", **parts):
        self.say(welcome(job=key, script=script, world_size=ranks))
        self.look()
        for rank in range(ranks):
            self.say(info(rank, job=key), *(step(rank, number, **parts) for number in range(steps)))
        self.say(status())
        self.look()

    def steps(self, first, until, **parts):
        """Of both ranks."""
        self.say(*(step(rank, number, **parts) for rank in (0, 1) for number in range(first, until)))
        self.look()

    def look(self):
        self.seen.see(self.tick())


def test_left_job_keeps_its_figures_and_steps():
    watched = Watched()
    assert (watched.seen.present, watched.seen.all) == (None, [])
    watched.job("first", comm=30, hidden=15)
    watched.say(welcome(job="second"))  # it has made no step yet
    watched.look()
    assert (watched.seen.present.job, watched.seen.earlier) == ("first", None)
    watched.job("second", comm=30, hidden=30)
    earlier = watched.seen.earlier
    assert (earlier.job, earlier.label, earlier.steps_done) == ("first", "train.py", 20)
    assert (earlier.step_ns, earlier.exposed_ns) == pytest.approx((85 * MS, 15 * MS))
    assert (earlier.overlap, watched.seen.present.overlap) == pytest.approx((0.5, 1.0))
    watched.job("first")
    assert [job.job for job in watched.seen.all] == ["second", "first"]


def test_jobs_started_here_are_compared_whatever_their_script():
    watched = Watched()
    watched.job("first")
    watched.say(welcome(job="second", script="other.py"), info(0, job="second", exact=False))
    watched.steps(0, 1)
    assert watched.seen.earlier is None
    assert [job.exact for job in watched.seen.all] == [True, False]  # kept: whether figures are bounds
    watched.seen.describe("first", "ddp --layers 8", "ended here")
    watched.seen.describe("second", "fsdp")
    watched.seen.describe("third", "ddp", "exit status 1")  # without a step
    assert watched.seen.earlier.job == "first"
    assert [(job.label, job.how, job.step_ns is None) for job in watched.seen.all] == [
        ("ddp --layers 8", "ended here", False),
        ("ddp", "exit status 1", True),
        ("fsdp", "runs", False),
    ]


DEPTH = Knob("depth", 1, "1", "1", 0, 8)


def change(watched, knob, new, at, *, until=None, hidden=30):
    """Every rank changes the knob at that step, and goes on until another one; returns the knob since."""
    setting = make_setting(knob, int(new))
    watched.say(replace(setting, at_ns=watched.tick().at_ns))
    for rank in (0, 1):
        watched.say(replace(step(rank, at), transitional=True))
    report(watched, setting, "changed", at, old=knob.value_text, new=new)
    watched.steps(at + 1, until or at + 10, comm=30, hidden=hidden)
    since = with_value(knob, new)
    send_knobs(watched, since, DEPTH)
    watched.look()
    return since


def knobbed(watched=None):
    """The first job, of which two knobs can be changed, is watched."""
    watched = watched or Watched()
    watched.job("first", comm=30, hidden=15)
    send_knobs(watched, BUCKET, DEPTH)
    watched.look()
    return watched


def rows(watched):
    return [(job.named, job.steps_done, job.how) for job in watched.seen.all]


def test_change_of_a_knob_begins_a_row():
    watched = knobbed()
    fifty = change(watched, BUCKET, "50", 20, until=40)
    late = JobsSeen()  # finds a row for each setting that the history reaches
    late.see(watched.tick())
    assert [(job.named, job.steps_done) for job in late.all] == [row[:2] for row in rows(watched)]
    # A value that comes back has a row of its own later steps.
    change(watched, fifty, "25", 40, until=70, hidden=10)
    assert rows(watched) == [
        ("train.py, bucket 25 MiB, depth 1", 20, "changed"),
        ("train.py, bucket 50 MiB, depth 1", 20, "changed"),
        ("train.py, bucket 25 MiB, depth 1", 30, "runs"),
    ]
    assert [job.overlap for job in watched.seen.all] == pytest.approx([0.5, 1.0, 1 / 3])
    changed = [[setting.changed for setting in job.settings] for job in watched.seen.all]
    assert changed == [[False, False], [True, False], [False, False]]


def test_kept_rows_are_bounded():
    watched = Watched()
    for number in range(MAX_ROWS + 5):
        watched.job(f"job{number}", steps=3, ranks=1)
    assert len(watched.seen.all) == MAX_ROWS + 1


# Beside the row before


def test_job_is_compared_with_the_one_before():
    watched = Watched()
    watched.job("first", compute=90)
    watched.job("second", compute=60)
    found = watched.seen.compare(watched.tick())
    assert found.title == "compared with the run before: train.py"
    assert (found.old, found.new, found.of_change) == ("before", "now", False)
    assert found.before.step_ns > found.after.step_ns


@pytest.mark.parametrize("changes_work", [False, True])
def test_steps_before_and_after_a_change_are_compared(changes_work):
    knob = replace(ACCUMULATION, changes_work=changes_work)
    session, seen = controlled_job(knob), JobsSeen()
    seen.see(session.tick())
    obey(session, by_another(session, 8, knob=knob), 40, "4", "8", knob=knob)
    session.say(*(step(rank, number) for rank in (0, 1) for number in range(40, 70)))
    seen.see(session.tick())
    found = seen.compare(session.tick())
    assert found.title == "accumulation 4 → 8 at step 40"
    assert (found.old, found.new, found.of_change) == ("4", "8", True)
    assert found.same_work is not changes_work
    lines = panel_lines(ViewState(session.tick(), compared=found), 100, 9)
    assert "drift included; A: test" in text_of(lines[0])
    assert ("other work" in text_of(lines[2])) == changes_work

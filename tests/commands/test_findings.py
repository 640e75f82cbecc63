"""What is found of a job, in the commands that have no screen."""

import io
import re

from overlaptop.commands.findings import SAY_AGAIN_NS, FindingsLog
from overlaptop.commands.once import render
from overlaptop.commands.stream import RecordWriter
from overlaptop.wire.messages import RankEnd
from tests.fleet.builders import T0
from tests.formats.traces import DATA
from tests.tui.waits import waiting_job

from .running import records, run_here

FIELDS = ["type", "job", "rule", "title", "ranks", "measured", "gain_ns", "certainty", "advice", "line",
          "step_ns", "until_step"]  # fmt: skip


def findings_of(lines):
    return [line for line in lines if line["type"] == "finding"]


def test_analyze_says_why_a_rank_is_late_as_text_and_as_a_record():
    page = run_here("analyze", str(DATA / "ddp_25mb")).stdout.splitlines()
    (at,) = (at for at, line in enumerate(page) if line.startswith("rank 2 is launch-bound"))
    assert "at most 8.87 ms a step to win, likely, launch_bound" in page[at]
    assert page[at + 1].startswith("  measured: rank 2 is late in 75 of 75 collectives")
    assert page[at + 2].startswith("  advice: ")
    (found, *_) = findings_of(records(run_here("analyze", str(DATA / "ddp_25mb"), "--json").stdout))
    assert list(found) == FIELDS
    assert (found["rule"], found["ranks"], found["certainty"]) == ("launch_bound", [2], "likely")


def test_once_says_how_many_findings_there_are_and_the_first():
    session = waiting_job(ranks=2, late=lambda _: 1)
    second, third = render(session.tick()).splitlines()[2:4]
    assert third.startswith("to do: nvidia-smi -q")
    assert second.startswith(("1 finding", "2 findings"))
    assert "rank 1 computes 16.0 ms a step longer than rank 0" in second
    assert "finding" not in render(waiting_job(late_ms=0).tick())
    session.say(RankEnd(0, T0 + 1, True, "ValueError: boom"))
    page = render(session.tick())
    assert re.search(
        r"^until then: rank 1 is late .*\nuntil then: \d findings?.*\nuntil then: overlap", page, re.M
    )
    assert "to do:" not in page


def test_a_stream_has_a_finding_as_it_comes_up():
    out = io.StringIO()
    session = waiting_job()
    writer = RecordWriter(out)
    writer.write(session.tick())
    writer.write(session.tick())
    found = findings_of(records(out.getvalue()))
    assert [each["ranks"] for each in found if each["rule"] == "slow_compute"] == [[2]]


def test_finding_that_still_holds_is_written_now_and_then():
    session, log = waiting_job(), FindingsLog()
    assert log.due(session.tick())
    session.clock.pass_s(SAY_AGAIN_NS / 1e9 / 2)
    assert log.due(session.tick()) == []
    session.clock.pass_s(SAY_AGAIN_NS / 1e9 / 2)
    assert log.due(session.tick())

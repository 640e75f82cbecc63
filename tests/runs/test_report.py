"""A run's report, from whatever it is read from."""

import dataclasses
import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from overlaptop.fleet.snapshot import HubState
from overlaptop.runs import run_log
from overlaptop.runs.run_log import RunLog
from overlaptop.runs.words import describe
from tests.commands.running import records, run_here
from tests.fleet.builders import MS, Clock, S, info, status, unmeasured, welcome
from tests.fleet.fakes import FakeSession
from tests.recording.played import PlayedJob, played
from tests.tui.waits import waiting_job

ADVICE = "compare runs of the same model, batch size and number of ranks"
DATA = Path(__file__).parents[1] / "formats" / "data"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A recording of 60 steps in which rank 1 is late."""
    path = tmp_path_factory.mktemp("runs") / "a.mcap"
    played(Clock(), path, 60)
    return path


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The report of a run that is long enough to be compared."""
    folder = tmp_path_factory.mktemp("saved")
    played(Clock(), folder / "run.mcap", 180, after_s=0.2)
    (folder / "run.json").write_text(run_here("report", folder / "run.mcap", "--json").stdout)
    return folder / "run.json"


def changed(saved, name, change):
    """The saved report with another figure of this name."""
    run = json.loads(saved.read_text())
    for figure in run["figures"]:
        if figure["name"] == name:
            figure["median"], figure["blocks"] = change(figure["median"]), [*map(change, figure["blocks"])]
    path = saved.with_name(f"{name}.json")
    path.write_text(json.dumps(run))
    return path


def report_of(session):
    log = RunLog()
    log.take(session.tick())
    return log.report()


def report_json(*words):
    (record,) = records(run_here("report", *words, "--json").stdout)
    return record


def test_report_says_who_was_late_and_what_that_cost():
    session = waiting_job()
    run = report_of(session)
    assert (run.steps, run.step_ns, run.bound) == (8, 80 * MS, "waiting for rank 2")
    assert run.exposed_ns == pytest.approx(run.exposed_wait_ns + run.exposed_transfer_ns, rel=0.01)
    (late,) = run.late_ranks
    assert (late.rank, late.late_count) == (2, late.collectives)
    first, *lines = describe(run).splitlines()
    assert first.startswith("train.py, 4 ranks on gpu-a: 8 steps, runs for ")
    assert "  overlap     50.0 %" in lines
    said = f"  rank 2 late in {late.late_count} of {late.late_count} collectives, the others wait "
    assert any(line.startswith(said) for line in lines)
    two = replace(run, work=replace(run.work, world_size=2), late_ranks=[replace(late, rank=1)])
    assert "collectives, rank 0 waits " in describe(two)
    session.say(*(info(rank, exact=False) for rank in range(4)))
    assert "  overlap     ≤50.0 %" in describe(report_of(session)).splitlines()


def test_bound_of_a_report_held_most_of_the_time(monkeypatch):
    session, log = waiting_job(), RunLog()
    bounds = iter(["communication-bound", "", ""])
    monkeypatch.setattr(run_log, "bound_by", lambda *_: next(bounds))
    said = []
    for _ in range(3):
        log.take(session.tick())
        said.append([log.report().bound for _ in range(2)])  # asking again changes nothing
        session.clock.pass_s(5)
    assert said == [["communication-bound"] * 2, ["communication-bound"] * 2, [None] * 2]


def test_job_lasts_beyond_its_last_step_until_now_or_its_end():
    session, log = waiting_job(), RunLog()
    log.take(session.tick())
    session.clock.pass_s(600)
    log.take(hung := session.tick())
    assert log.report().to_ns == hung.at_ns
    log.take(dataclasses.replace(hung, hub_state=HubState.ENDED, hub_since_ns=hung.at_ns - 5 * S))
    assert log.report().to_ns == hung.at_ns - 5 * S
    # Started again, and without a step yet: its length is not negative.
    session.say(replace(welcome(job="job-2"), started_ns=hung.at_ns + S), info(0))
    log.take(session.tick())
    assert (log.report().job, log.report().to_ns) == ("job-2", hung.at_ns + S)


def test_first_steps_and_disturbed_ones_are_left_out():
    session = FakeSession(welcome(), info(0), info(1), status())
    for number in range(103):
        ms = 9000 if number < 2 else 100 if number == 50 else 80
        made = [unmeasured(rank, number, ms) for rank in (0, 1)]
        session.say(*(replace(each, captured=number == 50) for each in made))
    run = report_of(session)
    assert (run.step_ns, run.p99_step_ns, run.overlap) == (80 * MS, 80 * MS, None)
    assert "  exposed     –\n" in describe(run) + "\n"


def test_report_of_a_recording_is_that_of_its_job(recorded):
    run = report_json(recorded)
    assert (run["steps"], run["late_ranks"][0]["rank"]) == (60, 1)
    assert run["work"] == {
        "world_size": 2, "comm_bytes": 3 << 20,
        "operations": [["0 default_pg: allreduce_ 1048576", "0 default_pg: allreduce_ 2097152"]],
    }  # fmt: skip
    assert {"step", "overlap", "waiting", "op allreduce_", "rank 1 exposed"} <= {
        each["name"] for each in run["figures"]
    }
    assert "rank 1 late in" in run_here("report", recorded).stdout


def test_recording_begun_late_is_reported_by_its_own_steps(tmp_path):
    job, path = PlayedJob(clock := Clock(), None), tmp_path / "late.mcap"
    history = [
        replace(unmeasured(rank, number, 40), start_ns=clock() + number * 40 * MS)
        for number in range(1500)
        for rank in (0, 1)
    ]
    job.send(*history, after_s=60)
    job.recorder.begin(path)
    for number in range(1500, 1680):
        job.step(number, late=1, after_s=0.3)
    job.recorder.end()
    run = report_json(path)
    assert run["step_ns"] == 80 * MS
    blocks = {each["name"]: len(each["blocks"]) for each in run["figures"]}
    assert blocks["waiting"] == blocks["step"] == 14


def test_window_of_a_recording_has_its_steps_alone(recorded):
    run = report_json(f"{recorded}@+10s-+20s")
    assert 10e9 <= run["from_ns"] - Clock()() <= 10.7e9
    assert 19e9 <= run["to_ns"] - Clock()() <= 20.2e9
    begun = datetime.fromtimestamp(Clock()() / 1e9)  # 20 s after a whole minute
    of_day = f"{begun:%H:%M}-{begun + timedelta(seconds=10):%H:%M:%S}"
    assert report_json(f"{recorded}@{of_day}")["to_ns"] == pytest.approx(run["from_ns"], abs=1e9)
    for window in ("+20s-+10s", "+10s", "25:00-26:00", "+10h-+11h"):
        done = run_here("report", f"{recorded}@{window}")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), window


def test_report_of_a_report_is_the_same(saved, tmp_path):
    assert run_here("report", saved).stdout == run_here("report", saved.with_name("run.mcap")).stdout
    cut = tmp_path / "cut.json"
    cut.write_text(saved.read_text()[:300])
    done = run_here("report", cut)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("name", "change", "limit", "status", "err"),
    [
        ("step", 1.0, "step>3%", 0, ""),
        ("step", 1.05, "step>10%", 0, ""),
        ("step", 1.05, "step>3%", 1, "overlaptop: step differs by +5.0 %\n"),
        ("step", 0.95, "step<-3%", 1, "overlaptop: step differs by -5.0 %\n"),
        ("overlap", 0.8, "overlap<-5%", 1, "overlaptop: overlap differs by -10.0 points\n"),
        ("overlap", 0.8, "overlap<-11%", 0, ""),
        ("step", 1.05, "nothing>3%", 2, None),
        ("step", 1.05, "step=3%", 2, None),
    ],
)
def test_compare_ends_with_status_1_if_a_limit_is_exceeded(saved, name, change, limit, status, err):
    after = changed(saved, name, lambda figure: change * figure)
    done = run_here("compare", saved, after, "--fail-if", limit)
    assert (done.returncode, done.stderr) == (status, done.stderr if err is None else err)


def test_compare_fails_a_figure_that_rose_from_0(saved):
    none = changed(saved, "waiting", lambda _: 0.0)
    done = run_here("compare", none, saved, "--fail-if", "waiting>3%")
    assert (done.returncode, done.stderr) == (1, "overlaptop: waiting differs from 0\n")
    assert "from 0" in done.stdout
    assert run_here("compare", none, saved, "--fail-if", "waiting<-3%").returncode == 0


def test_compare_says_what_it_cannot_judge(recorded):
    halves = f"{recorded}@+0s-+15s", f"{recorded}@+15s-+30s"
    done = run_here("compare", *halves, "--fail-if", "step>3%")
    said = "overlaptop: step: too few steps to judge --fail-if step>3%\n"
    assert (done.returncode, done.stderr) == (0, said)
    assert "buckets and ranks: not judged, too few steps" in done.stdout
    assert "no difference" not in done.stdout


def test_compare_leaves_out_buckets_of_other_sizes(saved):
    run = json.loads(saved.read_text())
    (usual,) = run["work"]["operations"]
    run["work"]["operations"] = [["0 default_pg: allreduce_ 3145728"], usual]
    other = saved.with_name("rebucketed.json")
    other.write_text(json.dumps(run))
    done = run_here("compare", saved, other, "--json")
    said = "overlaptop: bucket sizes differ: buckets are not compared\n"
    assert (done.returncode, done.stderr) == (0, said)
    left_out = {each["name"] for each in run["figures"]} - {each["name"] for each in records(done.stdout)}
    assert left_out == {f"bucket allreduce_ {size} MiB 0 default_pg" for size in ("1.00", "2.00")}
    said = run_here("compare", saved, other).stdout
    assert "~" in said
    assert "figures of operations, groups and ranks: no difference" in said


def test_compare_refuses_unlike_work(recorded, tmp_path):
    path = tmp_path / "wide.mcap"
    played(Clock(), path, 20, ranks=4)
    done = run_here("compare", recorded, path)
    said = f"overlaptop: unlike work: A has 2 ranks, B has 4: {ADVICE}\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert run_here("compare", recorded, "no-such-job").returncode == 2  # 1 is for --fail-if


def test_traces_are_reported_and_compared_like_jobs():
    straggler = DATA / "ddp_straggler"
    run = report_json(straggler)
    assert run["ended"]
    assert run["work"]["operations"]
    assert run["steps"] == 3
    assert 5 * MS < run["late_ranks"][0]["wait_ns"] < run["step_ns"]
    assert run_here("compare", straggler, straggler).returncode == 0

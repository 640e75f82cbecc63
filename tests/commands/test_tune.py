"""``overlaptop tune`` and ``slack``: what they print, their exit status, and that nothing tried stays."""

from contextlib import nullcontext

import pytest
from msgspec import structs

from overlaptop.commands import set as setting
from overlaptop.commands import slack, trials, tune
from overlaptop.wire.commands import GPU, argument
from overlaptop.wire.knobs import Knob
from overlaptop.workloads.catalog import find
from tests.fleet.builders import BUCKET_CAP_MB, MS, info, step
from tests.launch.jobs import Alone
from tests.trials.live_job import LiveJob

from .running import SMALL_DDP, check_page, overlaptop, records, run_here

CODE = "DistributedDataParallel(model, bucket_cap_mb={value})"


class Session(LiveJob):
    """It does what a test wants at each tick."""

    def on_tick(self, number):
        """A test's."""

    def tick(self):
        self.ticks += 1
        self.on_tick(self.ticks)
        return super().tick()


@pytest.fixture
def job(quickly, monkeypatch):
    session = Session(knob=structs.replace(BUCKET_CAP_MB, code=CODE))
    monkeypatch.setattr(tune, "join", lambda *_: nullcontext(session))
    return session


@pytest.fixture
def delayed(quickly, monkeypatch):
    session = LiveJob(lambda _value: 50.0, critical={1: 1.0}, noise=0.002)
    monkeypatch.setattr(slack, "join", lambda *_: nullcontext(session))
    return session


@pytest.mark.parametrize(
    "line", ["tune", "tune --budget 120", "slack --delay 5ms", "slack --delay 5ms --budget 1"]
)
def test_what_was_found_is_printed_as_in_its_page(job, delayed, line):
    """stdout, then the first and last line of stderr."""
    done = run_here(*line.split())
    first, *_, last = done.stderr.splitlines()
    assert (done.returncode, job.value) == (0, 25)
    assert bool(job.sent or delayed.sent) == (not line.endswith("--budget 1"))
    check_page(line, "\n".join([done.stdout, first, last]))


@pytest.mark.parametrize(("values", "kept"), [("60,400", 60), ("3,400", 25)])
def test_with_keep_the_best_value_is_set_if_it_is_shorter(job, values, kept):
    done = run_here("tune", "--keep", "--values", values)
    assert (done.returncode, job.value) == (0, kept)
    assert done.stdout.endswith("bucket_cap_mb 25 MiB: no value tried is shorter\n") == (kept == 25)


@pytest.mark.parametrize("line", ["tune --values 60,400", "slack --delay 5ms"])
def test_records_tell_each_trial_and_the_results(job, delayed, line):
    found = records(run_here(*line.split(), "--json").stdout)
    trials = [each for each in found if each["type"] == "trial"]
    of, figure = ("value", "difference") if line.startswith("tune") else ("rank", "slope")
    results = [each for each in found if each["type"] == of]
    assert len(results) == 2
    for each in results:
        assert each["trials"] == sum(trial[of] == each[of] for trial in trials)
        assert each[f"{figure}_low"] <= each[figure] <= each[f"{figure}_high"]
    if of == "value":
        assert (found[-1]["best"], found[-1]["present"], found[-1]["rivals"]) == (60, "25", [])


def interrupt(_job):
    raise KeyboardInterrupt


@pytest.mark.parametrize(("stop", "status"), [(interrupt, 130), (Session.end, 1)])
def test_trials_that_end_early_still_tell_what_was_found(job, stop, status):
    job.on_tick = lambda number: stop(job) if number == 200 else None
    done = run_here("tune")
    assert (done.returncode, done.stdout.startswith("bucket_cap_mb ")) == (status, True)
    assert done.stderr.endswith("overlaptop: the job ended\n") == (status == 1)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("tune --range 200:300", "bucket_cap_mb must be from 1 to 100\n"),
        ("tune --values 25", "bucket_cap_mb is 25 already"),
        ("tune --values 200", "bucket_cap_mb must be from 1 to 100, not 200"),
        ("tune --values 5,x", "must be whole numbers with commas between them"),
        ("tune --values 5 --range 1:5", "not allowed with argument"),
        ("tune --knob lr", "lr cannot be set; of this job there is: bucket_cap_mb"),
        ("slack --delay 5", "must be a time or a share, as 5ms or 2%, not '5'"),
        ("slack --delay 0ms", "must be a time or a share"),
        ("slack --delay 11s", "delay_ns must be from 1 to 10000000000"),
        ("slack --ranks 1-2", "must be whole numbers with commas between them"),
        ("slack --ranks 0,7", "there is no rank 7"),
    ],
)
def test_what_cannot_be_tried_is_one_line(job, delayed, monkeypatch, line, complaint):
    monkeypatch.setattr(setting, "KNOBS_S", 0.0)
    job.knob = Knob("bucket_cap_mb", 25, "25", "25", 1, 100)
    job._tell_knob()
    done = run_here(*line.split())
    assert (done.returncode, complaint in done.stderr, job.sent, delayed.sent) == (2, True, [], [])


def test_ranks_without_a_step_are_not_waited_for_for_ever(job, monkeypatch):
    monkeypatch.setattr(trials, "STARTING_S", 0.0)
    job.fleet.apply(step(0, 0))
    monkeypatch.setattr(job, "tick", job.fleet.snapshot)
    done = run_here("tune")
    complaint = "rank 1 finished no step within 0 s: nothing can be measured"
    assert (done.returncode, done.stderr) == (1, f"overlaptop: {complaint}\n")


def test_the_delay_is_a_share_of_the_step_unless_it_is_named(delayed):
    run_here("slack", "--budget", "100")
    assert {round(delay_ns / MS, 1) for _, delay_ns in delayed.delays} == {1.0}
    delayed.delays.clear()
    run_here("slack", "--budget", "100", "--delay", "10%", "--ranks", "1", "--place", "gpu")
    assert argument(delayed.sent[-1], "place") == GPU
    assert {(rank, round(delay_ns / MS)) for rank, delay_ns in delayed.delays} == {(1, 5)}


@pytest.mark.parametrize("command", ["tune", "slack"])
def test_a_job_without_control_or_that_refuses_says_why(job, delayed, command):
    job.refuses = delayed.refuses = "its model is compiled"
    done = run_here(command)
    said = "overlaptop: rank 0 refused: its model is compiled"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, said)
    for each in (job, delayed):
        each.fleet.apply(info(0, control_allowed=False))
    done = run_here(command)
    assert (done.returncode, "start the job with --control" in done.stderr) == (1, True)


# Real jobs


def test_a_script_that_fails_is_told_by_its_last_lines(tmp_path, traces, monkeypatch):
    monkeypatch.setattr(tune, "Launcher", Alone)
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('no data here')\n")
    done = run_here("tune", script, "--nproc", "2")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no data here" in done.stderr
    assert done.stderr.endswith("overlaptop: the job failed (exit status 1)\n")
    assert traces.alive() == []


@pytest.mark.slow
def test_script_is_started_tried_and_ended(traces):
    words = ("--nproc", "2", "--values", "50", "--budget", "100", "--json", "--", *SMALL_DDP)
    done = overlaptop("tune", str(find("ddp").path), *words)
    assert done.returncode == 0, done.stderr
    found = records(done.stdout)
    assert {each["type"] for each in found} == {"trial", "value", "result"}
    assert found[-1]["knob"] == "bucket_cap_mb"
    assert traces.alive() == []

"""``overlaptop tune``: what it prints, its exit status, and that a value it tried does not stay."""

import os
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from overlaptop.console import tune
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.jobs.record import list_jobs
from overlaptop.tuning.search import SearchOptions
from overlaptop.wire.knobs import Knob
from tests.fleet.builders import BUCKET_CAP_MB, info, step
from tests.launch.jobs import Alone
from tests.processes import Traces, eventually
from tests.tuning.live_job import LiveJob, valley

from .conftest import StartRanks
from .running import OVERLAPTOP, overlaptop, records, run_here

CODE = "DistributedDataParallel(model, bucket_cap_mb={value})"
DDP = Path(__file__).parents[2] / "workloads" / "ddp.py"
# 2 MB of gradients, and steps of some 10 ms on an idle machine.
SMALL = ["--layers", "2", "--width", "128", "--batch", "1", "--seq", "16", "--vocabulary", "512"]
LIMIT_S = 100


class Session(LiveJob):
    """It does what a test wants at each tick."""

    def on_tick(self, number: int) -> None:
        """A test's."""

    def tick(self) -> Snapshot:
        self.ticks += 1
        self.on_tick(self.ticks)
        return super().tick()


@pytest.fixture
def job(quickly: None, monkeypatch: pytest.MonkeyPatch) -> Session:
    session = Session(valley(60), knob=structs.replace(BUCKET_CAP_MB, code=CODE))
    monkeypatch.setattr(tune, "join", lambda _key, _hosts: session)
    return session


def test_a_table_and_a_last_line_tell_what_was_found(job: Session) -> None:
    done = run_here("tune")
    *table, last = done.stdout.splitlines()
    assert (done.returncode, table[0].split()[:2]) == (0, ["bucket_cap_mb", "step"])
    best = next(line.split()[0] for line in table if line.endswith("best"))
    assert last.startswith(f"bucket_cap_mb {best} MiB: a step ")
    code = CODE.replace("{value}", best)
    assert last.endswith(
        f". The job has 25 MiB again, as before the search. To make {best} MiB permanent: {code}"
    )
    assert done.stderr.splitlines()[0].startswith("overlaptop: round 1: bucket_cap_mb 25 MiB, ")
    assert (job.watched, job.value) == ({0}, 25)


def test_with_keep_the_best_value_stays(job: Session) -> None:
    done = run_here("tune", "--keep", "--range", "10:200")
    assert f"bucket_cap_mb {job.value} MiB: a step " in done.stdout
    assert f". The job has {job.value} MiB now. To make {job.value} MiB permanent: " in done.stdout
    assert 40 < job.value < 90


def test_records_tell_each_window_each_value_and_the_result(job: Session) -> None:
    found = records(run_here("tune", "--json", "--budget", "120").stdout)
    windows, points, (result,) = (
        [record for record in found if record["type"] == kind] for kind in ("window", "point", "result")
    )
    assert found[-1] is result
    assert windows[0]["value"] == 25
    assert {window["value"] for window in windows} == {point["value"] for point in points}
    for point in points:
        assert point["steps"] == sum(len(w["step_ns"]) for w in windows if w["value"] == point["value"])
        assert point["low_ns"] < point["step_ns"] < point["high_ns"]
    assert result["steps_spent"] <= 140
    assert (result["known"], result["before"]) == (False, "25")


def test_where_the_budget_was_too_small_it_says_so_and_how_to_give_more(job: Session) -> None:
    done = run_here("tune", "--budget", "120")
    last = done.stdout.splitlines()[-1]
    assert ", the best so far: " in last
    assert "The search had spent its steps before the best was known" in last
    told = done.stderr.splitlines()[-1]
    assert told == "overlaptop: 120 steps allow no further window: a larger --budget does"


def test_a_budget_below_one_window_is_refused_before_the_job_is_looked_for(job: Session) -> None:
    done = run_here("tune", "--budget", "11")
    assert (done.returncode, done.stdout, job.ticks) == (2, "", 0)
    assert done.stderr.endswith("--budget must be 12 steps or more: one window takes 12\n")


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_told_to_end_it_puts_the_value_back_first(job: Session, signum: int, status: int) -> None:
    seen = []

    def on_tick(number: int) -> None:
        seen.append(job.value)
        if job.value != 25 and seen.count(job.value) == 3 and len(set(seen)) == 4:
            os.kill(os.getpid(), signum)

    job.on_tick = on_tick
    before = signal.getsignal(signum)
    done = run_here("tune")
    assert (done.returncode, job.value) == (status, 25)
    assert signal.getsignal(signum) is before
    assert "bucket_cap_mb goes back to 25" in done.stderr
    assert "at most 0 to go" not in done.stderr
    *table, last = done.stdout.splitlines()
    assert [line.split()[0] for line in table[1:]] == ["1", "25", "42"]
    assert "a first guess (each value was measured once only)" in last
    assert ". The search ended before the best was known. The job has 25 MiB again, as before" in last


def test_told_to_end_before_a_window_is_in_it_says_which_value_the_job_has(job: Session) -> None:
    job.on_tick = lambda number: os.kill(os.getpid(), signal.SIGINT) if number == 4 else None
    done = run_here("tune")
    assert (done.returncode, done.stdout, job.sent) == (130, "", [])
    assert done.stderr.endswith("overlaptop: nothing was measured yet; the job still has 25 MiB\n")


def test_told_twice_it_leaves_at_once(job: Session) -> None:
    job.on_tick = lambda number: os.kill(os.getpid(), signal.SIGINT) if number in (200, 201) else None
    assert run_here("tune").returncode == 130
    assert job.ticks == 201


def test_a_job_that_ends_meanwhile_still_tells_what_was_found(job: Session) -> None:
    job.on_tick = lambda number: job.end() if number == 150 else None
    done = run_here("tune")
    assert done.returncode == 1
    assert "The search ended before the best was known" in done.stdout
    assert done.stderr.endswith("overlaptop: the job ended\n")


def refuse(job: Session) -> None:
    job.refuses = "its model is compiled"


def forbid(job: Session) -> None:
    job.fleet.apply(info(0, control_allowed=False))


def narrow(job: Session) -> None:
    job.knob = Knob("bucket_cap_mb", 25, "25", "25", 1, 100)
    job._tell_knob()


@pytest.mark.parametrize(
    ("prepare", "words", "status", "complaint"),
    [
        (refuse, [], 1, "bucket_cap_mb cannot be changed: rank 0 refused: its model is compiled"),
        (forbid, [], 1, "start the job with --control"),
        (narrow, ["--range", "200:300"], 2, "bucket_cap_mb must be from 1 to 100\n"),
        (narrow, ["--range", "0:5"], 2, "bucket_cap_mb must be from 1 to 100\n"),
        (narrow, ["--knob", "lr"], 2, "lr cannot be set; of this job there is: bucket_cap_mb"),
    ],
)
def test_what_cannot_be_searched_is_one_line(
    job: Session,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[Session], None],
    words: list[str],
    status: int,
    complaint: str,
) -> None:
    monkeypatch.setattr(tune, "KNOBS_S", 0.0)
    prepare(job)
    done = run_here("tune", *words)
    assert (done.returncode, complaint in done.stderr, job.value) == (status, True, 25)


@pytest.mark.parametrize(
    ("stepped", "complaint"),
    [
        ((), "ranks 0, 1 finished no step within 0 s: nothing can be measured"),
        ((0,), "rank 1 finished no step within 0 s, and the others have: nothing can be measured"),
    ],
)
def test_a_rank_without_a_step_is_not_waited_for_for_ever(
    stepped: tuple[int, ...], complaint: str, job: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("STARTING_S", "LATE_S"):
        monkeypatch.setattr(tune, limit, 0.0)
    for rank in stepped:
        job.fleet.apply(step(rank, 0))
    monkeypatch.setattr(job, "tick", job.fleet.snapshot)
    done = run_here("tune")
    assert (done.returncode, done.stderr) == (1, f"overlaptop: {complaint}\n")


def test_it_says_once_which_rank_it_waits_for(job: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "ANNOUNCE_S", 0.0)
    job.fleet.apply(step(0, 0))
    looks = iter([job.fleet.snapshot()] * 5)
    monkeypatch.setattr(job, "tick", lambda: next(looks, None) or Session.tick(job))
    told = run_here("tune", "--budget", "60").stderr.splitlines()
    assert told.count("overlaptop: waits for the first step of rank 1") == 1


def test_windows_too_short_to_tell_show_no_interval_rather_than_a_wrong_one(
    job: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "SearchOptions", partial(SearchOptions, window_steps=6))
    point, result = records(run_here("tune", "--budget", "12", "--json").stdout)[-2:]
    assert (point["low_ns"], point["high_ns"], result["rivals_gain"]) == (None, None, None)
    assert point["step_ns"] > 0
    table, row, last = run_here("tune", "--budget", "12").stdout.splitlines()
    assert "95 % interval" in table
    assert row.split()[:4] == ["25", "104", "ms", "–"]
    assert "whether another value is shorter is not known" in last


# Real jobs


@pytest.mark.slow
def test_a_script_is_started_searched_and_ended(traces: Traces) -> None:
    done = overlaptop("tune", str(DDP), "--range", "1:16", "--budget", "60", "--nproc", "1", "--", *SMALL)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("bucket_cap_mb ")
    assert "The job has" not in last  # it has ended
    assert "Traceback" not in done.stderr
    assert traces.alive() == []


def test_a_script_that_fails_is_told_by_its_last_lines(
    tmp_path: Path, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "Launcher", Alone)
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('no data here')\n")
    done = run_here("tune", script, "--nproc", "2")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no data here" in done.stderr
    assert done.stderr.endswith("overlaptop: the job failed (exit status 1)\n")
    assert traces.alive() == []


@pytest.mark.slow
def test_interrupted_it_leaves_a_running_job_as_it_was(start_ranks: StartRanks, traces: Traces) -> None:
    job = start_ranks("ddp", *SMALL, "--data-ms", "10")
    eventually(lambda: bool(list_jobs()), LIMIT_S)
    search = subprocess.Popen(
        [*OVERLAPTOP, "tune", "--range", "1:16"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        # A window that is over, and one after it with another value.
        told = [search.stderr.readline() for _ in range(2)]
        assert all("round 1: bucket_cap_mb" in line for line in told), told
        search.send_signal(signal.SIGINT)
        out, err = search.communicate(timeout=LIMIT_S)
        assert search.returncode == 130, err
        assert "as before the search" in out.splitlines()[-1]
        (record,) = (
            each for each in records(run_here("set", "--json").stdout) if each["knob"] == "bucket_cap_mb"
        )
        assert record["value_text"] == record["original_text"]
    finally:
        search.kill()
        search.communicate()
        job.kill()
    eventually(lambda: traces.alive() == [])

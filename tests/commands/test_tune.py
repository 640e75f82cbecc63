"""``overlaptop tune``: what it prints, its exit status, and that a value it tried does not stay."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from overlaptop import cli
from overlaptop.console import search_report, tune
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.tuning.search import SearchOptions
from overlaptop.tuning.state import MeasuredWindow
from overlaptop.tuning.tuner import Tuner
from overlaptop.wire.endpoints import list_jobs
from overlaptop.wire.knobs import Knob
from tests.fleet.builders import BUCKET_CAP_MB, info, step
from tests.launch.jobs import Alone
from tests.tuning.live_job import LiveJob

from .conftest import StartRanks, Traces, wait_until

CODE = "DistributedDataParallel(model, bucket_cap_mb={value})"
DDP = Path(__file__).parents[2] / "workloads" / "ddp.py"
# 2 MB of gradients, and steps of some 10 ms on an idle machine.
SMALL = ["--layers", "2", "--width", "128", "--batch", "1", "--seq", "16", "--vocabulary", "512"]
LIMIT_S = 100


def valley(value: int) -> float:
    return 100 * (1 + 0.2 * ((math.log(value) - math.log(60)) / 2) ** 2)


class Session(LiveJob):
    """A line to a job in simulated time."""

    job_key = "job-1"
    on_tick: Callable[[int], object] | None = None
    ticks = 0

    def tick(self) -> Snapshot:
        self.ticks += 1
        if self.on_tick is not None:
            self.on_tick(self.ticks)
        return super().tick()

    def watch(self, ranks: list[int]) -> None:
        self.watched = ranks

    def close(self) -> None:
        pass


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Session:
    session = Session(valley, knob=replace(BUCKET_CAP_MB, code=CODE))
    monkeypatch.setattr(tune, "TICK_S", 0.0)
    monkeypatch.setattr(tune, "join", lambda _key, _hosts: session)
    return session


def test_a_table_and_a_last_line_tell_what_was_found(
    job: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune"]) == 0
    out, err = capsys.readouterr()
    *table, last = out.splitlines()
    assert table[0].split()[:2] == ["bucket_cap_mb", "step"]
    best = next(line.split()[0] for line in table if line.endswith("best"))
    assert last.startswith(f"bucket_cap_mb {best} MiB: a step ")
    code = CODE.replace("{value}", best)
    assert last.endswith(
        f". The job has 25 MiB again, as before the search. To make {best} MiB permanent: {code}"
    )
    assert err.splitlines()[0].startswith("overlaptop: round 1: bucket_cap_mb 25 MiB, ")
    assert job.watched == [0]
    assert job.value == 25


def test_with_keep_the_best_value_stays(job: Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "--keep", "--range", "10:200"]) == 0
    out = capsys.readouterr().out
    assert f"bucket_cap_mb {job.value} MiB: a step " in out
    assert f". The job has {job.value} MiB now. To make {job.value} MiB permanent: " in out
    assert 40 < job.value < 90


def test_records_tell_each_window_each_value_and_the_result(
    job: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune", "--json", "--budget", "120"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    windows = [record for record in records if record["type"] == "window"]
    points = [record for record in records if record["type"] == "point"]
    (result,) = (record for record in records if record["type"] == "result")
    assert records[-1] is result
    assert windows[0]["value"] == 25
    assert {window["value"] for window in windows} == {point["value"] for point in points}
    for point in points:
        assert point["steps"] == sum(len(w["step_ns"]) for w in windows if w["value"] == point["value"])
        assert point["low_ns"] < point["step_ns"] < point["high_ns"]
    assert result["known"] is False
    assert result["steps_spent"] <= 140
    assert result["before"] == "25"


def test_where_the_budget_was_too_small_it_says_so_and_how_to_give_more(
    job: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune", "--budget", "120"]) == 0
    out, err = capsys.readouterr()
    assert ", the best so far: " in out.splitlines()[-1]
    assert "The search had spent its steps before the best was known" in out.splitlines()[-1]
    assert err.splitlines()[-1].endswith(" steps were not enough: --budget allows more")


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_told_to_end_it_puts_the_value_back_first(
    job: Session, signum: int, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def on_tick(number: int) -> None:
        seen.append(job.value)
        if job.value != 25 and seen.count(job.value) == 3 and len(set(seen)) == 4:
            os.kill(os.getpid(), signum)

    job.on_tick = on_tick
    before = signal.getsignal(signum)
    assert cli.main(["tune"]) == status
    assert job.value == 25
    out, err = capsys.readouterr()
    assert "bucket_cap_mb goes back to 25" in err
    assert "at most 0 to go" not in err
    assert signal.getsignal(signum) is before
    *table, last = out.splitlines()
    assert [line.split()[0] for line in table[1:]] == ["1", "25", "42"]
    assert "a first guess (each value was measured once only)" in last
    assert ". The search ended before the best was known. The job has 25 MiB again, as before" in last


def test_told_to_end_before_a_window_is_in_it_says_which_value_the_job_has(
    job: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    job.on_tick = lambda number: os.kill(os.getpid(), signal.SIGINT) if number == 4 else None
    assert cli.main(["tune"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "overlaptop: nothing was measured yet; the job still has 25 MiB"
    assert job.sent == []


def test_told_twice_it_leaves_at_once(job: Session) -> None:
    job.on_tick = lambda number: os.kill(os.getpid(), signal.SIGINT) if number in (200, 201) else None
    with pytest.raises(SystemExit) as left:
        cli.main(["tune"])
    assert left.value.code == 130


def test_a_refusal_is_one_line_and_status_1(job: Session, capsys: pytest.CaptureFixture[str]) -> None:
    job.refuses = "its model is compiled"
    assert cli.main(["tune"]) == 1
    assert (
        "bucket_cap_mb cannot be changed: rank 0 refused: its model is compiled" in capsys.readouterr().err
    )


def test_a_job_that_ends_meanwhile_still_tells_what_was_found(
    job: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    job.on_tick = lambda number: job.end() if number == 150 else None
    assert cli.main(["tune"]) == 1
    out, err = capsys.readouterr()
    assert "The search ended before the best was known" in out
    assert err.splitlines()[-1] == "overlaptop: the job ended"


def test_a_job_that_allows_no_changes_says_how_to(job: Session, capsys: pytest.CaptureFixture[str]) -> None:
    job.fleet.apply(info(0, control_allowed=False))
    assert cli.main(["tune"]) == 1
    assert "start the job with --control" in capsys.readouterr().err
    assert job.sent == []


def test_a_knob_that_the_job_does_not_have_is_named(
    job: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune, "KNOBS_S", 0.0)
    assert cli.main(["tune", "--knob", "lr"]) == 2
    assert "lr cannot be set; of this job there is: bucket_cap_mb" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stepped", "complaint"),
    [
        ((), "ranks 0, 1 finished no step within 0 s: nothing can be measured"),
        ((0,), "rank 1 finished no step within 0 s, and the others have: nothing can be measured"),
    ],
)
def test_a_rank_without_a_step_is_not_waited_for_for_ever(
    stepped: tuple[int, ...],
    complaint: str,
    job: Session,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for limit in ("STARTING_S", "LATE_S"):
        monkeypatch.setattr(tune, limit, 0.0)
    for rank in stepped:
        job.fleet.apply(step(rank, 0))
    monkeypatch.setattr(job, "tick", job.fleet.snapshot)
    assert cli.main(["tune"]) == 1
    assert capsys.readouterr().err.splitlines() == [f"overlaptop: {complaint}"]


def test_it_says_once_which_rank_it_waits_for(
    job: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune, "ANNOUNCE_S", 0.0)
    job.fleet.apply(step(0, 0))
    looks = iter([job.fleet.snapshot()] * 5)
    monkeypatch.setattr(job, "tick", lambda: next(looks, None) or Session.tick(job))
    assert cli.main(["tune", "--budget", "60"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told.count("overlaptop: waits for the first step of rank 1") == 1


def test_windows_too_short_to_tell_show_no_interval_rather_than_a_wrong_one(
    job: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = partial(SearchOptions, window_steps=6)
    monkeypatch.setattr(tune, "SearchOptions", short)
    for words in (["--json"], []):
        assert cli.main(["tune", "--budget", "9", *words]) == 0
    *records, table, row, last = capsys.readouterr().out.splitlines()
    point, result = (json.loads(each) for each in records[-2:])
    assert (point["low_ns"], point["high_ns"], result["rivals_gain"]) == (None, None, None)
    assert point["step_ns"] > 0
    assert "95 % interval" in table
    assert row.split()[:4] == ["25", "104", "ms", "–"]
    assert "whether another value is shorter is not known" in last


def test_one_step_is_a_step_and_two_are_steps() -> None:
    window = MeasuredWindow(25, 0, 7, (100_000_000,), None)
    state = replace(
        Tuner(Session(valley), BUCKET_CAP_MB).state, steps_spent=1, steps_to_go=99, candidates=7
    )
    told = "round 1: bucket_cap_mb 25 MiB, 100 ms a step in 1 step, 7 candidates, 1 step spent"
    assert search_report.window_words(state, window) == f"{told}, at most 99 to go"
    two = search_report.window_words(replace(state, steps_spent=2, steps_to_go=None), window)
    assert two.endswith("7 candidates, 2 steps spent")


def test_a_range_without_values_is_a_usage_error(job: Session, capsys: pytest.CaptureFixture[str]) -> None:
    job.knob = Knob("bucket_cap_mb", 25, "25", "25", 1, 100)
    job._tell_knob()
    assert cli.main(["tune", "--range", "200:300"]) == 2
    assert "bucket_cap_mb allows no value from 200 to 300" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--range", "1"], "must be A:B, two whole numbers with A <= B, not '1'"),
        (["--range", "9:1"], "must be A:B, two whole numbers with A <= B, not '9:1'"),
        (["--budget", "0"], "must be a positive whole number"),
        (["--nproc", "2"], "go with SCRIPT"),
        (["--", "--steps", "5"], "go with SCRIPT"),
        (["ddp", "--keep"], "are for a job that runs"),
        (["ddp", "--job", "abc"], "are for a job that runs"),
        (["nowhere.py"], "no script nowhere.py, and no workload of that name; there are: ddp"),
        (["ddp", "--", "--layers", "none"], "--layers"),
    ],
)
def test_a_usage_error_is_one_line_and_status_2(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = cli.main(["tune", *words])
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert complaint in capsys.readouterr().err


def test_without_a_job_it_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune"]) == 1
    assert "no job with an agent runs here" in capsys.readouterr().err


# Real jobs


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "overlaptop", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def held_value() -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "overlaptop", "set", "--json"],
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    records = [json.loads(line) for line in done.stdout.splitlines()]
    return next(record for record in records if record["knob"] == "bucket_cap_mb")


@pytest.mark.slow
def test_a_script_is_started_searched_and_ended(traces: Traces) -> None:
    process = start("tune", str(DDP), "--range", "1:16", "--budget", "60", "--nproc", "1", "--", *SMALL)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    last = out.splitlines()[-1]
    assert last.startswith("bucket_cap_mb ")
    assert "The job has" not in last  # it has ended
    assert "Traceback" not in err
    assert traces.alive() == []


def test_a_script_that_fails_is_told_by_its_last_lines(
    tmp_path: Path, traces: Traces, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune, "Launcher", Alone)
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('no data here')\n")
    assert cli.main(["tune", str(script), "--nproc", "2"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "no data here" in err
    assert err.splitlines()[-1] == "overlaptop: the job failed (exit status 1)"
    assert traces.alive() == []


@pytest.mark.slow
def test_interrupted_it_leaves_a_running_job_as_it_was(start_ranks: StartRanks, traces: Traces) -> None:
    job = start_ranks("ddp", *SMALL, "--data-ms", "10")
    assert wait_until(lambda: bool(list_jobs()), LIMIT_S)
    search = start("tune", "--range", "1:16")
    try:
        # A window that is over, and one after it with another value.
        told = [search.stderr.readline() for _ in range(2)]
        assert all("round 1: bucket_cap_mb" in line for line in told), told
        search.send_signal(signal.SIGINT)
        out, err = search.communicate(timeout=LIMIT_S)
        assert search.returncode == 130, err
        assert "as before the search" in out.splitlines()[-1]
        record = held_value()
        assert record["value_text"] == record["original_text"]
    finally:
        search.kill()
        search.communicate()
        job.kill()
    assert wait_until(lambda: traces.alive() == [])

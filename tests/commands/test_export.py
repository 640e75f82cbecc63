"""``overlaptop export``: traces and running jobs as files, and what it refuses."""

import csv
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from overlaptop.commands import following
from overlaptop.jobs.record import list_jobs
from tests.fleet.builders import Clock
from tests.formats.traces import DATA
from tests.processes import eventually
from tests.recording.played import played

from .conftest import StartRanks
from .running import SMALL_DDP, START_LIMIT_S, records, run_here


def names_of(path: Path) -> set[str]:
    return {packet.track_event.name for packet in Trace.FromString(path.read_bytes()).packet}


def test_traces_become_all_files_at_once(tmp_path: Path) -> None:
    table, trace, page, folder = (tmp_path / name for name in ("a.csv", "a.pftrace", "a.html", "chrome"))
    done = run_here(
        "export", DATA / "ddp_25mb", "--csv", table, "--perfetto", trace, "--html", page, "--chrome", folder
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == [
        f"overlaptop: {path}: written" for path in (trace, folder, page, table)
    ]
    assert {"step 2", "waiting", "transfer"} <= names_of(trace)
    html = page.read_text()
    assert "rank 2 is late in 75 of 75 collectives" in html
    assert "rank 2 is launch-bound" in html
    printed = records(run_here("analyze", DATA / "ddp_25mb", "--json").stdout)
    steps = [each for each in printed if each["type"] == "step"]
    with table.open(newline="") as rows:
        assert [row["wait_ns"] for row in csv.DictReader(rows)] == [str(each["wait_ns"]) for each in steps]
    assert run_here("analyze", folder, "--json").stderr == ""


def test_last_minutes_of_a_recording_become_files(tmp_path: Path) -> None:
    recording, rows, page = (tmp_path / name for name in ("run.mcap", "steps.csv", "job.html"))
    played(Clock(), recording, 20)
    done = run_here("export", recording, "--csv", rows, "--html", page)
    assert done.returncode == 0, done.stderr
    assert len(rows.read_text().splitlines()) == 1 + 2 * 20
    assert "train.py" in page.read_text()
    done = run_here("export", recording, recording, "--csv", rows)
    assert (done.returncode, done.stderr) == (2, "overlaptop: name one recording alone\n")


def test_a_running_job_is_asked_for_steps(
    start_ranks: StartRanks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LIMIT_S", START_LIMIT_S)
    start_ranks("ddp", *SMALL_DDP)
    eventually(lambda: bool(list_jobs()), START_LIMIT_S)
    table, trace = tmp_path / "a.csv", tmp_path / "a.pftrace"
    done = run_here("export", "--csv", table, "--perfetto", trace, "--html", tmp_path / "a.html")
    assert done.returncode == 0, done.stderr
    with table.open(newline="") as rows:
        compared = [row for row in csv.DictReader(rows) if row["not_attributed_ns"]]
    assert len(compared) >= 2 * following.COMPARED_STEPS
    # On a busy machine all collectives of the first compared steps may be left unattributed.
    named = {
        "allreduce_",
        "transfer" if any(int(row["transfer_ns"] or 0) for row in compared) else "not attributed",
    }
    assert named <= names_of(trace)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["{data}"], "name a file: --perfetto, --chrome, --html, --csv"),
        (["{data}", "--csv", "{here}/no/such/a.csv"], "--csv {here}/no/such/a.csv: no such file"),
        (["{data}", "--csv", "/dev/full"], "no space left on device"),
        (["{data}", "--chrome", "{data}"], "--chrome {data}: directory not empty"),
        (["{here}", "--csv", "{here}/a.csv"], "{here}: "),
        (["{data}", "--job", "a", "--csv", "{here}/a.csv"], "leave out PATH"),
        (["{data}", "--lane", "x=y", "--csv", "{here}/a.csv"], "unknown lane 'x'"),
    ],
)
def test_bad_requests_give_one_line(words: list[str], complaint: str, tmp_path: Path) -> None:
    places = {"data": DATA / "ddp_gloo", "here": tmp_path}
    done = run_here("export", *(word.format(**places) for word in words))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert complaint.format(**places) in done.stderr

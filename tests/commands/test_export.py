"""``overlaptop export`` and ``exporter``: files and metrics of jobs, and what is refused."""

import csv
import ssl
import subprocess
import urllib.request
from contextlib import contextmanager, nullcontext

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from overlaptop.commands import export, following
from overlaptop.commands.exporter import FILE_NAME
from overlaptop.jobs.record import list_jobs
from tests.fleet.builders import Clock
from tests.formats.traces import DATA
from tests.processes import eventually
from tests.recording.played import played
from tests.tui.waits import waiting_job

from .running import LATE, OVERLAPTOP, START_LIMIT_S, records, run_here


def names_of(path):
    return {packet.track_event.name for packet in Trace.FromString(path.read_bytes()).packet}


def test_traces_become_all_files_at_once(tmp_path):
    table, trace, page, folder = (tmp_path / name for name in ("a.csv", "a.pftrace", "a.html", "chrome"))
    files = ("--csv", table, "--perfetto", trace, "--html", page, "--chrome", folder)
    done = run_here("export", DATA / "ddp_25mb", *files)
    assert (done.returncode, done.stdout) == (0, "")
    written = [f"overlaptop: {path}: written" for path in (trace, folder, page, table)]
    assert done.stderr.splitlines() == written
    assert {"step 2", "waiting", "transfer"} <= names_of(trace)
    html = page.read_text()
    assert "rank 2 is late in 75 of 75 collectives" in html
    assert "rank 2 is launch-bound" in html
    printed = records(run_here("analyze", DATA / "ddp_25mb", "--json").stdout)
    steps = [each for each in printed if each["type"] == "step"]
    with table.open(newline="") as rows:
        assert [row["wait_ns"] for row in csv.DictReader(rows)] == [str(each["wait_ns"]) for each in steps]
    assert run_here("analyze", folder, "--json").stderr == ""


def test_last_minutes_of_a_recording_become_files(tmp_path):
    recording, rows, page = (tmp_path / name for name in ("run.mcap", "steps.csv", "job.html"))
    played(Clock(), recording, 20)
    done = run_here("export", recording, "--csv", rows, "--html", page)
    assert done.returncode == 0, done.stderr
    assert len(rows.read_text().splitlines()) == 1 + 2 * 20
    assert "train.py" in page.read_text()
    done = run_here("export", recording, recording, "--csv", rows)
    assert (done.returncode, done.stderr) == (2, "overlaptop: name one recording alone\n")


def test_a_running_job_is_asked_for_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "join", lambda *_: nullcontext(waiting_job(late=lambda _: 0, ranks=2)))
    monkeypatch.setattr(following, "WAITS_LIMIT_S", 0.0)
    table, trace = tmp_path / "a.csv", tmp_path / "a.pftrace"
    done = run_here("export", "--csv", table, "--perfetto", trace, "--html", tmp_path / "a.html")
    assert done.returncode == 0, done.stderr
    with table.open(newline="") as rows:
        compared = [row for row in csv.DictReader(rows) if row["not_attributed_ns"]]
    assert len(compared) == 2 * following.COMPARED_STEPS
    assert {"allreduce_", "transfer", "waiting"} <= names_of(trace)


@contextmanager
def exporter(*words):
    command = [*OVERLAPTOP, "exporter", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def address(process):
    return process.stderr.readline().removeprefix("overlaptop: ").strip()


def page(url, context=None):
    with urllib.request.urlopen(url, timeout=START_LIMIT_S, context=context) as answer:
        return answer.read().decode()


def test_jobs_come_and_go_while_it_serves(start_ranks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("textfile")
    with exporter("--port", 0, "--textfile", folder, "--every", 1, "--detail") as process:
        url = address(process)
        assert url.startswith("http://127.0.0.1:")
        assert "overlaptop_job_info" not in page(url)
        job = start_ranks(*LATE)
        (record,) = eventually(list_jobs, START_LIMIT_S)
        late = f'overlaptop_rank_late{{job="{record.job}",node="{record.host}",rank="1"}} 1.0'
        eventually(lambda: late in page(url), START_LIMIT_S)
        eventually(lambda: late in (folder / FILE_NAME).read_text(), START_LIMIT_S)
        job.kill()
        gone = f'overlaptop_job_up{{job="{record.job}"}} 0.0'
        eventually(lambda: gone in page(url), START_LIMIT_S)
        process.terminate()
        assert process.wait(START_LIMIT_S) == 0
    assert list(folder.iterdir()) == []


def test_tls_needs_the_certificate(tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    with exporter("--port", 0, "--tls-cert", certificate, "--tls-key", key) as process:
        url = address(process)
        assert url.startswith("https://")
        assert page(url, ssl.create_default_context(cafile=certificate)) == ""
        with pytest.raises(OSError, match="certificate"):
            page(url, ssl.create_default_context())


def test_another_address_without_tls_is_pointed_out():
    with exporter("--port", 0, "--listen", "0.0.0.0") as process:
        assert "served without TLS" in address(process)

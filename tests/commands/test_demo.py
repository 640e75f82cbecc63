"""Real jobs: started by ``overlaptop demo``, or found by other commands, and gone afterwards."""

import signal
import subprocess

import pytest

from overlaptop.commands import following
from overlaptop.jobs import last_end
from overlaptop.jobs.record import list_jobs
from tests.processes import eventually

from .running import OVERLAPTOP, SMALL_DDP, SMALL_MATMUL, START_LIMIT_S, overlaptop, records, run_here


def steps(text):
    return [record for record in records(text) if record["type"] == "step"]


def await_step(lines):
    """Read up to the first record of a step; False where none comes."""
    return any(line.startswith('{"type": "step"') for line in lines)


@pytest.mark.parametrize(
    ("ranks", "options"), [(2, ["--steps", "3", "--json", "--"]), (1, ["--json", "--", "--steps", "8"])]
)
def test_demo_ends_after_steps_or_with_its_job_and_leaves_no_process(traces, ranks, options):
    done = overlaptop("demo", "allreduce_matmul", "--nproc", str(ranks), *options, *SMALL_MATMUL)
    assert done.returncode == 0, done.stderr
    found = steps(done.stdout)
    assert {record["rank"] for record in found} == set(range(ranks))
    assert ranks == 1 or len(found) == 6
    for record in found:
        parts = ("hidden_ns", "exposed_ns", "compute_only_ns", "copy_only_ns")
        assert (record["compute_exact"], record["idle_ns"]) == (False, None)
        if record["comm_ns"] is not None:
            assert sum(record[part] for part in parts) <= record["step_ns"]
    assert traces.alive() == []


def test_options_of_a_workload_are_listed_without_a_terminal():
    done = run_here("demo", "faults", "--", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--by {sleep,compute,gc,loader,cpus,batches}" in done.stdout


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_demo_ended_by_a_signal_leaves_nothing(traces, socket_dir, signum, status):
    """No process, and no folder but that of what happened."""
    words, pipe = ["allreduce_matmul", "--json", "--nproc", "1", "--", *SMALL_MATMUL], subprocess.PIPE
    demo = subprocess.Popen([*OVERLAPTOP, "demo", *words], stdout=pipe, stderr=pipe, text=True)
    assert await_step(demo.stdout), demo.stderr.read()
    watcher = subprocess.Popen([*OVERLAPTOP, "--json"], stdout=pipe, text=True)
    assert await_step(watcher.stdout)
    demo.send_signal(signum)
    watcher.communicate(timeout=START_LIMIT_S)
    assert watcher.returncode == 0
    _, err = demo.communicate(timeout=START_LIMIT_S)
    assert (demo.returncode, "Traceback" in err) == (status, False)
    eventually(lambda: traces.alive() == [])
    assert [path.name for path in socket_dir.iterdir() if path.is_dir()] == ["black_boxes"]
    assert last_end.read().stopped == (signum == signal.SIGINT)  # SIGTERM leaves no time to note it


def test_other_commands_see_a_job(start_ranks, monkeypatch):
    monkeypatch.setattr(following, "LIMIT_S", START_LIMIT_S)  # however busy this machine is
    start_ranks("ddp", *SMALL_DDP)
    stream = run_here("--json", "--steps", "2", "--wait")
    assert stream.returncode == 0, stream.stderr
    assert sorted(record["rank"] for record in steps(stream.stdout)) == [0, 0, 1, 1]
    (job,) = records(run_here("--list", "--json").stdout)
    assert job["script"].endswith("ddp.py")
    assert job["job"] in run_here("--list").stdout
    assert "2 ranks" in run_here("--once").stdout.splitlines()[0]
    assert [record["rank"] for record in steps(run_here("--once", "--json").stdout)] == [0, 1]
    assert len(steps(run_here("--json", "--steps", "1", "--job", job["job"]).stdout)) == 2
    missing = run_here("--json", "--job", "other")
    assert (missing.returncode, missing.stdout, job["job"] in missing.stderr) == (1, "", True)

    command, pipe = [*OVERLAPTOP, "--json"], subprocess.PIPE
    reader = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    assert await_step(reader.stdout)
    reader.stdout.close()  # it has enough
    assert (reader.stderr.read(), reader.wait(START_LIMIT_S)) == ("", 0)

    start_ranks("allreduce_matmul", *SMALL_MATMUL, ranks=1)
    eventually(lambda: len(list_jobs()) == 2, START_LIMIT_S)
    done = run_here("--json")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert all(job.job in done.stderr for job in list_jobs())

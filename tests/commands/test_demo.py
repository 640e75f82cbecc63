"""Real jobs: started by ``overlaptop demo``, or found by other commands, and gone afterwards."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from overlaptop.wire.endpoints import list_jobs

from .conftest import StartRanks, Traces, wait_until

OVERLAPTOP = [sys.executable, "-m", "overlaptop"]
# Small enough to start in seconds on a busy machine, and to leave it to the tests.
SMALL = ["--layers", "1", "--width", "64", "--batch", "1", "--seq", "16", "--data-ms", "50"]
SMALL_MATMUL = ["--matrix", "32", "--products", "2", "--size-mb", "0.1", "--data-ms", "50"]
START_LIMIT_S = 90


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*OVERLAPTOP, *words], capture_output=True, text=True, timeout=START_LIMIT_S)


def records(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def steps(text: str) -> list[dict[str, object]]:
    return [record for record in records(text) if record["type"] == "step"]


def await_step(lines: Iterable[str]) -> bool:
    """Read up to the first record of a step; False where none comes."""
    return any(line.startswith('{"type": "step"') for line in lines)


def test_a_demo_prints_so_many_steps_of_each_rank_and_leaves_no_process(traces: Traces) -> None:
    done = run("demo", "fsdp", "--nproc", "2", "--steps", "3", "--json", "--", *SMALL)
    assert done.returncode == 0, done.stderr
    seen = sorted((record["rank"], record["step"]) for record in steps(done.stdout))
    assert [rank for rank, _ in seen] == [0, 0, 0, 1, 1, 1]
    for record in steps(done.stdout):
        parts = ("hidden_ns", "exposed_ns", "compute_only_ns", "copy_only_ns")
        assert (record["compute_exact"], record["idle_ns"]) == (False, None)
        if record["comm_ns"] is not None:
            assert sum(record[part] for part in parts) <= record["step_ns"]
    assert traces.alive() == []


def test_a_demo_whose_workload_refuses_its_options_says_so_and_returns_2(traces: Traces) -> None:
    done = run("demo", "ddp", "--nproc", "2", "--json", "--", "--nonsense")
    assert done.returncode == 2
    assert "--nonsense" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert traces.alive() == []


def test_a_demo_whose_job_ends_by_itself_ends_with_it(traces: Traces) -> None:
    done = run("demo", "allreduce_matmul", "--nproc", "1", "--json", "--", *SMALL_MATMUL, "--steps", "8")
    assert done.returncode == 0, done.stderr
    assert {record["rank"] for record in records(done.stdout)} == {0}
    assert traces.alive() == []


@pytest.fixture
def demo(traces: Traces) -> Iterator[subprocess.Popen[str]]:
    """A demo that goes on until it is told to stop, and has printed its first record of a step."""
    process = subprocess.Popen(
        [*OVERLAPTOP, "demo", "allreduce_matmul", "--json", "--nproc", "1", "--", *SMALL_MATMUL],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert await_step(process.stdout), process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


def assert_ended(process: subprocess.Popen[str], status: int, traces: Traces, socket_dir: Path) -> None:
    """With this status, and without a process or a folder that is left."""
    _, talk = process.communicate(timeout=START_LIMIT_S)
    assert process.returncode == status
    assert "Traceback" not in talk
    assert wait_until(lambda: traces.alive() == [])
    assert list(socket_dir.iterdir()) == []


def test_a_demo_that_is_interrupted_leaves_no_process_and_no_folder(
    demo: subprocess.Popen[str], traces: Traces, socket_dir: Path
) -> None:
    demo.send_signal(signal.SIGINT)
    assert_ended(demo, 130, traces, socket_dir)


def test_a_demo_that_is_terminated_leaves_nothing_and_ends_the_stream_of_who_watches(
    demo: subprocess.Popen[str], traces: Traces, socket_dir: Path
) -> None:
    watcher = subprocess.Popen([*OVERLAPTOP, "--json"], stdout=subprocess.PIPE, text=True)
    assert await_step(watcher.stdout)
    demo.send_signal(signal.SIGTERM)
    watcher.communicate(timeout=START_LIMIT_S)
    assert watcher.returncode == 0
    assert_ended(demo, -signal.SIGTERM, traces, socket_dir)


# A job that somebody else started


def test_other_commands_see_a_job(start_ranks: StartRanks) -> None:
    start_ranks("ddp", *SMALL)
    stream = run("--json", "--steps", "2", "--wait")
    assert stream.returncode == 0, stream.stderr
    assert sorted(record["rank"] for record in steps(stream.stdout)) == [0, 0, 1, 1]

    (job,) = records(run("--list", "--json").stdout)
    assert job["script"].endswith("ddp.py")
    assert str(job["job"]) in run("--list").stdout

    table = run("--once")
    assert table.returncode == 0, table.stderr
    assert "2 ranks" in table.stdout.splitlines()[0]
    assert len(table.stdout.splitlines()) >= 5

    once = steps(run("--once", "--json").stdout)
    assert [record["rank"] for record in once] == [0, 1]

    named = run("--json", "--steps", "1", "--job", str(job["job"]))
    assert named.returncode == 0, named.stderr
    assert len(steps(named.stdout)) == 2

    missing = run("--json", "--job", "other")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert str(job["job"]) in missing.stderr


def test_a_reader_that_has_enough_ends_the_stream_quietly(start_ranks: StartRanks) -> None:
    start_ranks("allreduce_matmul", *SMALL_MATMUL, ranks=1)
    assert wait_until(lambda: bool(list_jobs()), START_LIMIT_S)
    reader = subprocess.Popen(
        [*OVERLAPTOP, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert await_step(reader.stdout)
    reader.stdout.close()
    assert reader.stderr.read() == ""
    assert reader.wait(START_LIMIT_S) == 0


def test_several_jobs_without_a_choice_are_named_with_status_2(start_ranks: StartRanks) -> None:
    for _ in range(2):
        start_ranks("allreduce_matmul", *SMALL_MATMUL, ranks=1)
    assert wait_until(lambda: len(list_jobs()) == 2, START_LIMIT_S)
    done = run("--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert all(job.job in done.stderr for job in list_jobs())

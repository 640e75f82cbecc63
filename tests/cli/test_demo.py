"""Real jobs: started by ``overlaptop demo``, watched by other commands, and gone afterwards."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from .conftest import Traces, wait_until

OVERLAPTOP = [sys.executable, "-m", "overlaptop"]
# Small enough to start in seconds on a busy machine, and to leave it to the tests.
SMALL = ["--layers", "2", "--width", "64", "--batch", "1", "--data-ms", "50"]
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


@pytest.mark.parametrize("workload", ["ddp", "fsdp"])
def test_demo_prints_so_many_steps_of_each_rank_and_leaves_no_process(
    traces: Traces, workload: str
) -> None:
    done = run("demo", workload, "--nproc", "2", "--steps", "3", "--json", "--", *SMALL)
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
    done = run("demo", "ddp", "--nproc", "1", "--json", "--", *SMALL, "--steps", "8")
    assert done.returncode == 0, done.stderr
    assert {record["rank"] for record in records(done.stdout)} == {0}
    assert traces.alive() == []


def start_demo(*options: str) -> subprocess.Popen[str]:
    """A demo that goes on until it is told to stop, and has printed its first record."""
    process = subprocess.Popen(
        [*OVERLAPTOP, "demo", "ddp", "--json", *options, "--", *SMALL],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert await_step(process.stdout), process.stderr.read()
    return process


def end_demo(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def demo(traces: Traces) -> Iterator[subprocess.Popen[str]]:
    """A demo of this test alone, which may end it."""
    process = start_demo("--nproc", "1")
    yield process
    end_demo(process)


@pytest.fixture(scope="module")
def long_demo_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket folder of a demo that runs for all tests that only look at it."""
    folder = tmp_path_factory.mktemp("ot")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVERLAPTOP_DIR", str(folder))
        process = start_demo("--nproc", "2")
    yield folder
    end_demo(process)


@pytest.fixture
def long_demo(long_demo_dir: Path, socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAPTOP_DIR", str(long_demo_dir))


def test_other_commands_see_the_job_of_a_demo(long_demo: None) -> None:
    (job,) = records(run("--list", "--json").stdout)
    assert job["script"].endswith("ddp.py")
    assert str(job["job"]) in run("--list").stdout

    table = run("--once")
    assert table.returncode == 0, table.stderr
    assert "2 ranks" in table.stdout.splitlines()[0]
    assert len(table.stdout.splitlines()) >= 5

    once = steps(run("--once", "--json").stdout)
    assert [record["rank"] for record in once] == [0, 1]

    stream = run("--json", "--steps", "2", "--job", str(job["job"]))
    assert stream.returncode == 0, stream.stderr
    assert len(steps(stream.stdout)) == 4

    missing = run("--json", "--job", "other")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert str(job["job"]) in missing.stderr


def test_a_reader_that_has_enough_ends_the_stream_quietly(long_demo: None) -> None:
    reader = subprocess.Popen(
        [*OVERLAPTOP, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert await_step(reader.stdout)
    reader.stdout.close()
    assert reader.stderr.read() == ""
    assert reader.wait(START_LIMIT_S) == 0


def test_several_jobs_without_a_choice_are_named_with_status_2(long_demo: None) -> None:
    second = start_demo("--nproc", "1")
    keys = [str(job["job"]) for job in records(run("--list", "--json").stdout)]
    done = run("--json")
    end_demo(second)
    assert len(keys) == 2
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert all(key in done.stderr for key in keys)


def assert_ended(process: subprocess.Popen[str], status: int, traces: Traces, socket_dir: Path) -> None:
    """With this status, and without a process or a folder that is left."""
    _, talk = process.communicate(timeout=START_LIMIT_S)
    assert process.returncode == status
    assert "Traceback" not in talk
    assert wait_until(lambda: traces.alive() == [])
    assert list(socket_dir.iterdir()) == []


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_demo_that_is_ended_leaves_no_process_and_no_folder(
    demo: subprocess.Popen[str],
    traces: Traces,
    socket_dir: Path,
    signum: signal.Signals,
    status: int,
) -> None:
    demo.send_signal(signum)
    assert_ended(demo, status, traces, socket_dir)


def test_a_demo_that_is_terminated_leaves_nothing_and_ends_the_stream_of_who_watches(
    demo: subprocess.Popen[str], traces: Traces, socket_dir: Path
) -> None:
    watcher = subprocess.Popen([*OVERLAPTOP, "--json"], stdout=subprocess.PIPE, text=True)
    assert await_step(watcher.stdout)
    demo.send_signal(signal.SIGTERM)
    watcher.communicate(timeout=START_LIMIT_S)
    assert watcher.returncode == 0
    assert_ended(demo, -signal.SIGTERM, traces, socket_dir)

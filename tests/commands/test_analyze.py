"""``overlaptop analyze``: what it prints, what it draws, and how it refuses files that are no traces."""

import re
from pathlib import Path

import pytest

from tests.formats.traces import DATA, kernel, mark, small_job, write

from .running import LEAVE_ALTERNATE_SCREEN, Terminal, records, run_here


def run_analyze(*words):
    return run_here("analyze", *words)


def records_of(*words):
    done = run_analyze(*words, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return records(done.stdout)


# Records


def test_json_prints_each_step_of_each_rank_and_then_each_rank(tmp_path):
    found = [each for each in records_of(small_job(tmp_path)) if each["type"] != "collective"]
    assert [(each["type"], each["rank"], each.get("step")) for each in found] == [
        ("step", 0, 5), ("step", 0, 6), ("step", 1, 5), ("step", 1, 6), ("rank", 0, None), ("rank", 1, None)
    ]  # fmt: skip
    step, rank = found[1], found[-1]
    assert step["job"] == tmp_path.name
    assert (step["source"], step["compute_exact"], step["overlap"]) == ("kernels", True, 0.5)
    assert (rank["comm_ns"], rank["hidden_ns"], rank["exposed_ns"]) == (60_000, 40_000, 20_000)
    assert (rank["compute_ns"], rank["copy_only_ns"], rank["idle_ns"]) == (100_000, 0, 60_000)
    assert rank["overlap"] == 2 / 3


def test_json_tells_waiting_from_transfer():
    found = [each for each in records_of(DATA / "ddp_25mb") if each["type"] in ("step", "rank")]
    assert {each["late_rank"] for each in found} == {2}
    for each in found:
        assert each["wait_ns"] + each["transfer_ns"] + each["not_attributed_ns"] == each["comm_ns"]
        assert (each["wait_ns"] == 0) == (each["rank"] == 2)
    by_hta = records_of(DATA / "ddp_25mb", "--hta")[-1]
    assert (by_hta["wait_ns"], by_hta["not_attributed_ns"], by_hta["late_rank"]) == (None, None, None)


def test_missing_ranks_are_reported_beside_the_records(tmp_path):
    write(tmp_path / "a.json", kernel(0, 10), rank=1, world_size=4)
    done = run_analyze(tmp_path, "--json")
    assert (done.returncode, done.stdout.count("\n")) == (0, 2)
    assert done.stderr == f"overlaptop: {tmp_path}: no trace of rank 0, 2-3 of 4\n"
    title, *_, heading = run_analyze(tmp_path / "a.json").stdout.partition("   overlap")[0].splitlines()
    assert (" · 1 of 4 ranks · " in title, heading) == (True, "whole trace, rank 1")


# The table


def test_without_a_terminal_there_is_a_table(tmp_path):
    done = run_analyze(small_job(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    title, said, whole, _, first, *_ = done.stdout.splitlines()
    assert title.endswith(f"{tmp_path} · 2 ranks · NVIDIA H200 · nccl 2.28.9 · job {tmp_path.name} · trace")
    assert said.startswith("67 % of communication is hidden; 20.0 µs of 180 µs (11 %) is not. No rank is")
    assert whole == "whole trace (steps 5-6), all ranks   overlap 66.7 %   hidden 80.0 µs of 120 µs"
    assert first.split()[:6] == ["0", "2", "66.7", "%", "20.0", "µs"]
    assert run_analyze(tmp_path, "--ascii").stdout.isascii()


def test_without_a_gpu_the_table_marks_its_figures_as_bounds():
    lines = run_analyze(DATA / "ddp_gloo").stdout.splitlines()
    assert "overlap ≤78.7 %" in lines[2]
    assert [line.split()[2] for line in lines[4:6]] == ["89.7", "73.7"]
    assert [line.split()[-1] for line in lines[4:6]] == ["–", "–"]
    assert lines[6] == "≤: without a GPU compute is an upper bound, and so are overlap and hidden"
    assert "overlap <=78.7 %" in run_analyze(DATA / "ddp_gloo", "--ascii").stdout


def test_table_splits_the_communication_of_each_rank():
    lines = run_analyze(DATA / "ddp_25mb").stdout.splitlines()
    assert lines[1].startswith("rank 2 is late in 75 of 75 collectives; the others wait 15.9 ms of the tra")
    (whole,) = (at for at, line in enumerate(lines) if "of it exposed" in line)
    found = [re.split(r"  +", line.strip()) for line in lines]
    assert found[whole] == [
        "rank", "waiting", "of it exposed", "transfer", "of it exposed", "not attributed", "late in"
    ]  # fmt: skip
    assert found[whole + 1] == ["0", "56.6 ms", "16.0 ms", "14.0 ms", "4.02 ms", "73.7 ms", "0 of 75"]
    assert found[whole + 3] == ["2", "0", "0", "14.2 ms", "5.10 ms", "0", "75 of 75"]


def test_an_option_chooses_a_step_for_the_table_and_the_records():
    lines = run_analyze(DATA / "ddp_25mb", "--step", "3").stdout.splitlines()
    assert lines[1].startswith("rank 2 is late in 25 of 25 collectives; the others wait ")
    assert lines[2].startswith("step 3, all ranks   overlap ")
    assert [line.split()[:2] for line in lines[4:8]] == [[str(rank), "1"] for rank in range(4)]
    found = records_of(DATA / "ddp_25mb", "--step", "3")
    kinds = [(each["type"], each["step"], each["late_rank"]) for each in found]
    assert kinds == [("step", 3, 2)] * 4 + [("collective", 3, 2)] * 25
    assert f"{found[0]['exposed_ns'] / 1e6:.2f} ms" in lines[4]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["7"], "there is no step 7, only 2-4"),
        (["third"], "must be a step's number, not 'third'"),
        (["3", "--hta"], "leave out --step"),
    ],
)
def test_a_step_that_is_not_there_is_a_usage_error(options, words):
    done = run_analyze(DATA / "ddp_25mb", "--step", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_a_step_may_be_written_as_screens_write_it(tmp_path):
    write(tmp_path / "a.json", mark(1284, 0, 50), kernel(0, 20), mark(1285, 50, 90), kernel(60, 20))
    assert "whole trace (steps 1284-1285), " in run_analyze(tmp_path / "a.json").stdout
    assert "\nstep 1,284, " in run_analyze(tmp_path / "a.json", "--step", "1,284").stdout


# Files that are no traces


def test_what_is_no_trace_gets_one_line_and_status_2(tmp_path):
    """tests/formats has all that may be wrong with one."""
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "none").mkdir()
    for path, words in {
        Path("/dev/zero"): "not a regular file",
        tmp_path / "nothing": "no such file",
        tmp_path / "empty": "does not begin with a JSON object",
        tmp_path / "none": "no trace in this folder",
    }.items():
        for options in (["--json"], ["--json", "--hta"], []):
            done = run_analyze(path, *options)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), path
            assert done.stderr.startswith(f"overlaptop: {path}: ")
            assert words in done.stderr


def test_a_hostile_name_does_not_reach_the_terminal(tmp_path):
    path = tmp_path / "\x1b[2J\n.json"
    path.write_text("{}")
    done = run_analyze(path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr
    cursed = "ncclDevKernel_\x1b]0;gone\x07"
    table = run_analyze(write(tmp_path / "\x1b[31mred.json", kernel(0, 5), kernel(3, 4, cursed)))
    assert table.returncode == 0
    assert "\x1b" not in table.stdout + table.stderr


# The dashboard


def test_a_rank_that_no_dashboard_can_show_is_refused(tmp_path):
    path = write(tmp_path / "a.json", kernel(0, 10), rank=5000, world_size=6000)
    done = run_analyze(path)
    assert done.returncode == 2
    assert "rank 5000: only ranks below 4,096 can be shown, use --json" in done.stderr
    assert len(records_of(path)) == 2


def test_in_a_terminal_it_opens_the_dashboard_and_q_leaves(tmp_path):
    with Terminal("analyze", str(small_job(tmp_path))) as terminal:
        terminal.read_until("■ trace".encode())
        terminal.type("q")
        assert terminal.wait() == 0
        assert LEAVE_ALTERNATE_SCREEN in terminal.seen

"""``overlaptop analyze``: what it prints, what it draws, and how it refuses files that are no traces."""

import pytest

from tests.formats.traces import DATA, kernel, mark, small_job, write

from .running import LEAVE_ALTERNATE_SCREEN, Terminal, check_page, records, run_here


def run_analyze(*words):
    return run_here("analyze", *words)


@pytest.mark.parametrize(
    "line",
    [
        "ddp_25mb", "ddp_25mb --step 3", "ddp_25mb --hta", "ddp_25mb --step 3 --json", "ddp_gloo",
        "ddp_gloo --ascii", "ddp_gloo --json", "fsdp2_gloo --json", "fsdp2 --json --hta", "ddp_straggler",
        "fsdp2", "tp",
    ],
)  # fmt: skip
def test_recorded_jobs_are_printed_as_in_their_pages(line, monkeypatch):
    monkeypatch.chdir(DATA)
    done = run_analyze(*line.split())
    assert (done.returncode, done.stderr) == (0, "")
    check_page(f"analyze {line}", done.stdout)


def test_missing_ranks_are_reported_beside_the_records(tmp_path):
    write(tmp_path / "a.json", kernel(0, 10), rank=1, world_size=4)
    done = run_analyze(tmp_path, "--json")
    assert (done.returncode, done.stdout.count("\n")) == (0, 2)
    assert done.stderr == f"overlaptop: {tmp_path}: no trace of rank 0, 2-3 of 4\n"
    title, *_, heading = run_analyze(tmp_path / "a.json").stdout.partition("   overlap")[0].splitlines()
    assert (" · 1 of 4 ranks · " in title, heading) == (True, "whole trace, rank 1")


def test_a_step_may_be_written_as_screens_write_it(tmp_path):
    path = write(tmp_path / "a.json", mark(1284, 0, 50), kernel(0, 20), mark(1285, 50, 90), kernel(60, 20))
    assert "\nstep 1,284, " in run_analyze(path, "--step", "1,284").stdout


def test_a_hostile_name_does_not_reach_the_terminal(tmp_path):
    path = tmp_path / "\x1b[2J\n.json"
    path.write_text("{}")
    refused = run_analyze(path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    cursed = "ncclDevKernel_\x1b]0;gone\x07"
    shown = run_analyze(write(tmp_path / "\x1b[31mred.json", kernel(0, 5), kernel(3, 4, cursed)))
    assert shown.returncode == 0
    assert "\x1b" not in refused.stderr + shown.stdout + shown.stderr


def test_a_rank_that_no_dashboard_can_show_is_refused(tmp_path):
    path = write(tmp_path / "a.json", kernel(0, 10), rank=5000, world_size=6000)
    done = run_analyze(path)
    assert done.returncode == 2
    assert "rank 5000: only ranks below 4,096 can be shown, use --json" in done.stderr
    assert len(records(run_analyze(path, "--json").stdout)) == 2


def test_in_a_terminal_it_opens_the_dashboard_and_q_leaves(tmp_path):
    with Terminal("analyze", str(small_job(tmp_path))) as terminal:
        terminal.read_until("■ trace".encode())
        terminal.type("q")
        assert terminal.wait() == 0
        assert LEAVE_ALTERNATE_SCREEN in terminal.seen

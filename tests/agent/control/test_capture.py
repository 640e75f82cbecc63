"""Captures of real jobs: two ranks, a hub, and dashboards without a screen."""

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest

from overlaptop.agent.control import capture
from overlaptop.agent.control.capture import SETTLING_STEPS
from overlaptop.formats.job import analyze
from overlaptop.timeline.lanes import LaneRules


def read(path):
    with gzip.open(path) as file:
        return json.load(file)


def step_numbers(trace):
    names = [event["name"] for event in trace["traceEvents"] if event["name"].startswith("ProfilerStep#")]
    return [int(name.partition("#")[2]) for name in names]


def test_both_ranks_write_a_trace_of_the_same_steps(shared, dashboard, watch):
    """They count in traces and in no figure."""

    def both_measured(after):
        ranks = (dashboard.steps_of(rank).values() for rank in (0, 1))
        return all(any(step.measured and step.step > after for step in steps) for steps in ranks)

    other = watch()
    assert all(view.info.control_allowed for view in other.until_it_trains().ranks)
    dashboard.until(lambda _: both_measured(after=0))
    key = dashboard.ask(steps=4)
    made, seen = dashboard.outcome(key), other.outcome(key)
    assert (made.state, seen.state) == ("written", "written")
    assert (seen.by, seen.words) == (made.by, "capture (steps 4)")
    assert f"pid {os.getpid()}" in made.by
    said = f"{made.words}, asked by {made.by}"
    other.until(lambda snapshot: any(notice.text == said for notice in snapshot.notices))
    paths = [Path(rank.text) for rank in made.ranks]
    folder = shared.folder / capture.FOLDER / key
    assert paths == [folder / "rank0.json.gz", folder / "rank1.json.gz"]
    assert sorted(folder.iterdir()) == paths
    assert [each.stat().st_mode & 0o777 for each in (folder, folder.parent)] == [0o700, 0o700]
    assert (folder.parent / ".gitignore").read_text() == "*\n"
    numbers = [made.step + SETTLING_STEPS + number for number in range(4)]
    for rank, path in enumerate(paths):
        trace = read(path)
        assert step_numbers(trace) == numbers
        assert trace["distributedInfo"]["rank"] == rank
        assert trace["record_shapes"] == 1
        assert any(event["name"] == "gloo:all_reduce" for event in trace["traceEvents"])
        annotations = [
            (event["ts"], event["ts"] + event["dur"])
            for event in trace["traceEvents"]
            if event.get("cat") == "user_annotation" and event["name"].startswith(("Prof", "Optim"))
        ]
        for start_us, end_us in annotations:  # nested or apart, as viewers need them
            for other_start_us, other_end_us in annotations:
                assert not start_us < other_start_us < end_us < other_end_us
    dashboard.until(lambda _: both_measured(after=numbers[-1]))
    for rank in made.ranks:
        assert 0 <= made.live[rank.rank].overlap <= 1
        marked = [step for step in dashboard.steps_of(rank.rank).values() if step.captured]
        assert not any(step.measured or step.link_tx_bytes is not None for step in marked)
        assert {step.step for step in marked} >= set(range(made.step, numbers[-1] + 1))
    found = analyze(folder, LaneRules())
    assert [(each.info.rank, each.info.source) for each in found.ranks] == [(0, "host"), (1, "host")]
    for each in found.ranks:
        assert [step.step for step in each.steps] == numbers
        for step in each.steps:
            # Of the gradients, and of the word to stop, whose sum the script waits for.
            assert step.collectives == dashboard.steps_of(each.info.rank)[step.step].collectives >= 2
            assert 0 < step.compute_ns < step.step_ns
            assert 0 <= step.exposed_ns <= step.comm_ns < step.step_ns


@pytest.mark.parametrize("first", ["job", "capture"])
def test_jobs_own_profiler_goes_first(shared, dashboard, first):

    def files(name):
        return [shared.folder / name.format(rank) for rank in (0, 1)]

    def until_both_made(name):
        dashboard.until(lambda _: all(path.exists() for path in files(name)))

    for path in (*files("profiling{}"), *files("own{}.json")):
        path.unlink(missing_ok=True)
    profile = shared.folder / "profile"
    if first == "job":
        profile.touch()
        until_both_made("profiling{}")
        key = dashboard.ask()
        told = ("refused", capture.JOB_PROFILES)
    else:
        key = dashboard.ask(steps=100)
        dashboard.outcome(key, ["recording"])
        profile.touch()
        told = ("failed", "RuntimeError: the job's own torch.profiler began")
    made = dashboard.outcome(key)
    assert [(rank.state, rank.text) for rank in made.ranks] == [told] * 2
    until_both_made("profiling{}")
    dashboard.goes_on()
    profile.unlink()
    until_both_made("own{}.json")
    dashboard.goes_on()
    assert not (shared.folder / capture.FOLDER / key).exists()
    assert len(json.loads((shared.folder / "own0.json").read_text())["traceEvents"]) > 100
    assert dashboard.outcome(dashboard.ask()).state == "written"


KEY = "20260101-000000-abcdef"
WHOLE = '{"traceEvents": []}\n'


@pytest.fixture
def temporary(tmp_path_factory, monkeypatch):
    path = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(capture, "temporary_folder", lambda: path)
    return path / f"{capture.FOLDER}-{os.geteuid()}"


def write(cwd, notices=None, text=WHOLE):
    """Write a trace of this text as the agent of rank 3 does; returns its path."""

    def save(path):
        if text is not None:
            Path(path).write_text(text)

    return capture.write_trace(save, cwd, KEY, 3, lambda _level, said: notices.append(said))


def test_trace_goes_to_the_temporary_folder_if_it_has_to(tmp_path, temporary):
    notices = []
    assert write(Path("/proc"), notices) == temporary / KEY / "rank3.json.gz"
    assert [each.stat().st_mode & 0o777 for each in (temporary, temporary / KEY)] == [0o700, 0o700]
    assert notices == [
        f"traces are written to {temporary}: /proc/{capture.FOLDER}: No such file or directory"
    ]
    shutil.rmtree(temporary)
    temporary.symlink_to(tmp_path)
    with pytest.raises(OSError, match=rf"^/proc/.*; {temporary} is a symbolic link$"):
        write(Path("/proc"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ['{"traceEvents": [{"ph"', "", None, WHOLE])
def test_trace_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch, text):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(capture.shutil, "copyfileobj", full)
    words = "No space left" if text == WHOLE else r"torch could not write its trace to .* MiB free there"
    with pytest.raises(OSError, match=words):
        write(tmp_path, text=text)
    assert list((tmp_path / capture.FOLDER / KEY).iterdir()) == []

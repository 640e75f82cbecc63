"""The LocalLauncher: what it runs, what it ends, what it leaves alone, and that nothing of it stays.

Its jobs are short scripts without torch, held by the real supervisor.
"""

import importlib.util
import re
import shlex

import pytest

from overlaptop.launch import launcher as launching
from overlaptop.launch.local import LocalLauncher
from overlaptop.launch.request import LaunchError, LaunchPhase, LaunchRequest
from overlaptop.workloads.catalog import WORKLOADS
from tests.processes import eventually

from .jobs import LOG, Alone, launcher_in


@pytest.fixture
def launcher(tmp_path, traces):
    made = launcher_in(tmp_path)
    yield made
    made.close()
    assert traces.alive() == []


@pytest.fixture
def held(launcher, monkeypatch):
    """``held()``: what runs now is not ended before the function is called that this returns."""

    def hold():
        end = launcher.job.end
        monkeypatch.setattr(launcher.job, "end", lambda: None)
        return end

    return hold


@pytest.fixture
def written(tmp_path):
    """What the jobs have written so far."""
    log = tmp_path / LOG
    return lambda: log.read_text().splitlines() if log.exists() else []


def start(launcher, name, *options):
    launcher.start(launcher.plan(LaunchRequest(name, options)))


def phase_is(launcher, phase):
    return eventually(lambda: launcher.status().phase is phase)


def test_a_plan_says_what_would_be_run_and_on_what():
    plan = LocalLauncher().plan(LaunchRequest("ddp", ("--bucket-cap-mb", "50", "--device", "cpu"), 3))
    assert plan.fault == ""
    assert plan.command_line.endswith("ddp.py --bucket-cap-mb 50 --device cpu")
    assert "torchrun --nproc-per-node=3 -m -- overlaptop.agent " in plan.command_line
    assert (plan.place, plan.nproc, plan.defaults) == ("the CPU, 3 processes, gloo", 3, "cpu")
    assert plan.given == {"bucket_cap_mb": 50.0, "device": "cpu"}
    plans = [LocalLauncher().plan(LaunchRequest(workload.name)) for workload in WORKLOADS]
    assert {plan.request.workload for plan in plans if plan.fault} <= {"te_layernorm_mlp"}


@pytest.mark.parametrize(
    ("words", "ranks", "fault"),
    [
        ("ddp --bucket-cap x", 2, "argument --bucket-cap-mb: must be a positive number, not 'x'"),
        ("ddp --losses /nonesuch/file", 2, "argument --losses: no file can be written at '/nonesuch/file'"),
        ("nonsense", 2, "no workload is called 'nonsense'; there are: ddp, fsdp, "),
        ("te_layernorm_mlp", 2, "TransformerEngine is not installed here"),
        ("tensor_parallel --replicas 5", 2, "--replicas: 2 ranks do not make 5 groups"),
        ("tensor_parallel --tokens 3", 2, "--tokens: must be a multiple of 4"),
        ("pipeline --layers 5", 2, "--layers: must be a multiple of 2, the stages"),
        ("pipeline --microbatches 2", 4, "--microbatches: must be 4 or more, one for each stage"),
        ("faults --workload none", 2, "--workload: there is no workload and no script called 'none'"),
        ("faults --workload faults", 2, "--workload: faults runs any workload but itself"),
        ("faults --late-rank 9", 2, "--late-rank: must be below 2, the number of ranks"),
    ],
)
def test_what_the_workload_refuses_is_not_started(words, ranks, fault, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "transformer_engine" else find_spec(name)
    )
    name, *options = shlex.split(words)
    launcher = LocalLauncher()
    plan = launcher.plan(LaunchRequest(name, (*options, "--device", "cpu"), ranks))
    assert plan.fault.startswith(fault)
    assert "\n" not in plan.fault
    with pytest.raises(ValueError, match=re.escape(fault)):
        launcher.start(plan)
    assert launcher.status().phase is LaunchPhase.NOTHING


def test_what_the_machine_has_not_is_refused_in_the_plan(monkeypatch):
    on_gpus, none = LaunchRequest("ddp", ("--device", "cuda"), 3), "--device cuda: there is no GPU"
    for gpus, defaults, fault in ((4, "cuda", ""), (2, "shared", ""), (0, "cpu", none)):
        monkeypatch.setattr(launching, "usable_gpus", lambda gpus=gpus: gpus)
        plan = LocalLauncher().plan(on_gpus)
        assert (plan.defaults, plan.fault) == (defaults, fault)
    monkeypatch.undo()
    monkeypatch.setattr(launching.importlib.util, "find_spec", lambda name: None)
    launching.usable_gpus.cache_clear()
    assert "torch is not installed here" in LocalLauncher().plan(LaunchRequest("ddp")).fault


def test_request_is_parsed_as_a_shell_would():
    request = LaunchRequest.parse("ddp", "--losses 'my losses'  --layers 8", " 4 ")
    assert request == LaunchRequest("ddp", ("--losses", "my losses", "--layers", "8"), 4)
    assert request.label == "ddp --losses 'my losses' --layers 8 (4 processes)"
    for nproc in ("0", "1" + 12 * "0"):
        with pytest.raises(LaunchError, match="from 1 to"):
            LaunchRequest.parse("ddp", "", nproc)


def test_newest_request_runs_once_the_previous_job_is_gone(launcher, tmp_path, held, written, traces):
    with Alone(tmp_path / "other.py", (), launching.JobPlacement(1, "gloo")) as theirs:
        theirs.start()
        eventually(lambda: written() == ["other up"])
        start(launcher, "other")
        eventually(lambda: written()[1:] == ["other up"])
        first, may_end = launcher.job, held()
        for size in ("2", "3"):
            start(launcher, "steady", "--size", size)
            status = launcher.status()  # at once, whatever the job takes to end
            assert (status.phase, status.ending) == (LaunchPhase.ENDING, "other")
            assert status.label == f"steady --size {size}"
            assert launcher.running == "other"
        may_end()
        assert phase_is(launcher, LaunchPhase.RUNNING)
        assert first.poll() is not None
        eventually(lambda: written()[2:] == ["steady up --size 3"])
        assert (launcher.running, launcher.status().ending) == ("steady --size 3", "")
        assert len(traces.alive()) == 4  # each job and its supervisor
        launcher.close()
        assert theirs.poll() is None


@pytest.mark.parametrize(
    ("name", "how", "last"),
    [
        ("broken", "exit status 1", "ValueError: too large"),
        ("late", "killed by SIGKILL", None),
        ("short", "exit status 0", None),
    ],
)
def test_job_that_ends_says_how_and_a_failure_its_last_lines(launcher, name, how, last):
    start(launcher, name)
    assert phase_is(launcher, LaunchPhase.OVER)
    status = launcher.status()
    assert (status.failed, status.how, status.label) == (name != "short", how, name)
    assert launcher.running == ""
    assert (list(launcher.output())[-1:] or [None]) == [last]


def test_stopped_job_leaves_nothing(launcher, traces):
    start(launcher, "steady")
    launcher.stop()
    status = launcher.status()
    assert (status.phase, status.ending) == (LaunchPhase.ENDING, "steady")
    assert phase_is(launcher, LaunchPhase.NOTHING)
    assert traces.alive() == []


def test_closing_in_the_middle_of_a_switch_starts_nothing(launcher, written, traces):
    start(launcher, "other")
    eventually(lambda: written() == ["other up"])
    start(launcher, "steady")
    launcher.close()
    assert launcher.status().phase is LaunchPhase.NOTHING
    assert traces.alive() == []
    assert written() == ["other up"]

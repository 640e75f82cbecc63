"""The launcher: what it runs, on what, what it reports, and that nothing of it stays."""

import shlex

import pytest
from torch.distributed.run import get_args_parser

from overlaptop.launch import launcher
from overlaptop.launch.launcher import JobPlacement, Launcher, place
from tests.processes import eventually

TWO_ON_GLOO = JobPlacement(2, "gloo")


class Ended(Launcher):
    """A job with this exit status and output."""

    def __init__(self, status, output):
        super().__init__("train.py", (), TWO_ON_GLOO)
        self.poll, self.output = lambda: status, lambda: output


@pytest.mark.parametrize(
    ("variable", "count"), [(None, 4), ("", 0), ("0,3", 2), ("1,-1,2", 1), ("GPU-8,MIG-4", 2)]
)
def test_cuda_visible_devices_limits_the_gpus(monkeypatch, variable, count):
    monkeypatch.setattr(launcher, "_installed_gpus", lambda: 4)
    monkeypatch.setattr(launcher, "_torch_has_cuda", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert launcher.usable_gpus.__wrapped__() == count


@pytest.mark.parametrize(
    ("gpus", "nproc", "device", "expected", "unshared"),
    [
        (0, None, "auto", JobPlacement(2, "gloo"), JobPlacement(2, "gloo")),
        (8, None, "auto", JobPlacement(8, "nccl"), JobPlacement(8, "nccl")),
        (1, None, "auto", JobPlacement(2, "nccl", 1), JobPlacement(1, "nccl")),
        (1, 1, "auto", JobPlacement(1, "nccl"), JobPlacement(1, "nccl")),
        (2, 4, "cuda", JobPlacement(4, "nccl", 2), JobPlacement(4, "gloo")),
        (4, 2, "cpu", JobPlacement(2, "gloo"), JobPlacement(2, "gloo")),
    ],
)
def test_ranks_go_to_gpus_share_them_or_go_to_the_cpu(monkeypatch, gpus, nproc, device, expected, unshared):
    monkeypatch.setattr(launcher, "usable_gpus", lambda: gpus)
    assert (place(nproc, device), place(nproc, device, may_share=False)) == (expected, unshared)


@pytest.mark.parametrize(
    ("status", "output", "words"),
    [
        (137, [], "killed by SIGKILL"),
        (1, ["failed (exitcode: -9) local_rank: 0", "failed (exitcode: 2)"], "killed by SIGKILL"),
        (255, [], "exit status 255"),
    ],
)
def test_how_a_job_ended_is_how_its_first_rank_did(status, output, words):
    assert Ended(status, output).how_it_ended == words


def test_torchrun_takes_no_option_of_the_script(monkeypatch):
    monkeypatch.setattr(launcher, "usable_gpus", lambda: 4)
    words = ["--m", "256", "--n", "512", "--numa", "bind"]
    job = Launcher("my train.py", words, TWO_ON_GLOO, agent_options=["--numa", "bind"])
    hides_gpus, torchrun, *typed = shlex.split(job.command_line)
    assert (hides_gpus, torchrun) == ("CUDA_VISIBLE_DEVICES=", "torchrun")
    for command in (job.command[job.command.index("torch.distributed.run") + 1 :], typed):
        parsed = get_args_parser().parse_args(command)
        assert (parsed.nproc_per_node, parsed.module) == ("2", True)
        assert parsed.training_script == "overlaptop.agent"
        assert parsed.training_script_args == ["--numa", "bind", "my train.py", *words]


def test_of_a_failed_jobs_output_one_ranks_own_words_are_kept():
    output = [
        "",
        *["loading"] * 2,
        "[rank1]: Traceback (most recent call last):",
        "[rank0]: Traceback (most recent call last):",
        "[rank1]: ValueError: too large",
        "[rank0]: ValueError: too large",
        "E1121 00:07:09.875000 3668 lib/torch/distributed/elastic/api.py:1002] failed (exitcode: 1)",
        "Traceback (most recent call last):",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    ]
    own = ["loading", "Traceback (most recent call last):", "ValueError: too large"]
    assert Ended(1, output).complaint() == own
    assert Ended(1, output).complaint(max_lines=1) == ["ValueError: too large"]


def test_a_job_whose_options_are_refused_tells_its_reason(tmp_path, traces, monkeypatch):
    """Started in a folder whose modules nobody may take for the standard library's."""
    here = tmp_path / "here"
    here.mkdir()
    for name in ("secrets", "token", "random", "logging", "signal", "socket", "struct", "subprocess"):
        (here / f"{name}.py").write_text(f"raise SystemExit('imported {name}')")
    monkeypatch.chdir(here)
    (tmp_path / "own.py").write_text("name = 'job.py'")
    path = tmp_path / "job.py"
    path.write_text("import argparse, own; argparse.ArgumentParser(prog=own.name).parse_args()")
    with Launcher(path, ["--nonsense"], TWO_ON_GLOO) as job:
        job.start()
        eventually(lambda: job.poll() is not None)
        assert (job.poll(), job.how_it_ended, job.usage_error) == (1, "exit status 2", True)
        assert job.complaint()[-1] == "job.py: error: unrecognized arguments: --nonsense"
    assert traces.alive() == []

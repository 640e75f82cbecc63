"""A job that hangs on NCCL says for which rank, as torch's flight recorder has it; then all is well."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from overlaptop.fleet.hang import Blame

from .test_hangs import TRAINING, is_well, until_hung

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

BEGIN = 'dist.init_process_group("gloo")\n    rank = dist.get_rank()\n'
ON_GPU = """
    import os

    from overlaptop.workloads.shared_gpu import prepare_nccl

    rank, gpus = int(os.environ["RANK"]), torch.cuda.device_count()
    if gpus < int(os.environ["WORLD_SIZE"]):
        prepare_nccl(rank)
    torch.cuda.set_device(rank % gpus)
    torch.set_default_device(f"cuda:{rank % gpus}")
    dist.init_process_group("nccl")
"""


@pytest.fixture
def job(start):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    assert BEGIN in TRAINING
    return start(training=TRAINING.replace(BEGIN, ON_GPU.lstrip()), warm=None)


def test_a_stopped_rank_has_not_entered_and_after_it_goes_on_all_is_well(job, watch):
    watching = watch()
    pid = watching.until_it_trains().ranks[1].info.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        until_hung(watching, Blame.NOT_ENTERED, (1,), (0,))
    finally:
        os.kill(pid, signal.SIGCONT)
    watching.until(is_well)
    watching.goes_on()
    assert watching.end(job) == 0


@pytest.mark.parametrize("name", ["sleep", "leave_out"])
def test_a_rank_that_stands_in_python_is_named_with_its_line(job, watch, name):
    watching = watch()
    watching.until_it_trains()
    (job.folder / name).touch()
    found = until_hung(watching, Blame.NOT_ENTERED, (1,), (0,))
    assert found.at.startswith("train.py:")
    assert found.at.endswith(" wait_for_end_of")
    assert found.bytes == (1 << 20 if name == "leave_out" else 4)
    (job.folder / name).unlink()
    watching.until(is_well)
    watching.goes_on()
    assert watching.end(job) == 0


def test_a_rank_that_calls_another_operation_is_told(job, watch):
    watching = watch()
    watching.until_it_trains()
    (job.folder / "other").touch()
    found = until_hung(watching, Blame.DIFFERS, (1,), (0,))
    assert found.op != found.other

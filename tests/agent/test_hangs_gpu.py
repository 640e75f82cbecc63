"""A job that hangs on NCCL says for which rank, as torch's flight recorder has it; then all is well."""

import pytest
import torch

from .test_hangs import TRAINING, call_another_operation, stand_in_python, stop_and_go_on

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

BEGIN = 'dist.init_process_group("gloo")\n    rank = dist.get_rank()\n'
ON_GPU = """
    from overlaptop.workloads.shared_gpu import own_gpu

    gpu = own_gpu(torch.cuda.device_count())
    torch.cuda.set_device(gpu)
    torch.set_default_device(f"cuda:{gpu}")
    dist.init_process_group("nccl")
    rank = dist.get_rank()
"""


@pytest.fixture
def job(start):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    assert BEGIN in TRAINING
    return start(training=TRAINING.replace(BEGIN, ON_GPU.lstrip()), warm=None)


def test_a_stopped_rank_has_not_entered_and_after_it_goes_on_all_is_well(job, watch):
    watching = watch()
    stop_and_go_on(watching, stopped=1, ranks=2)
    assert watching.end(job) == 0


@pytest.mark.parametrize(("name", "size_bytes"), [("sleep", 4), ("leave_out", 1 << 20)])
def test_a_rank_that_stands_in_python_is_named_with_its_line(job, watch, name, size_bytes):
    watching = watch()
    watching.until_it_trains()
    stand_in_python(job, watching, name, size_bytes)
    assert watching.end(job) == 0


def test_a_rank_that_calls_another_operation_is_told(job, watch):
    watching = watch()
    watching.until_it_trains()
    found = call_another_operation(job, watching)
    assert found.op != found.other

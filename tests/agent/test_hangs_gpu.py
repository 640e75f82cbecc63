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


def test_a_hang_on_nccl_names_its_rank_and_afterwards_all_is_well(start, watch):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    assert BEGIN in TRAINING
    job, watching = start(training=TRAINING.replace(BEGIN, ON_GPU.lstrip()), warm=None), watch()
    stop_and_go_on(watching, stopped=1, ranks=2)
    stand_in_python(job, watching, "sleep", 4)
    stand_in_python(job, watching, "leave_out", 1 << 20)
    found = call_another_operation(job, watching)
    assert found.op != found.other

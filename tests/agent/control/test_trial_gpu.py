"""A GPU spins for as long as a trial's delay says, whatever its clock."""

import pytest
import torch

from overlaptop.agent.control.delay import GpuDelay

pytestmark = pytest.mark.gpu

DELAY_NS = 2_000_000
STEPS = 30


def delayed(delay_ns):
    """The mean of a delay in steps that compute."""
    spin = GpuDelay(delay_ns)
    matrix = torch.ones(2048, 2048, device="cuda")
    for _ in range(STEPS):
        spin()
        matrix = matrix @ matrix / 2048
        matrix.sum().item()  # the host does not run ahead of all spins
    torch.cuda.synchronize()
    spin.settle()
    return spin.mean_ns


def test_gpu_is_delayed_by_what_was_asked_once_its_clock_is_known():
    delayed(DELAY_NS)
    for delay_ns in (DELAY_NS, DELAY_NS // 10):
        assert delayed(delay_ns) == pytest.approx(delay_ns, rel=0.1)

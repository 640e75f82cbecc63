"""Every mode of the workloads on NCCL, two ranks: on GPUs of their own, or sharing the only one."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.workloads.test_modes import (
    MODES,
    OF_OPTIONS,
    RANKS,
    STEPS,
    check_collectives,
    options_of,
    run_all,
)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def ran(warm, tmp_path_factory):
    """The job, and each mode's figures."""
    folder = tmp_path_factory.mktemp("modes")
    done = run_all(warm, folder, "--device cuda --dtype float32", ("--every", "1"))
    return done, [
        [float(line) for line in (folder / str(at)).read_text().split()] for at in range(len(MODES))
    ]


def test_all_modes_of_a_workload_compute_the_same(ran):
    _, figures = ran
    alike = defaultdict(list)
    for mode, of_mode in zip(MODES, figures, strict=True):
        if mode.reference in OF_OPTIONS:
            expected = OF_OPTIONS[mode.reference](options_of(mode.words), STEPS, RANKS, "cuda")
            assert of_mode == pytest.approx(expected, rel=1e-3), mode.words
        alike[mode.reference].append((mode.words, of_mode))
    for reference in alike.keys() - OF_OPTIONS.keys():
        (_, first), *others = alike[reference]
        for words, of_mode in others:
            assert of_mode == pytest.approx(first, rel=1e-3), words


def test_the_agent_sees_all_collectives_of_each_on_all_ranks(ran):
    check_collectives(ran[0], by_kernels=True)


def test_ranks_that_share_a_gpu_say_so(ran):
    import torch

    shared = torch.cuda.device_count() < len(ran[0].outs)
    assert ran[0].outs[0].startswith("2 ranks share 1 GPU: ") == shared

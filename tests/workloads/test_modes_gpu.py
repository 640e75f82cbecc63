"""Every mode of the workloads on NCCL, two ranks: on GPUs of their own, or sharing the only one."""

import pytest

from overlaptop.workloads.collective_matmul import USER_BUFFERS_ENVIRONMENT as ENVIRONMENT
from tests.workloads.test_modes import (
    GEMM,
    MODES,
    RANKS,
    TENSOR,
    Mode,
    check_collectives,
    check_figures,
    run_modes,
)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]


def test_modes_compute_the_same_and_the_agent_sees_all_collectives(warm, tmp_path):
    import torch

    done = run_modes(warm, tmp_path, MODES, "--device cuda --dtype float32", options=("--every", "1"))
    check_figures(tmp_path, MODES, rel=1e-3)
    check_collectives(done, by_kernels=True)
    shared = torch.cuda.device_count() < RANKS
    assert done.outs[0].startswith("2 ranks share 1 GPU: ") == shared


# User buffers hold chunks of rows: these products are as large as they have to be.
LAYERS = "--layers 2 --width 1024 --tokens 1024 --dtype bfloat16"
TE_GEMM = "1024 2048 1024 --dtype bfloat16"


MODES_OF_A_GPU_EACH = {
    "torch": [
        f"tensor_parallel --mode sync {TENSOR} --dtype float32",
        f"tensor_parallel --mode symmetric-memory {TENSOR} --dtype float32",
        f"gemm_overlap --method torch {GEMM} --dtype float32",
        f"gemm_overlap --method symmetric-memory {GEMM} --dtype float32",
    ],
    "transformer_engine": [
        f"gemm_overlap --method torch {TE_GEMM}",
        f"gemm_overlap --method transformer-engine {TE_GEMM}",
        f"te_layernorm_mlp --no-overlap {LAYERS}",
        f"te_layernorm_mlp --overlap {LAYERS}",
    ],
}


@pytest.mark.parametrize("package", MODES_OF_A_GPU_EACH)
def test_modes_with_a_gpu_for_each_rank_compute_the_same(warm, tmp_path, monkeypatch, package):
    import torch

    pytest.importorskip(package)
    if torch.cuda.device_count() < RANKS:
        pytest.skip(f"needs {RANKS} GPUs, one for each rank")
    for name, value in ENVIRONMENT.items() if package == "transformer_engine" else ():
        monkeypatch.setenv(name, value)
    modes = [
        Mode(words, words.partition(" ")[0].removesuffix("_overlap"), 0)
        for words in MODES_OF_A_GPU_EACH[package]
    ]
    run_modes(warm, tmp_path, modes, "--device cuda")
    check_figures(tmp_path, modes, rel=1e-3 if package == "torch" else 1e-2)

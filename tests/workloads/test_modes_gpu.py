"""Every mode of the workloads on NCCL, two ranks: on GPUs of their own, or sharing the only one."""

from collections import defaultdict

import pytest

from overlaptop.workloads.collective_matmul import USER_BUFFERS_ENVIRONMENT as ENVIRONMENT
from tests.workloads.test_modes import (
    GEMM,
    MODES,
    OF_OPTIONS,
    RANKS,
    STEPS,
    TENSOR,
    check_collectives,
    figures_of,
    options_of,
    results,
    run_all,
    run_in_turn,
)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def ran(warm, tmp_path_factory):
    """The job, and each mode's figures."""
    folder = tmp_path_factory.mktemp("modes")
    done = run_all(warm, folder, "--device cuda --dtype float32", ("--every", "1"))
    return done, [figures_of(folder, at) for at in range(len(MODES))]


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


# User buffers hold chunks of rows: these products are as large as they have to be.
LAYERS = "--layers 2 --width 1024 --tokens 1024 --dtype bfloat16"
TE_GEMM = "1024 2048 1024 --dtype bfloat16"


@pytest.mark.parametrize(
    ("package", "environment", "runs", "rel"),
    [
        pytest.param(
            "torch", {},
            {
                f"tensor_parallel --mode symmetric-memory {TENSOR}": "tensor",
                f"gemm_overlap --method symmetric-memory {GEMM}": "gemm",
            },
            1e-3, id="symmetric memory",
        ),
        pytest.param(
            "transformer_engine", ENVIRONMENT,
            {f"gemm_overlap --method transformer-engine {TE_GEMM}": "gemm"},
            1e-2, id="TransformerEngine's linear layers",
        ),
        # The first run, without overlap or without the package, is the reference.
        pytest.param(
            "transformer_engine", ENVIRONMENT,
            {f"te_layernorm_mlp {overlap} {LAYERS}": "first" for overlap in ("--no-overlap", "--overlap")},
            1e-2, id="TransformerEngine's LayerNormMLP",
        ),
    ],
)  # fmt: skip
def test_modes_with_a_gpu_for_each_rank_compute_the_reference(
    warm, tmp_path, monkeypatch, package, environment, runs, rel
):
    import torch

    pytest.importorskip(package)
    if torch.cuda.device_count() < RANKS:
        pytest.skip(f"needs {RANKS} GPUs, one for each rank")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    words = [
        f"{run} --device cuda {'' if '--dtype' in run else '--dtype float32'} {results(reference, at)}"
        for at, (run, reference) in enumerate(runs.items())
    ]
    run_in_turn(warm, tmp_path, words, RANKS)
    for at, (run, reference) in enumerate(runs.items()):
        expected = figures_of(tmp_path, 0)
        if reference in OF_OPTIONS:
            expected = OF_OPTIONS[reference](options_of(run), STEPS, RANKS, "cuda")
        assert len(expected) == STEPS
        assert figures_of(tmp_path, at) == pytest.approx(expected, rel=rel), run

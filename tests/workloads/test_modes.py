"""Every mode of the workloads, in one job of two ranks: they compute the same, and the agent sees them."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.agent.commanded import socket_directory
from tests.agent.conftest import run_job

IN_TURN = Path(__file__).resolve().parents[2] / "benchmarks" / "jobs" / "in_turn.py"
PATIENCE_S = 20.0
SCRIPT = f"""
import contextlib, pathlib, runpy, time

def threads_of_gloo():
    found = 0
    for name in pathlib.Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has ended since
            found += "gloo" in name.read_text()
    return found

runpy.run_path({str(IN_TURN)!r}, run_name="__main__")
# A thread that was joined is listed until the kernel has taken it apart.
give_up_s = time.monotonic() + {PATIENCE_S}
while threads_of_gloo() and time.monotonic() < give_up_s:
    time.sleep(0.01)
print("gloo's threads:", threads_of_gloo())
"""
STEPS = 4
RANKS = 2
GPT = "--layers 2 --width 64 --seq 16 --batch 2 --bucket-cap-mb 0.05"
FSDP = "--layers 2 --width 64 --seq 16 --batch 2"
MATMUL = "--matrix 32 --products 2 --size-mb 0.01"
DOUBLE = "--layers 2 --width 32 --batch 8 --loader-ms 1"
SMALL = "--messages 5 --kb 1 --matrix 16"
TENSOR = "--layers 2 --width 16 --tokens 16 --requests 8"
PIPELINE = "--layers 8 --width 8 --batch 8 --microbatches 4"
EXPERTS = "--layers 2 --width 16 --tokens 16 --skew 2.5"
GEMM = "16 32 8"
PARAMETERS, BUCKETS, DDP_BUCKETS = 29, 9, 8
"""Of that GPT; DDP's own once it has made them anew, in its second step."""


@dataclass(frozen=True)
class Mode:
    """One run."""

    words: str
    alike: str  # Runs with the same word here compute the same
    collectives: int  # In a step
    fewer_kernels: bool = False
    """NCCL makes fewer kernels of them: of several sends and receives at once one, in a group of one rank
    none."""
    no_kernels: bool = False  # They go through gloo, on GPUs too

    @property
    def results(self) -> str:
        """The option that names a file for its figures."""
        return "--figures" if self.alike in ("matmul", "small", "gemm") else "--losses"


MODES = [
    Mode(f"ddp --mode bucketed {GPT}", "gpt", DDP_BUCKETS),
    Mode(f"ddp --mode bucketed-hooks {GPT}", "gpt", BUCKETS),
    Mode(f"ddp --mode after-backward {GPT}", "gpt", BUCKETS),
    Mode(f"ddp --mode per-parameter {GPT}", "gpt", PARAMETERS),
    Mode(f"ddp --mode bucketed --accumulation 2 {GPT}", "accumulated", DDP_BUCKETS),
    Mode(f"ddp --mode bucketed-hooks --accumulation 2 {GPT}", "accumulated", BUCKETS),
    # A root and two blocks are gathered and reduced; in backward the blocks are gathered again.
    Mode(f"fsdp {FSDP}", "gpt", 3 + 2 + 3),
    Mode(f"fsdp --prefetch-forward 2 --prefetch-backward 2 {FSDP}", "gpt", 3 + 2 + 3),
    Mode(f"fsdp --prefetch-forward 2 --limit-gathers 1 {FSDP}", "gpt", 3 + 2 + 3),
    Mode(f"fsdp --no-reshard-after-forward {FSDP}", "gpt", 3 + 3),
    *(
        Mode(f"zero --mode {mode} --stage {stage} {GPT}", "gpt", 2 * BUCKETS)
        for mode in ("overlapped", "sequential")
        for stage in (1, 2)
    ),
    *(Mode(f"allreduce_matmul --mode {mode} {MATMUL}", "matmul", 1) for mode in ("async", "sequential")),
    # Two barriers: the copies between ranks are no collectives.
    Mode(f"allreduce_matmul --mode host-staged {MATMUL}", "matmul", 2, no_kernels=True),
    *(
        Mode(f"double_buffer --mode {mode} {DOUBLE}", "delayed", 1)
        for mode in ("double-buffered", "slow-loader", "sequential")
    ),
    *(
        Mode(f"small_messages --send separate --wait {wait} {SMALL}", "small", 5)
        for wait in ("at-once", "late", "together", "polling")
    ),
    Mode(f"small_messages --send coalesced --wait together {SMALL}", "small", 1),
    Mode(f"small_messages --send flat --wait polling {SMALL}", "small", 1),
    # Two layers, each way a gather and a sum. Of two halves each has its own; a ring of two sends a chunk
    # and receives one.
    Mode(f"tensor_parallel --mode sync {TENSOR}", "tensor", 8),
    Mode(f"tensor_parallel --mode async {TENSOR}", "tensor", 16),
    Mode(f"tensor_parallel --mode ring {TENSOR}", "tensor", 16, fewer_kernels=True),
    Mode(f"tensor_parallel --mode sync --no-sequence-parallel {TENSOR}", "all tokens", 4),
    Mode(f"tensor_parallel --mode async --no-sequence-parallel {TENSOR}", "all tokens", 8),
    Mode(f"tensor_parallel --mode sync --decode {TENSOR}", "decode", 4),
    Mode(f"tensor_parallel --mode async --decode {TENSOR}", "decode", 8),
    # And the mean of four gradients.
    Mode(f"tensor_parallel --mode sync --replicas 2 {TENSOR}", "replicas", 8 + 4, fewer_kernels=True),
    Mode(f"tensor_parallel --mode async --replicas 2 {TENSOR}", "replicas", 16 + 4, fewer_kernels=True),
    # Four micro-batches to the next rank, their gradients back, and a broadcast of the loss. With two
    # stages a rank, there and back and there again.
    *(
        Mode(f"pipeline --mode {mode} {PIPELINE}", "pipeline", 4 + 4 + 1)
        for mode in ("blocking", "hand-written", "gpipe")
    ),
    Mode(f"pipeline --mode 1f1b {PIPELINE}", "pipeline", 4 + 4 + 1, fewer_kernels=True),
    Mode(f"pipeline --mode interleaved {PIPELINE}", "pipeline", 12 + 12 + 1),
    Mode(f"pipeline --mode zero-bubble {PIPELINE}", "pipeline", 12 + 12 + 1),
    # In each of two layers counts, there and back; in backward the same way, but not to the tokens that the
    # first one began with; four gradients.
    *(
        Mode(f"expert_parallel --mode {mode} {EXPERTS}", "experts", 2 * 3 + 3 + 4)
        for mode in ("sync", "overlapped")
    ),
    Mode(f"gemm_overlap --method torch {GEMM}", "gemm", 2),
    Mode(f"gemm_overlap --method ring {GEMM}", "gemm", 2 * 2, fewer_kernels=True),
]
OF_FOUR_RANKS = ("tensor", "replicas", "pipeline", "experts", "gemm")
"""A ring of two has one neighbour, a pipeline of two no stage in the middle, and of two replicas on two
ranks each rank has all the weights."""
TO_THE_LAST_BIT = ("gpt", "accumulated", "delayed")  # Where two ranks train on a CPU
REFUSED = "gemm_overlap 17 32 8"  # It makes no step


def run_in_turn(warm, folder, runs, ranks, options=()):
    """One job of all these runs. ``options``: the agent's."""
    with socket_directory():
        arguments = (f"--steps {STEPS}", *runs)
        done = run_job(warm, folder, SCRIPT, options=options, arguments=arguments, nproc=ranks, forked=True)
    assert done.codes == [0] * ranks, done.errs
    return done


def run_modes(warm, folder, modes, device, ranks=RANKS, options=()):
    """One job of all these modes, whose figures are compared by `check_figures`."""
    runs = [f"{mode.words} {device} {mode.results} {at}" for at, mode in enumerate(modes)]
    return run_in_turn(warm, folder, [f"{REFUSED} {device}", *runs], ranks, options)


def figures_of(folder, at):
    """What the run of that number wrote."""
    return [float(line) for line in (folder / str(at)).read_text().split()]


def check_figures(folder, modes, rel, exact=()):
    """Modes that are alike compute the same: each step within ``rel``, and those of ``exact`` precisely."""
    alike = defaultdict(list)
    for at, mode in enumerate(modes):
        alike[mode.alike].append((mode.words, figures_of(folder, at)))
    for kind, ((_, first), *others) in alike.items():
        assert len(first) == STEPS
        assert others
        for words, figures in others:
            assert figures == pytest.approx(first, rel=rel), words
            assert figures == first or kind not in exact, words


def check_collectives(done, *, by_kernels=False):
    for rank in range(RANKS):
        seen = {totals.step: totals.collectives for totals in done.steps(rank)}
        # A run's step after its last boundary is also the start of the next one.
        last = {mode.words: seen[at * STEPS + STEPS - 2] for at, mode in enumerate(MODES)}
        fewer = {mode.words for mode in MODES if by_kernels and mode.fewer_kernels}
        expected = {mode.words: 0 if by_kernels and mode.no_kernels else mode.collectives for mode in MODES}
        # While the kernels source checks itself, the first mode is over.
        left_out = dict.fromkeys([*fewer, MODES[0].words] if by_kernels else [])
        assert {**last, **left_out} == {**expected, **left_out}
        assert all(0 < last[words] < expected[words] for words in fewer)
        assert not [notice for notice in done.notices(rank) if notice.level == "error"]


def test_modes_of_a_workload_compute_the_same_and_are_seen(warm, tmp_path):
    """In one job, and so in one test: torch, the ranks and their group are there once."""
    done = run_modes(warm, tmp_path, MODES, "--device cpu")
    check_figures(tmp_path, MODES, 1e-6, TO_THE_LAST_BIT)
    check_collectives(done)

    # A mode that cannot run here is one line, and the others go on.
    (outs, _) = done.outs
    ends = [line.split(" ", 3)[2:] for line in outs.splitlines() if line.startswith("run over ")]
    (step, refusal), *others = ends
    assert (step, refusal) == ("-1", "M: must be a multiple of 2, the ranks")
    # The first step begins at the end of the first iteration.
    assert others == [[str(STEPS * at - 1), ""] for at in range(1, len(MODES) + 1)]

    # A thread of gloo's that outlives the process group could abort the process at exit, in one run of ten.
    assert [out.splitlines()[-1] for out in done.outs] == ["gloo's threads: 0"] * RANKS


def test_modes_on_four_ranks_compute_the_same(warm, tmp_path):
    modes = [mode for mode in MODES if mode.alike in OF_FOUR_RANKS]
    run_modes(warm, tmp_path, modes, "--device cpu", ranks=4)
    check_figures(tmp_path, modes, rel=2e-6)

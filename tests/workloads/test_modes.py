"""Every mode of the workloads, in one job of two ranks: what it computes, and what the agent sees."""

import functools
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.agent.commanded import socket_directory
from tests.agent.conftest import run_job

from . import model_references

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
EXPERTS = "--layers 2 --width 16 --tokens 16"
GEMM = "16 32 8"
PARAMETERS, BUCKETS, DDP_BUCKETS = 29, 9, 8
"""Of that GPT; DDP's own once it has made them anew, in its second step."""


@dataclass(frozen=True)
class Mode:
    """One run: what its figures have to be like, and how many collectives a step has."""

    words: str
    reference: str
    collectives: int
    fewer_kernels: bool = False
    """NCCL makes fewer kernels of them: of several sends and receives at once one, in a group of one rank
    none."""
    no_kernels: bool = False  # They go through gloo, on GPUs too


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
    Mode(f"zero --mode overlapped --stage 1 {GPT}", "gpt", 2 * BUCKETS),
    Mode(f"zero --mode overlapped --stage 2 {GPT}", "gpt", 2 * BUCKETS),
    Mode(f"zero --mode sequential --stage 1 {GPT}", "gpt", 2 * BUCKETS),
    Mode(f"zero --mode sequential --stage 2 {GPT}", "gpt", 2 * BUCKETS),
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
    Mode(f"tensor_parallel --mode sync --no-sequence-parallel {TENSOR}", "tensor", 4),
    Mode(f"tensor_parallel --mode async --no-sequence-parallel {TENSOR}", "tensor", 8),
    Mode(f"tensor_parallel --mode async --decode {TENSOR}", "tensor", 8),
    # And the mean of four gradients.
    Mode(f"tensor_parallel --mode sync --replicas 2 {TENSOR}", "tensor", 8 + 4, fewer_kernels=True),
    Mode(f"tensor_parallel --mode async --replicas 2 {TENSOR}", "tensor", 16 + 4, fewer_kernels=True),
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
    Mode(f"expert_parallel --mode sync {EXPERTS}", "experts", 2 * 3 + 3 + 4),
    Mode(f"expert_parallel --mode overlapped --skew 2.5 {EXPERTS}", "experts", 2 * 3 + 3 + 4),
    Mode(f"gemm_overlap --method torch {GEMM}", "gemm", 2),
    Mode(f"gemm_overlap --method ring {GEMM}", "gemm", 2 * 2, fewer_kernels=True),
]


OF_FOUR_RANKS = {
    # A ring of two has one neighbour, a pipeline of two no stage in the middle, and of two replicas on two
    # ranks each rank has all the weights.
    f"tensor_parallel --mode ring {TENSOR}": "tensor",
    f"tensor_parallel --mode async --replicas 2 {TENSOR}": "tensor",
    f"tensor_parallel --mode ring --replicas 2 {TENSOR}": "tensor",
    f"pipeline --mode hand-written {PIPELINE}": "pipeline",
    f"pipeline --mode 1f1b {PIPELINE}": "pipeline",
    f"pipeline --mode interleaved {PIPELINE}": "pipeline",
    f"pipeline --mode zero-bubble {PIPELINE}": "pipeline",
    f"expert_parallel --mode overlapped --skew 1 {EXPERTS}": "experts",
    f"gemm_overlap --method ring {GEMM}": "gemm",
}
"""And the reference of each."""
REFUSED = "gemm_overlap 17 32 8"  # It makes no step


def run_all(warm, folder, device, options=()):
    """The job of all modes, each of which writes its figures to a file of its number. `options`: the
    agent's.
    """
    runs = [f"{mode.words} {device} {results(mode.reference, at)}" for at, mode in enumerate(MODES)]
    return run_in_turn(warm, folder, [f"{REFUSED} {device}", *runs], RANKS, options)


def results(reference, at):
    """The option with which a run writes its figures to a file of its number."""
    return f"{'--figures' if reference in ('matmul', 'small', 'gemm') else '--losses'} {at}"


def run_in_turn(warm, folder, runs, ranks, options=()):
    """One job of all these runs."""
    with socket_directory():
        arguments = (f"--steps {STEPS}", *runs)
        done = run_job(warm, folder, SCRIPT, options=options, arguments=arguments, nproc=ranks, forked=True)
    assert done.codes == [0] * ranks, done.errs
    return done


@functools.cache
def options_of(words):
    from overlaptop.workloads import catalog, job

    name, *options = words.split()
    return job.parse(catalog.find(name), [*options, "--device", "cpu"])[0]


def places():
    import torch

    from overlaptop.workloads import job

    return [job.Place(rank, RANKS, torch.device("cpu")) for rank in range(RANKS)]


@functools.cache
def gpt_reference(accumulation):
    """The model trained in one process: the losses of rank 0's batches."""
    import torch

    from overlaptop.workloads import gpt

    options = options_of(f"ddp {GPT}")
    model = gpt.build(options, places()[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=gpt.LEARNING_RATE, fused=True)
    batches = [gpt.Batches(options, place) for place in places()]
    losses = []
    for _ in range(STEPS):
        means = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for rank, of_rank in enumerate(batches):
            model.zero_grad()
            total = torch.tensor(0.0)
            for _ in range(accumulation):
                loss = model(of_rank.next()) / accumulation
                loss.backward()
                total += loss.detach()
            if rank == 0:
                losses.append(total.item())
            for mean, parameter in zip(means, model.parameters(), strict=True):
                mean += parameter.grad / RANKS
        for mean, parameter in zip(means, model.parameters(), strict=True):
            parameter.grad = mean
        optimizer.step()
    return losses


def delayed_reference():
    """Linear layers by plain gradient descent, each gradient applied a step late."""
    import torch
    from torch import nn

    from overlaptop.workloads import double_buffer

    options = options_of(f"double_buffer {DOUBLE}")
    torch.manual_seed(options.seed)
    model = nn.Sequential(*(nn.Linear(options.width, options.width) for _ in range(options.layers)))
    loaders = [double_buffer.Loader(options, place, ahead=False) for place in places()]
    late = [torch.zeros_like(parameter) for parameter in model.parameters()]
    losses = []
    for _ in range(STEPS):
        means = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for rank, loader in enumerate(loaders):
            model.zero_grad()
            loss = model(loader.next()).square().mean()
            loss.backward()
            if rank == 0:
                losses.append(loss.item())
            for mean, parameter in zip(means, model.parameters(), strict=True):
                mean += parameter.grad / RANKS
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), late, strict=True):
                parameter -= double_buffer.LEARNING_RATE * gradient
        late = means
    return losses


REFERENCES = {
    "gpt": lambda: gpt_reference(1),
    "accumulated": lambda: gpt_reference(2),
    "delayed": delayed_reference,
}
"""Of the others, all modes are compared with the first one."""
OF_OPTIONS = {
    "tensor": model_references.tensor_parallel,
    "pipeline": model_references.pipeline,
    "experts": model_references.expert_parallel,
    "gemm": model_references.gemm_overlap,
}


def figures_of(folder, at):
    """What the run of that number wrote."""
    return [float(line) for line in (folder / str(at)).read_text().split()]


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


def test_each_mode_computes_the_reference_and_is_seen(warm, tmp_path):
    """In one job, and so in one test: torch, the ranks and their group are there once."""
    done = run_all(warm, tmp_path, "--device cpu")
    for at, mode in enumerate(MODES):
        figures = figures_of(tmp_path, at)
        if mode.reference in OF_OPTIONS:
            expected = OF_OPTIONS[mode.reference](options_of(mode.words), STEPS, RANKS, "cpu")
        elif mode.reference in REFERENCES:
            expected = REFERENCES[mode.reference]()
        else:
            first = next(at for at, each in enumerate(MODES) if each.reference == mode.reference)
            expected = figures_of(tmp_path, first)
        # Where two ranks train, no order of a sum of two can make a difference.
        exact = mode.reference in REFERENCES
        assert figures == (expected if exact else pytest.approx(expected, rel=1e-6)), mode.words
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


def test_four_ranks_compute_what_a_plain_reference_does(warm, tmp_path):
    ranks = 4
    runs = [
        f"{words} --device cpu {results(reference, at)}"
        for at, (words, reference) in enumerate(OF_FOUR_RANKS.items())
    ]
    run_in_turn(warm, tmp_path, runs, ranks)
    for at, (words, reference) in enumerate(OF_FOUR_RANKS.items()):
        expected = OF_OPTIONS[reference](options_of(words), STEPS, ranks, "cpu")
        assert figures_of(tmp_path, at) == pytest.approx(expected, rel=2e-6), words

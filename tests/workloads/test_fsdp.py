"""FSDP2's prefetch: the order of gathers is the one asked for, and the numbers stay."""

import json

# Forward, `+r` is the gather of the root's weights, `+0` that of the first block's, `0` its compute.
FORWARD = {
    0: "+r +0 0 +1 1 +2 2 +3 3",
    1: "+r +0 +1 0 +2 1 +3 2 3",
    2: "+r +0 +1 +2 0 +3 1 2 3",
    9: "+r +0 +1 +2 +3 0 1 2 3",
}
# Backward the root still has its weights, and FSDP2 by itself asks for one block ahead.
BACKWARD = {
    0: "+3 +2 3 +1 2 +0 1 0",
    1: "+3 +2 3 +1 2 +0 1 0",
    2: "+3 +2 +1 3 +0 2 1 0",
    9: "+3 +2 +1 +0 3 2 1 0",
}
DEPTHS = [(0, 0), (1, 2), (2, 1), (9, 9), (0, 0)]
# With a limit of as many blocks whose weights are there at a time.
ONE_AT_A_TIME = ("+r wait +0 0 wait +1 1 wait +2 2 wait +3 3", "wait +3 3 wait +2 2 wait +1 1 wait +0 0")
LIMITED = {(2, 2, 2): (FORWARD[1], BACKWARD[1]), (2, 2, 1): (FORWARD[0], "+3 3 +2 2 +1 1 +0 0")}

# One job, in which the depth changes from step to step. Weights and batch do not, so that nothing but the
# depth could make a difference.
SCRIPT = """
import hashlib, json, os, sys
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from overlaptop.workloads import fsdp, gpt, job
from overlaptop.workloads.entries.data_parallel import FSDP

def mark(name):
    def hook(*_):
        with record_function(name):
            pass
    return hook

def order(profiled):
    events = sorted(profiled.events(), key=lambda event: event.time_range.start)
    words = []
    for name in (event.name for event in events):
        if name.startswith("FSDP::all_gather") and "copy" not in name:
            words.append("+" + (name.partition("blocks.")[2].rstrip(")") or "r"))
        elif name.startswith("compute "):
            words.append(name.removeprefix("compute "))
    return " ".join(words)

options, place = job.parse(
    FSDP,
    "--device cpu --deterministic --layers 4 --width 64 --seq 16 --batch 2".split() + sys.argv[3:]
)
with gpt.arithmetic(options), job.process_group(place):
    model = gpt.build(options, place)
    fsdp.shard(model, place, reshard_after_forward=options.reshard_after_forward)
    for at, block in enumerate(model.blocks):
        block.attention_norm.register_forward_pre_hook(mark(f"compute {at}"))
        block.mlp.register_full_backward_pre_hook(mark(f"compute {at}"))
    tokens = gpt.Batches(options, place).next()
    told = []
    for depths in json.loads(sys.argv[2]):
        if not depths:  # from here on, as on a GPU
            torch.cuda.synchronize = mark("compute wait")
            fsdp.GatherLimit(model, 1)
            depths = 0, 0, 1
        fsdp.set_prefetch(model, *depths)
        with profile(activities=[ProfilerActivity.CPU]) as forward_pass:
            loss = model(tokens)
        with profile(activities=[ProfilerActivity.CPU]) as backward_pass:
            loss.backward()
        gradients = hashlib.sha256()
        for parameter in model.parameters():
            gradients.update(parameter.grad.to_local().numpy().tobytes())
        model.zero_grad()
        told.append([order(forward_pass), order(backward_pass), loss.item().hex(), gradients.hexdigest()])
with open(os.path.join(sys.argv[1], str(place.rank)), "w") as file:
    json.dump(told, file)
"""


def told_by_two_ranks(run_warm, folder, depths, *options):
    """Of each rank, for each of these depths: forward's and backward's order, loss and gradients."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    done = run_warm(script, [str(folder), json.dumps(depths), *options], folder, 2)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / str(rank)).read_text()) for rank in (0, 1)]


def test_gathers_follow_the_prefetch_depth_and_numbers_stay(run_warm, tmp_path):
    """To the last bit, from the next step on, and also where weights stay and are not gathered again."""
    told = told_by_two_ranks(run_warm, tmp_path, [*LIMITED, *DEPTHS, ()])
    expected = [
        *LIMITED.values(),
        *((FORWARD[forward], BACKWARD[backward]) for forward, backward in DEPTHS),
        ONE_AT_A_TIME,
    ]
    for rank in told:
        assert [(forward, backward) for forward, backward, _, _ in rank] == expected
        assert len({(loss, gradients) for _, _, loss, gradients in rank}) == 1
    (_, _, loss, shard), (_, _, other_loss, other_shard) = (rank[0] for rank in told)
    assert loss != other_loss, "each rank has a batch of its own"
    assert shard != other_shard, "each rank has a shard of its own"

    few = 2
    kept = told_by_two_ranks(run_warm, tmp_path, DEPTHS[:few], "--no-reshard-after-forward")
    for rank, rank_kept in zip(told, kept, strict=True):
        assert {backward for _, backward, _, _ in rank_kept} == {"3 2 1 0"}
        assert [numbers for _, _, *numbers in rank_kept] == [numbers for _, _, *numbers in rank[:few]]

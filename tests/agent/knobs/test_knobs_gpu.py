"""Knobs of jobs on NCCL: fifty changes while they train, and not a bit of their losses is another one."""

import pytest
import torch

pytestmark = pytest.mark.gpu

CHANGES = 50
STEPS = 4 * CHANGES + 10
"""Room for each change to come to its end."""


@pytest.mark.usefixtures("side_by_side")
@pytest.mark.parametrize(
    "variant",
    ["plain", "static_graph", "hook", "accumulation", "accumulation, static_graph", "several reductions"],
)
def test_fifty_bucket_sizes_of_two_ranks_leave_no_trace(train_twice, variant):
    train_twice("rebucket", 2, STEPS, CHANGES, variant, backend="nccl")


@pytest.mark.usefixtures("side_by_side")
def test_fifty_bucket_sizes_of_four_ranks_leave_all_identical(train_twice):
    train_twice("rebucket", 4, STEPS, CHANGES, "plain", "hook", "accumulation", backend="nccl")


@pytest.mark.usefixtures("side_by_side")
@pytest.mark.parametrize("ranks", [2, 4])
def test_fifty_prefetch_depths_leave_no_trace(train_twice, ranks):
    train_twice("prefetch", ranks, STEPS, CHANGES, "plain", "accumulation", "nested", backend="nccl")


BUNDLED = """
    import sys
    from overlaptop.workloads import job, {workload} as workload
    sys.argv[1:] = (
        "--device cuda --dtype float32 --deterministic --layers 4 --width 512 --seq 256 --batch 2 "
        f"--losses losses --steps {{sys.argv[1]}}"
    ).split()
    job.main(workload.__file__, workload.run)
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("workload", "values"),
    [
        ("ddp", {"bucket_cap_mb": (1, 100), "accumulation": (4,)}),
        ("fsdp", {"prefetch_forward": (2, 1), "prefetch_backward": (3,)}),
    ],
)
def test_a_bundled_job_takes_every_value_from_a_dashboard_and_its_own_back(
    start, watch, losses_alone, workload, values
):
    own = {"training": BUNDLED.format(workload=workload), "warm": None}
    job = start(**own)
    dashboard = watch()
    dashboard.until_it_trains()
    known = dashboard.until(
        lambda snapshot: {each.knob.name: each for each in snapshot.knobs} if snapshot.knobs else None
    )
    assert set(known) == set(values)
    for name, wanted in values.items():
        knob = known[name].knob
        assert (known[name].refusal, known[name].differs) == ("", False)
        words = [knob.value_text]
        for value in (*wanted, None):
            done = dashboard.set(knob, value)
            assert done.state == "changed", done.reason
            assert done.old == words[-1]
            words.append(done.new)
            dashboard.goes_on(20)
        assert words == [knob.original_text, *map(str, wanted), knob.original_text]
    assert job.process.poll() is None, job.log()
    job.close()
    if workload == "fsdp":  # accumulation trains on other batches
        assert job.losses() == losses_alone(job, **own)

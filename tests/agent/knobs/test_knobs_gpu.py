"""Knobs of jobs on NCCL: fifty changes while they train, and not a bit of their losses is another one."""

import pytest

pytestmark = pytest.mark.gpu

CHANGES = 50
STEPS = 4 * CHANGES + 10  # Room for each change to come to its end


@pytest.mark.usefixtures("side_by_side")
@pytest.mark.parametrize(
    "variant",
    ["plain", "static_graph", "hook", "accumulation", "accumulation, static_graph", "several reductions"],
)
def test_fifty_bucket_sizes_of_two_ranks_leave_no_trace(train_twice, variant):
    train_twice("ddp", 2, STEPS, CHANGES, variant, backend="nccl")


@pytest.mark.usefixtures("side_by_side")
def test_fifty_bucket_sizes_of_four_ranks_leave_all_identical(train_twice):
    train_twice("ddp", 4, STEPS, CHANGES, "plain", "hook", "accumulation", backend="nccl")


@pytest.mark.usefixtures("side_by_side")
@pytest.mark.parametrize("ranks", [2, 4])
def test_fifty_prefetch_depths_leave_no_trace(train_twice, ranks):
    train_twice("fsdp", ranks, STEPS, CHANGES, "plain", "accumulation", "nested", backend="nccl")

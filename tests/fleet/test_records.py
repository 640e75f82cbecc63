import json

import pytest

from overlaptop.fleet import records
from overlaptop.fleet.job_state import JobState
from overlaptop.fleet.waits import StepWaits
from overlaptop.records import as_json
from overlaptop.timeline.arrivals import waiting
from overlaptop.timeline.matching import match
from overlaptop.timeline.spans import from_pairs
from overlaptop.wire.devices import DeviceSample, MachineFacts, Nic, NicErrors
from overlaptop.wire.messages import CollectiveSpan

from .builders import GB, MS, T0, Clock, device, feed, info, numa, sample, step, unmeasured, welcome


def step_record(*arguments):
    return json.loads(as_json(records.step_record(*arguments)))


def device_record(*arguments):
    return json.loads(as_json(records.device_record(*arguments)))


def test_a_record_has_the_steps_values_and_null_where_unknown():
    record = step_record("job-1", info(1, exact=False), step(1, 3, comm=30, hidden=20))
    assert (record["type"], record["job"], record["rank"], record["step"]) == ("step", "job-1", 1, 3)
    assert (record["source"], record["compute_exact"]) == ("events", False)
    assert (record["hidden_ns"], record["exposed_ns"]) == (20 * MS, 10 * MS)
    assert (record["overlap"], record["idle_ns"]) == (20 / 30, None)  # its source does not see idle
    assert step_record("j", info(0), step(0, 0, idle=7))["idle_ns"] == 7 * MS
    record = step_record("j", None, unmeasured(0, 0))
    unknown = {key for key, value in record.items() if value is None}
    assert unknown >= {"source", "comm_ns", "hidden_ns", "idle_ns", "stall_ns", "overlap", "collectives"}


def seen(*messages):
    """Rank 0 after these."""
    return feed(JobState(Clock()), welcome(), *messages).ranks[0]


def test_a_device_record_has_what_is_known_of_the_gpu_its_links_and_its_node():
    moved = {"link_tx_bytes": 8 * GB // 10, "link_rx_bytes": 0, "nic_tx_bytes": 8, "nic_rx_bytes": 16}
    step_of_1_gb = step(0, 0, start_ns=T0 - 80 * MS, **moved)
    now = sample(0, nvlink=(5, 6), pcie=(7, 8), nic_rx_bytes_per_s=9, nic_tx_bytes_per_s=0)
    machine = MachineFacts(0, "gpu-a", (), (Nic("eth0", 0, 8), Nic("mlx5_0", 0, 400 * GB)), ())
    facts = device(0, nic_errors=(NicErrors("link_downed", 2),))
    view = seen(info(0, local_world_size=1), machine, facts, numa(0), step_of_1_gb, now)
    record = device_record("job-1", view, view.sample)
    expected = {
        "type": "device", "job": "job-1", "rank": 0, "at_ns": T0, "gpu_uuid": "GPU-0",
        "nvlink_rx_bytes_per_s": 5, "nvlink_tx_bytes_per_s": 6, "pcie_rx_bytes_per_s": 7,
        "pcie_tx_bytes_per_s": 8, "nvlink_peak_bytes_per_s": 450 * GB, "collectives_over": "nvlink",
        "collectives_rx_bytes_per_s": 0, "collectives_tx_bytes_per_s": 10 * GB, "sm_activity": 0.94,
        "memory_total_bytes": 141 * GB, "throttle_reasons": ["power cap"], "numa_node": 0,
        "numa_state": "bound", "cpu_set": "0-31", "cpu_nodes": [0], "memory_policy": "bind:0",
        "nic": "mlx5_0", "nic_node": 0, "nic_rx_bytes_per_s": 9, "nic_tx_bytes_per_s": 0,
        "nic_peak_bytes_per_s": 50 * GB, "nic_errors": {"link_downed": 2},
        "nic_collectives_rx_bytes_per_s": 200, "nic_collectives_tx_bytes_per_s": 100,
    }  # fmt: skip
    assert expected.items() <= record.items()
    assert None not in record.values()
    older = device_record("job-1", view, sample(0))
    assert older["collectives_tx_bytes_per_s"] is None  # only known for now


def test_what_is_not_known_of_a_device_is_null_and_never_zero_or_empty():
    facts = device(0, "", links=(), memory_total_bytes=None)
    nothing = numa(0, gpu_node=None, nic="", nic_node=None, cpu_set="", cpu_nodes=(), memory_policy="")
    known = {"type", "job", "rank"}
    bare = device_record("j", seen(), None)
    assert {key for key, value in bare.items() if value is not None} == known
    blank = device_record("j", seen(facts, nothing), DeviceSample(0, 1, *[None] * 12))
    assert {key for key, value in blank.items() if value is not None} == known | {
        "at_ns", "numa_state", "nvlink_peak_bytes_per_s", "pcie_peak_bytes_per_s", "power_limit_mw",
    }  # fmt: skip


def calls(*spans):
    return [
        CollectiveSpan("allreduce", 1024, "0", True, T0 + start * MS, T0 + end * MS) for start, end in spans
    ]


def waits_of(ranks, **how):
    """What these calls of two ranks make of step 3, with compute from 10 ms on."""
    collectives = match(ranks, **how)
    comm = from_pairs([(T0, T0 + 30 * MS)])
    lane = from_pairs([(T0 + 10 * MS, T0 + 80 * MS)])
    times = {rank: waiting(rank, comm, collectives, T0, T0 + 80 * MS).times(lane) for rank in ranks}
    return StepWaits.of(3, T0, 80 * MS, collectives, times)


WAIT_FIELDS = (
    "wait_ns", "transfer_ns", "not_attributed_ns", "exposed_wait_ns", "exposed_transfer_ns", "late_rank",
)  # fmt: skip


FIRST_LATE = [20 * MS, 10 * MS, 0, 10 * MS, 0, 1]


@pytest.mark.parametrize(
    ("ranks", "members", "fields"),
    [
        ({0: calls((0, 30)), 1: calls((20, 30))}, (0, 1), FIRST_LATE),
        ({0: calls((0, 30))}, (0, 1), [None, None, 30 * MS, None, None, None]),
        ({0: calls((12, 30)), 1: calls((20, 30))}, (0, 1), [8 * MS, 10 * MS, 12 * MS, None, None, 1]),
        ({rank: calls((20 * (rank > 0), 30)) for rank in range(3)}, (0, 1, 2), [*FIRST_LATE[:5], None]),
    ],
)
def test_a_record_splits_communication_where_the_ranks_were_compared(ranks, members, fields):
    waits = waits_of(ranks, members={"0": members})
    record = step_record("j", info(0), step(0, 3), waits)
    assert [record[name] for name in WAIT_FIELDS] == fields
    trace = json.loads(as_json(records.trace_rank_record(0, step(0, 3), waits, compute_exact=True)))
    assert [trace[name] for name in WAIT_FIELDS] == fields
    unknown = step_record("j", info(0), step(0, 3))
    assert [unknown[name] for name in WAIT_FIELDS] == [None] * 6


@pytest.mark.parametrize(
    ("start", "exact", "bounded"),
    [
        (12, True, {"wait_ns", "transfer_ns"}),
        (5, True, {"wait_ns", "transfer_ns", "exposed_wait_ns", "exposed_transfer_ns"}),
        (0, True, set()),
        (0, False, {"exposed_wait_ns", "exposed_transfer_ns"}),
    ],
)
def test_figures_are_bounds_where_not_all_is_known(start, exact, bounded):
    waits = waits_of({0: calls((start, 30)), 1: calls((20, 30))})
    bounds = step_record("j", info(0, exact=exact), step(0, 3), waits)["bounds"]
    assert {name for name, sign in bounds.items() if sign == "≥" and name in WAIT_FIELDS} == bounded
    assert bool(bounds.keys() - set(WAIT_FIELDS)) is not exact

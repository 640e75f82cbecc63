import json
from dataclasses import replace

from overlaptop.fleet.records import step_record

from .builders import MS, info, step, unmeasured


def test_a_record_has_the_documented_fields_in_their_order():
    assert list(step_record("job-1", info(0), step(0, 3))) == [
        "type", "job", "rank", "step", "source", "step_ns", "compute_ns", "comm_ns", "hidden_ns",
        "exposed_ns",
        "compute_only_ns", "copy_only_ns", "idle_ns", "stall_ns", "overlap", "collectives", "dropped",
        "compute_exact", "launch_lead_ns", "comm_kernels_ns", "matched_ns", "captured",
    ]  # fmt: skip


def test_a_record_says_what_the_step_said():
    record = step_record("job-1", info(1, exact=False), step(1, 3, comm=30, hidden=20))
    assert (record["type"], record["job"], record["rank"], record["step"]) == ("step", "job-1", 1, 3)
    assert (record["source"], record["compute_exact"]) == ("events", False)
    assert (record["hidden_ns"], record["exposed_ns"]) == (20 * MS, 10 * MS)
    assert record["overlap"] == 20 / 30


def test_a_record_says_what_only_kernel_records_show():
    seen = replace(step(0, 3), launch_lead_ns=47 * MS, comm_kernels_ns=30 * MS, matched_ns=30 * MS)
    record = step_record("job-1", info(0), seen)
    assert (record["launch_lead_ns"], record["matched_ns"]) == (47 * MS, 30 * MS)


def test_overlap_is_null_without_communication():
    assert (
        json.loads(json.dumps(step_record("j", info(0), step(0, 0, comm=0, hidden=0))))["overlap"] is None
    )


def test_what_was_not_measured_is_null_and_never_zero():
    record = step_record("j", None, unmeasured(0, 0))
    unknown = {key for key, value in record.items() if value is None}
    assert unknown >= {"source", "comm_ns", "hidden_ns", "idle_ns", "stall_ns", "overlap", "collectives"}
    assert record["step_ns"] == 80 * MS

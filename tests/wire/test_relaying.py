"""The messages of a line to another host: what they may hold. test_codec proves that they come through."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest

from overlaptop.wire import codec
from overlaptop.wire.codec import WireError, decode, encode
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.endpoints import JobRecord
from overlaptop.wire.messages import Notice, StepTotals
from overlaptop.wire.relaying import (
    MAX_JOBS,
    MAX_OUTPUT_CHARS,
    MAX_OUTPUT_LINES,
    MAX_RANK_PIDS,
    RelayHello,
    RelayJobs,
    RelayLaunch,
    RelayLaunchStatus,
    RelayLimit,
    RelayLink,
    RelayPing,
    RelaySelect,
    RemoteJob,
)

RECORD = JobRecord(
    4, "job-1", "train.py", "/w", "gpu-a", 2, "/bin/python", 1, None, 2, 3, 4, "dash-2.sock", (5, 6),
    ("/x",),
)  # fmt: skip
JOB = RemoteJob.of(RECORD)
STATUS = RelayLaunchStatus(1, "running", False, "", "torchrun x", ("a line",))


def row_of(message, **changed):
    """Its bytes with some fields replaced by what encode would refuse."""
    row = msgpack.unpackb(encode(message))
    for name, value in changed.items():
        row[1 + list(type(message).__dataclass_fields__).index(name)] = value
    return msgpack.packb(row)


def test_a_job_of_another_host_is_its_record_less_what_only_serves_there():
    assert JOB.record == replace(RECORD, python="", import_path=())
    many = replace(RECORD, rank_pids=tuple(range(MAX_RANK_PIDS + 1)))
    assert RemoteJob.of(many).rank_pids == tuple(range(MAX_RANK_PIDS))


@pytest.mark.parametrize(
    ("message", "changed", "words"),
    [
        (RelayJobs((), ""), {"jobs": ((4, "../x", "", "", "", 2, 1, 1, 1, 1, 1, "", ()),)}, "a job's key"),
        (RelayJobs((), ""), {"jobs": ((4, "a", "", "", "", -2, 1, 1, 1, 1, 1, "", ()),)}, "world_size"),
        (RelayJobs((JOB,), ""), {"jobs": ((1,),)}, "RemoteJob: expected 13 fields"),
        (RelayJobs((), ""), {"jobs": ((1,),) * (MAX_JOBS + 1)}, "at most 64"),
        (RelaySelect("a"), {"job": "/etc/passwd"}, "RelaySelect: '/etc/passwd' cannot be a job's key"),
        (RelaySelect(""), {"job": "a\n"}, "cannot be a job's key"),
        (RelayLink("a", True), {"alive": 1}, "RelayLink.alive"),
        (RelayPing(1), {"number": 1.5}, "RelayPing.number"),
        (RelayLimit(0, 0.0), {"bytes_per_s": -1}, "bytes_per_s must be from 0"),
        (RelayLimit(0, 0.0), {"hz": -0.5}, "RelayLimit.hz: expected a number from 0.0 to 1000.0"),
        (RelayLimit(0, 0.0), {"hz": float("nan")}, "RelayLimit.hz"),
        (RelayLimit(0, 0.0), {"hz": float("inf")}, "RelayLimit.hz"),
        (RelayLimit(0, 0.0), {"hz": 1}, "RelayLimit.hz"),
        (RelayLaunch(1, ("ddp",), None), {"nproc": 0}, "nproc must be from 1 to 256, not 0"),
        (RelayLaunch(1, ("ddp",), None), {"nproc": 257}, "nproc must be"),
        (RelayLaunch(1, ("ddp",), None), {"words": ("a\0b",)}, "NUL"),
        (RelayLaunch(1, ("ddp",), None), {"words": ("a",) * 65}, "RelayLaunch.words: .* at most 64"),
        (RelayLaunch(1, ("ddp",), None), {"words": "ddp"}, "RelayLaunch.words"),
        (RelayLaunch(1, ("ddp",), None), {"owner": "../../etc/passwd"}, "cannot name an owner"),
        (RelayLaunch(1, ("ddp",), None), {"owner": "0123456789abcdeF"}, "cannot name an owner"),
        (STATUS, {"phase": "dancing"}, "RelayLaunchStatus.phase: expected one of nothing"),
        (STATUS, {"output": ("x" * (MAX_OUTPUT_CHARS + 1),)}, "at most 800 characters"),
        (STATUS, {"output": ("x",) * (MAX_OUTPUT_LINES + 1)}, "RelayLaunchStatus.output"),
        (RelayHello(4, "1", "h", 1, None, 1, False), {"readonly": None}, "RelayHello.readonly"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_its_name(message, changed, words):
    with pytest.raises(WireError, match=words):
        decode(row_of(message, **changed))


def test_the_longest_output_fits_into_a_message():
    longest = ("\N{ROCKET}" * MAX_OUTPUT_CHARS,) * MAX_OUTPUT_LINES
    assert decode(encode(replace(STATUS, output=longest))).output == longest


def test_the_kind_and_first_fields_of_a_message_can_be_seen_without_decoding_it():
    totals = StepTotals(3, 1 << 40, 5, 1 << 50, None, 7, *[None] * 11, 0)
    assert codec.kind(encode(totals)) is StepTotals
    assert codec.peek(encode(totals), 6) == [3, 1 << 40, 5, 1 << 50, None, 7]
    assert codec.kind(encode(DeviceSample(0, 1, *[None] * 11, (), ()))) is DeviceSample
    assert codec.kind(encode(Notice(0, 1, "info", ""))) is Notice
    assert codec.peek(encode(RelayPing(5)), 6) == [5, 0]


@pytest.mark.parametrize(
    "payload", [b"", b"\x91", b"\x92\xff", b"\xdc\x00\x02", b"\xc1\xc1", b"\xdd" + b"\xff" * 8]
)
def test_what_is_no_message_is_of_no_kind_and_can_be_peeked_into(payload):
    assert codec.kind(payload) is None
    assert len(codec.peek(payload, 6)) <= 6

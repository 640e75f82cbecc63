"""The messages of a line to another host: what they may hold. test_codec proves that they come through."""

from __future__ import annotations

import pytest

from overlaptop.wire import codec
from overlaptop.wire.codec import WireError, decode, encode
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.messages import Notice, StepTotals
from overlaptop.wire.relaying import (
    RelayJobs,
    RelayLimit,
    RelayPing,
    RelaySelect,
)
from tests.wire.examples import row_of


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (RelayJobs((), ""), "jobs", ((4, "../x", "", "", "", 2, 1, 1, 1, 1, 1, "", ()),)),
        (RelaySelect("a"), "job", "/etc/passwd"),
        (RelaySelect(""), "job", "a\n"),
        (RelayLimit(0), "bytes_per_s", -1),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_its_name(message, field, value):
    with pytest.raises(WireError, match=rf"^{type(message).__name__}\.{field}\b"):
        decode(row_of(message, **{field: value}))


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

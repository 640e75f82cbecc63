"""The messages of a line to another host: what they may hold. test_codec proves that they come through."""

from __future__ import annotations

import pytest

from overlaptop.wire import codec
from overlaptop.wire.codec import WireError, decode, encode
from overlaptop.wire.messages import Notice
from overlaptop.wire.relaying import MAX_CHUNK_BYTES, RelayBytes, RelayJobs, RelayOpen
from tests.wire.examples import row_of

JOBS = RelayJobs(8, "1.0", "far", False, (), "")


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (JOBS, "jobs", ((4, "../x", "", "", "", 2, 1, 1, 1, 1, 1, "", ()),)),
        (RelayOpen(1, "a"), "job", "/etc/passwd"),
        (RelayOpen(1, ""), "job", "a\n"),
        (RelayOpen(1, ""), "connection", -1),
        (RelayBytes(1, b""), "data", b"x" * (MAX_CHUNK_BYTES + 1)),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_its_name(message, field, value):
    with pytest.raises(WireError, match=rf"^{type(message).__name__}\.{field}\b"):
        decode(row_of(message, **{field: value}))


def test_the_kind_of_a_message_is_known_without_decoding_it():
    assert codec.kind(encode(Notice(0, 1, "info", ""))) is Notice
    for payload in (b"", b"\x91", b"\x92\xff", b"\xdc\x00\x02", b"\xc1\xc1", b"\xdd" + b"\xff" * 8):
        assert codec.kind(payload) is None

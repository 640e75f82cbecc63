"""A relay's bytes, cut into notes and frames, whatever they are and however they were split."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.remote.attempt import MAX_PREAMBLE_BYTES, RelayStream, StartNote
from overlaptop.wire.codec import MAX_FRAME_BYTES, WireError, frame
from overlaptop.wire.relaying import MAGIC

CUTS = st.lists(st.integers(0, 300), max_size=20)
# What no shell prints by chance, and the stream takes for its own.
BANNERS = st.binary(max_size=200).filter(
    lambda data: MAGIC not in data + MAGIC[:-1] and b"OVERLAPTOP" not in data
)


def cut(data, places):
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(BANNERS, st.lists(st.binary(max_size=60), max_size=8), CUTS)
def test_frames_behind_any_banner_come_out_whole(banner, payloads, places):
    stream = RelayStream()
    pieces = cut(banner + MAGIC + b"".join(map(frame, payloads)), places)
    assert [each for piece in pieces for each in stream.feed(piece)] == payloads
    assert stream.begun
    assert stream.frame_bytes == sum(len(payload) + 4 for payload in payloads)


@given(CUTS)
def test_notes_are_found_between_the_lines_of_a_banner(places):
    stream = RelayStream()
    data = (
        b"Last login: today\r\n\nOVERLAPTOP-NOTE here\nno newline at its end caf\xe9"
        b"\nOVERLAPTOP-NOTE wait no \xff in /tmp/x\n OVERLAPTOP-NOTE fail indented\n" + MAGIC + frame(b"x")
    )
    found = [each for piece in cut(data, places) for each in stream.feed(piece)]
    assert found == [StartNote("here", ""), StartNote("wait", "no � in /tmp/x"), b"x"]
    assert stream.preamble.splitlines() == [
        "Last login: today",
        "no newline at its end caf�",
        " OVERLAPTOP-NOTE fail indented",
    ]


@given(st.booleans(), st.lists(st.binary(max_size=5000), max_size=60))
def test_any_bytes_give_notes_and_payloads_or_a_wire_error(begun, pieces):
    stream = RelayStream()
    with suppress(WireError):
        for piece in [MAGIC * begun, *pieces]:
            assert all(len(each) <= MAX_FRAME_BYTES for each in stream.feed(piece))
    assert len(stream.preamble) <= 4096


@pytest.mark.parametrize(
    "block", [b"y\n" * 500, b"x" * 1000, b"\n\x00OVERLAPTOP RELAY 1\n" * 50, b"\n" * 1000]
)
def test_endless_preamble_is_given_up_but_not_endless_notes(block):
    stream, fed = RelayStream(), 0
    for _ in range(5000):
        assert stream.feed(b"\nOVERLAPTOP-NOTE wait no job yet\n") == [StartNote("wait", "no job yet")]
    with pytest.raises(WireError):  # noqa: PT012 # which of them it is, is looked at below
        while fed < 4 * MAX_PREAMBLE_BYTES:
            fed += len(block)
            stream.feed(block)
    assert fed <= MAX_PREAMBLE_BYTES + 2 * len(block)

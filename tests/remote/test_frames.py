"""A relay's bytes, cut into notes and frames, whatever they are and however they were split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.remote.frames import MAX_PREAMBLE_BYTES, RelayStream, StartNote
from overlaptop.wire.codec import MAX_FRAME_BYTES, WireError, frame
from overlaptop.wire.relaying import MAGIC

CUTS = st.lists(st.integers(0, 300), max_size=20)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def read(pieces: list[bytes]) -> tuple[list[bytes], list[StartNote], RelayStream]:
    stream, payloads, notes = RelayStream(), [], []
    for piece in pieces:
        payloads += stream.feed(piece)
        notes += stream.take_notes()
    return payloads, notes, stream


# What no shell prints by chance, and the stream takes for its own.
BANNERS = st.binary(max_size=200).filter(
    lambda data: MAGIC not in data + MAGIC[:-1] and b"OVERLAPTOP" not in data
)


@given(BANNERS, st.lists(st.binary(max_size=60), max_size=8), CUTS)
def test_frames_come_out_whole_behind_any_banner_however_they_are_split(banner, payloads, places) -> None:
    data = banner + MAGIC + b"".join(map(frame, payloads))
    got, notes, stream = read(cut(data, places))
    assert got == payloads
    assert notes == []
    assert stream.begun
    assert stream.frame_bytes == sum(len(payload) + 4 for payload in payloads)


@given(CUTS)
def test_notes_are_found_between_the_lines_of_a_banner(places) -> None:
    data = (
        b"Last login: today\r\n\nOVERLAPTOP-NOTE here\nno newline at its end"
        b"\nOVERLAPTOP-NOTE wait no job in /tmp/x\n OVERLAPTOP-NOTE fail indented\n" + MAGIC + frame(b"x")
    )
    got, notes, stream = read(cut(data, places))
    assert got == [b"x"]
    assert notes == [StartNote("here", ""), StartNote("wait", "no job in /tmp/x")]
    assert stream.preamble.splitlines() == [
        "Last login: today",
        "no newline at its end",
        " OVERLAPTOP-NOTE fail indented",
    ]


@given(st.lists(st.binary(max_size=5000), max_size=60))
def test_any_bytes_give_payloads_or_a_wire_error_and_nothing_else(pieces) -> None:
    stream = RelayStream()
    try:
        for piece in pieces:
            stream.feed(piece)
    except WireError:
        pass
    assert len(stream.preamble) <= 4096
    assert len(stream.take_notes()) <= 16


@given(st.binary(max_size=300), st.lists(st.binary(max_size=300), max_size=20))
def test_any_bytes_behind_the_magic_give_payloads_or_a_wire_error(head, pieces) -> None:
    stream = RelayStream()
    stream.feed(MAGIC)
    try:
        for piece in [head, *pieces]:
            assert all(len(payload) <= MAX_FRAME_BYTES for payload in stream.feed(piece))
    except WireError:
        pass


@pytest.mark.parametrize(
    "block", [b"y\n" * 500, b"x" * 1000, b"\n\x00OVERLAPTOP RELAY 2\n" * 50, b"\n" * 1000]
)
def test_a_preamble_without_end_is_given_up(block: bytes) -> None:
    stream, fed = RelayStream(), 0

    def feed_all() -> None:
        nonlocal fed
        while fed < 4 * MAX_PREAMBLE_BYTES:
            fed += len(block)
            stream.feed(block)

    with pytest.raises(WireError):
        feed_all()
    assert fed <= MAX_PREAMBLE_BYTES + 2 * len(block)


def test_notes_may_go_on_for_ever() -> None:
    stream = RelayStream()
    for _ in range(5000):
        assert stream.feed(b"\nOVERLAPTOP-NOTE wait no job yet, nothing to be done about it\n") == []
        assert len(stream.take_notes()) == 1
    assert stream.feed(MAGIC + frame(b"a")) == [b"a"]


def test_a_length_that_no_frame_has_is_an_error() -> None:
    stream = RelayStream()
    stream.feed(MAGIC)
    with pytest.raises(WireError):
        stream.feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))


def test_what_is_no_text_is_shown_as_such() -> None:
    stream = RelayStream()
    stream.feed(b"caf\xe9\n\nOVERLAPTOP-NOTE fail \xff\n")
    assert stream.preamble == "caf�\n"
    assert stream.take_notes() == [StartNote("fail", "�")]

"""What is encoded decodes to the same; all else is refused, cheaply. Which commands there are."""

import math
import tracemalloc

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import inspect
from msgspec.structs import replace

from overlaptop.wire import codec, commands
from overlaptop.wire.bounds import MAX_RANK
from overlaptop.wire.codec import FrameReader, WireError, decode, encode, frame
from overlaptop.wire.commands import Argument
from overlaptop.wire.joining import MAX_CHUNK_BYTES, RelayBytes, RelayJobs, RelayOpen
from overlaptop.wire.knobs import Knob
from overlaptop.wire.messages import CollectiveSpan, Notice, PhaseSpan
from overlaptop.wire.schema import Message
from tests.fleet.builders import BUCKET_CAP_MB
from tests.wire.examples import (
    COMMAND,
    DETAIL,
    KNOB_ROW,
    KNOBS,
    MESSAGES,
    SAMPLE,
    STACKS,
    STEP,
    messages,
    plain,
    row_of,
)


def decodes_or_refuses(data):
    try:
        message = decode(data)
    except WireError:
        return
    assert isinstance(message, Message)
    assert decode(encode(message)) == message


def check_bounds(declared):
    match declared:
        case inspect.StructType():
            for field in declared.fields:
                check_bounds(field.type)
        case inspect.UnionType():
            for each in declared.types:
                check_bounds(each)
        case inspect.VarTupleType():
            assert declared.max_length is not None
            check_bounds(declared.item_type)
        case inspect.IntType() | inspect.FloatType():
            assert None not in (declared.ge, declared.le)
        case inspect.StrType():
            assert declared.max_length is not None or declared.pattern is not None
        case inspect.BytesType():
            assert declared.max_length is not None
        case _:
            assert isinstance(declared, inspect.BoolType | inspect.NoneType)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_every_field_of_a_message_is_bounded(cls):
    check_bounds(inspect.type_info(cls))


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_a_message_decodes_to_itself(cls):
    @settings(max_examples=25)
    @given(MESSAGES[cls])
    def check(message):
        data = encode(message)
        assert decode(data) == message
        assert msgpack.packb(msgpack.unpackb(data)) == data
        assert len(data) <= codec.MAX_FRAME_BYTES

    check()


@settings(max_examples=150)
@given(st.binary(max_size=300))
@example(b"\x91" * 200_000)
@example(b"\xc7\x0c\xff" + b"\xff" * 12)
@example(b"\xa1\xff")
def test_arbitrary_bytes_are_a_message_or_refused(data):
    decodes_or_refuses(data)


@settings(max_examples=150)
@given(messages, st.data())
def test_a_mutated_message_is_a_message_or_refused(message, data):
    mutated = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated)))
        mutated[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    decodes_or_refuses(bytes(mutated))


@settings(max_examples=50)
@given(messages, st.lists(plain, min_size=1, max_size=3))
def test_fields_that_a_newer_peer_adds_are_ignored(message, added):
    row = msgpack.unpackb(encode(message))
    assert decode(msgpack.packb([*row, *added])) == message


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (STEP, "step_ns", 0),
        (STEP, "rank", MAX_RANK + 1),
        (DETAIL, "comm_spans_ns", (0, 1) * 4097),
        (Notice(0, 1, "info", ""), "level", "info\n"),
        (COMMAND, "id", "../../etc/passwd"),
        (KNOBS, "knobs", (("a b", *KNOB_ROW[1:]),)),
        (SAMPLE, "dram_activity", math.nan),
        (RelayOpen(1, "a"), "job", "/etc/passwd"),
        (RelayBytes(1, b""), "data", b"x" * (MAX_CHUNK_BYTES + 1)),
        (RelayJobs(8, "", "", False, (), ""), "jobs", ((4, "../x", *[""] * 3, *[1] * 6, "", ()),)),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_its_fields_name(message, field, value):
    with pytest.raises(WireError, match=rf"^{type(message).__name__}\.{field}\b.*: (Expected|Invalid)"):
        decode(row_of(message, **{field: value}))


HIDDEN = {"hidden_ns": 3, "idle_ns": 0, "copy_only_ns": 0}


@pytest.mark.parametrize(
    ("message", "changed", "words"),
    [
        (STEP, {"idle_ns": 5}, "StepTotals: its parts are longer than the 5 ns of the step"),
        (STEP, {"stall_ns": 6}, "StepTotals: a lane is longer than the 5 ns of the step"),
        (STEP, HIDDEN, "StepTotals: more communication is hidden"),
        (DETAIL, {"compute_spans_ns": (1, 2, 3)}, "odd number"),
        (KNOBS, {"knobs": ((*KNOB_ROW[:4], 9, 8),)}, "its values cannot be from 9 to 8"),
        (STACKS, {"samples": 8}, "StackSamples: its lines have more than its 8 samples"),
        (STACKS, {"lines": (("train.py:57", 3, 4),)}, "StackSamples: it sleeps in more than its 3 samples"),
        (STACKS, {"from_ns": 3}, "StackSamples: it ends before it begins"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(message, changed, words):
    with pytest.raises(WireError, match=words):
        decode(row_of(message, **changed))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (msgpack.packb([99, 1]), "not a message: Invalid value 99"),
        (msgpack.packb([]), "not a message"),
        (msgpack.packb([2, 1]), "StepTotals: Expected `array` of at least length"),
        (msgpack.packb({"tag": 1}), "not a message"),
        (b"\0" * (codec.MAX_FRAME_BYTES + 1), "are over"),
    ],
)
def test_what_is_no_message_is_refused(data, words):
    with pytest.raises(WireError, match=words):
        decode(data)


def test_the_kind_of_a_message_is_known_without_decoding_it():
    assert codec.kind(encode(Notice(0, 1, "info", ""))) is Notice
    for payload in (b"", b"\x91", b"\x92\xff", b"\xdc\x00\x02", b"\xc1\xc1", b"\xdd" + b"\xff" * 8):
        assert codec.kind(payload) is None


BOMBS = {
    "arrays in arrays": b"\x91" * codec.MAX_FRAME_BYTES,
    "a text said to be endless": b"\x92\x04\xdb\xff\xff\xff\xff",
    "one array of many arrays of maps": b"\xdc\x00\x7f" + (b"\xdc\x20\x00" + b"\x80" * 8192) * 127,
    "many short texts": b"\xdc\x00\x2a" + (b"\xdc\x20\x00" + b"\xa2ab" * 8192) * 42,
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_takes_bounded_memory(bomb):
    bomb = bomb[: codec.MAX_FRAME_BYTES]
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode(bomb)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 128 << 20


class Tensor:
    def __repr__(self):
        raise AssertionError("the repr of a tensor waits for its device")


@pytest.mark.parametrize(
    "message",
    [
        replace(STEP, step_ns=10**6000),
        replace(STEP, step_ns=Tensor()),
        replace(COMMAND, arguments=(Argument("steps", 101),)),
        replace(SAMPLE, sm_activity=np.float64(0.5)),
        replace(DETAIL, collectives=(CollectiveSpan("x" * 400, 0, "", True, 0, 1),) * 4096),
        PhaseSpan("forward", 0, 1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_decode_would_refuse_is_not_encoded(message):
    with pytest.raises(WireError):
        encode(message)


def test_long_text_is_cut_and_invalid_unicode_replaced():
    notice = decode(encode(Notice(0, 1, "error", "\udc80" + "x" * 5000)))
    assert notice.text == "?" + "x" * 4094 + "…"


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=50), max_size=10), st.data())
def test_frames_come_out_whole_however_the_stream_was_cut(payloads, data):
    stream = b"".join(map(frame, payloads))
    reader, received = FrameReader(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received += reader.feed(stream[:size])
        stream = stream[size:]
    assert received == payloads


def test_the_longest_frame_passes_and_a_longer_one_is_refused():
    longest = bytes(codec.MAX_FRAME_BYTES)
    assert FrameReader().feed(frame(longest)) == [longest]
    with pytest.raises(WireError):
        frame(longest + b"\0")
    with pytest.raises(WireError):
        FrameReader().feed((codec.MAX_FRAME_BYTES + 1).to_bytes(4, "big"))


KNOB = Knob("accumulation", 4, "4", "4", 1, 8, choices=(1, 2, 4, 8))


def test_command_within_bounds_has_a_unique_id_fit_for_a_folder():
    made = [commands.make(commands.CAPTURE, {"steps": steps}) for steps in range(1, 101)]
    assert commands.describe(made[4]) == "capture (steps 5)"
    assert all("pid" in each.by and decode(encode(each)) == each for each in made)
    assert len({each.id for each in made}) == 100
    assert set("".join(each.id for each in made)) <= set("0123456789abcdef-")


def test_trial_names_its_knob_or_the_rank_to_delay():
    trial = commands.make_trial(BUCKET_CAP_MB, 50, 20)
    delay = commands.make_delay(1, 2_500_000, commands.GPU, 20)
    assert commands.delays_ns(delay) == 50_000_000
    assert [commands.is_delay(each) for each in (trial, delay)] == [False, True]
    assert commands.describe(commands.make_setting(BUCKET_CAP_MB, 50)) == "set bucket_cap_mb 50"
    assert commands.describe(commands.make_restoring(KNOB)) == "restore accumulation"
    assert commands.describe(trial) == "trial bucket_cap_mb 50 (20 steps)"
    assert commands.describe(delay) == "trial of 2.5 ms more on rank 1's gpu (20 steps)"
    assert all(decode(encode(each)) == each for each in (trial, delay))


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (commands.make_delay, (0, 0, 0, 20), "delay_ns must be from 1 to 10000000000, not 0"),
        (commands.make_delay, (-1, 1, 0, 20), "rank must be from 0 to 4095, not -1"),
        (commands.make_delay, (0, 60_000_001, 0, 1000), "must be 60000000000 ns at most, not 60000001000"),
        (commands.make_trial, (KNOB, 3, 20), "accumulation must be one of 1, 2, 4, 8, not 3"),
        (commands.make, ("capture", {"steps": 101}), "from 1 to 100, not 101"),
        (commands.make, ("capture", {"steps": 1, "folder": 2}), "takes exactly: steps"),
        (
            commands.make,
            ("exec", {"steps": 1}),
            "there is no such command; there is: capture, set",
        ),
        (commands.make_setting, (BUCKET_CAP_MB, 10_001), "must be from 1 to 10000, not 10001"),
        (commands.make_setting, (replace(BUCKET_CAP_MB, name="b" * 65), 5), "cannot be a knob's name"),
    ],
)
def test_command_out_of_bounds_is_not_made(make, arguments, words):
    with pytest.raises(ValueError, match=words):
        make(*arguments)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"knob": "a b"}, "cannot be a knob's name"),
        ({"name": "restore"}, "restore takes exactly: no argument"),
        ({"name": "capture"}, "capture is not about a knob"),
        ({"name": "trial"}, "takes exactly: value, steps"),
    ],
)
def test_the_codec_lets_no_other_change_through(changes, words):
    with pytest.raises(WireError, match=words):
        encode(replace(commands.make_setting(BUCKET_CAP_MB, 50), **changes))

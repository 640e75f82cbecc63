"""What is encoded decodes to the same; what nobody encoded is refused, cheaply."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from overlaptop.wire import codec, commands, relaying
from overlaptop.wire.bounds import BOUNDS, MAX_DURATION_NS
from overlaptop.wire.codec import FrameReader, WireError, decode, encode, frame
from overlaptop.wire.devices import (
    LINK_KINDS,
    NUMA_STATES,
    DeviceFacts,
    DeviceSample,
    GpuLink,
    GpuSite,
    MachineFacts,
    Nic,
    NodeShare,
    NumaFacts,
    NumaNode,
    Unknown,
)
from overlaptop.wire.knobs import GradientFacts, Knob, KnobFacts, Search
from overlaptop.wire.messages import (
    LOST,
    OUTCOME_STATES,
    PHASES,
    REPORT_STATES,
    SOURCES,
    Argument,
    CollectiveSpan,
    Command,
    CommandOutcome,
    CommandReport,
    HubStatus,
    Join,
    Message,
    Notice,
    PhaseSpan,
    RankEnd,
    RankInfo,
    RankOutcome,
    StepDetail,
    StepTotals,
    TurnedAway,
    Watch,
    Welcome,
)

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
WHOLE = {name: st.integers(*limits) for name, limits in BOUNDS.items()}
ranks = st.integers(0, codec.MAX_RANK)
text = st.text(max_size=40)
offsets = WHOLE["OffsetNs"]
spans = st.lists(st.tuples(offsets, offsets), max_size=20).map(lambda pairs: tuple(sum(pairs, ())))
BY_ANNOTATION = {
    **WHOLE,
    **{f"{name} | None": st.none() | whole for name, whole in WHOLE.items()},
    "int": int64,
    "int | None": st.none() | int64,
    "bool": st.booleans(),
    "str": text,
    "float | None": st.none() | st.floats(0.0, 1.0),
    "tuple[int, ...]": spans,
    "tuple[str, ...] | None": st.none() | st.lists(text, max_size=5).map(tuple),
}
BY_NAME = {
    "rank": ranks,
    "local_rank": ranks,
    "world_size": ranks,
    "source": st.sampled_from(SOURCES),
    "level": st.sampled_from(codec.NOTICE_LEVELS),
    "state": st.sampled_from(REPORT_STATES),
    "reported": st.sampled_from(OUTCOME_STATES),
    "lost": st.sampled_from(LOST),
    "detail_ranks": st.lists(ranks, max_size=20).map(tuple),
    "silent_ranks": st.lists(ranks, max_size=20).map(tuple),
}


def built(cls, **named):
    for field in dataclasses.fields(cls):
        if field.name not in named:
            named[field.name] = BY_NAME.get(field.name, BY_ANNOTATION.get(field.type))
    return st.builds(cls, **named)


def several(strategy):
    return st.lists(strategy, max_size=5).map(tuple)


@st.composite
def allowed_steps(draw):
    """Parts that make the step; its lanes are what they say of it, or are not known."""
    most = MAX_DURATION_NS // 5
    hidden, exposed, compute_only, copy_only, idle = (draw(st.integers(0, most)) for _ in range(5))
    step_ns = max(1, hidden + exposed + compute_only + copy_only + idle)
    lanes = {
        "compute_ns": st.just(hidden + compute_only),
        "comm_ns": st.just(hidden + exposed),
        "hidden_ns": st.just(hidden),
        "exposed_ns": st.just(exposed),
        "compute_only_ns": st.just(compute_only),
        "copy_only_ns": st.just(copy_only),
        "idle_ns": st.just(idle),
        "stall_ns": st.integers(0, step_ns),
    }
    if draw(st.booleans()):
        lanes = dict.fromkeys(lanes, st.none())
    return draw(built(StepTotals, step_ns=st.just(step_ns), **lanes))


@st.composite
def allowed_commands(draw):
    name = draw(st.sampled_from(list(commands.COMMANDS)))
    arguments = [
        Argument(key, draw(st.integers(bounds.least, bounds.most)))
        for key, bounds in commands.COMMANDS[name].items()
    ]
    knob = draw(knob_names) if name in commands.CHANGES else ""
    order = tuple(draw(st.permutations(arguments)))
    made = (draw(ids), name, order, draw(text), draw(WHOLE["UnixNs"]), knob, draw(st.just("") | ids))
    return Command(*made)


@st.composite
def allowed_knobs(draw):
    least, most = sorted((draw(values), draw(values)))
    made = built(Knob, name=knob_names, least=st.just(least), most=st.just(most), choices=several(values))
    return draw(made)


ids = st.text("0123456789abcdefghijklmnopqrstuvwxyz-", min_size=8, max_size=40)
knob_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,63}", fullmatch=True)
job_keys = st.text("0123456789abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=40)
remote_jobs = built(relaying.RemoteJob, job=job_keys, rank_pids=several(int64))
values = st.integers(commands.VALUES.least, commands.VALUES.most)
unknown = several(built(Unknown))
shares = several(built(NodeShare))
MESSAGES = {
    StepDetail: built(
        StepDetail,
        phases=several(built(PhaseSpan, name=st.sampled_from(PHASES))),
        collectives=several(built(CollectiveSpan)),
    ),
    Command: allowed_commands(),
    MachineFacts: built(
        MachineFacts,
        numa_nodes=several(built(NumaNode)),
        nics=several(built(Nic)),
        gpus=several(built(GpuSite)),
        unknown=unknown,
    ),
    DeviceFacts: built(
        DeviceFacts, links=several(built(GpuLink, kind=st.sampled_from(LINK_KINDS))), unknown=unknown
    ),
    NumaFacts: built(
        NumaFacts,
        state=st.sampled_from(NUMA_STATES),
        cpu_nodes=shares,
        threads_by_node=shares,
        memory_by_node=shares,
        unknown=unknown,
    ),
    DeviceSample: built(DeviceSample, unknown=unknown),
    KnobFacts: built(KnobFacts, knobs=several(allowed_knobs())),
    GradientFacts: built(GradientFacts, size_bytes=several(st.integers(0, (1 << 63) - 1))),
    relaying.RelayJobs: built(relaying.RelayJobs, jobs=several(remote_jobs)),
    relaying.RelaySelect: built(relaying.RelaySelect, job=st.just("") | job_keys),
    relaying.RelayLimit: built(
        relaying.RelayLimit,
        bytes_per_s=st.integers(0, relaying.MAX_BYTES_PER_S),
        hz=st.floats(0.0, relaying.MAX_HZ),
    ),
    relaying.RelayLaunch: built(
        relaying.RelayLaunch,
        words=several(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=9)),
        nproc=st.none() | st.integers(1, relaying.MAX_NPROC),
        owner=st.just("") | st.text("0123456789abcdef", min_size=16, max_size=16),
    ),
    relaying.RelayLaunchStatus: built(
        relaying.RelayLaunchStatus,
        phase=st.sampled_from(relaying.LAUNCH_PHASES),
        output=several(text),
    ),
    Search: built(Search, id=ids, knob=knob_names, undo_value=st.none() | values),
    StepTotals: allowed_steps(),
    **{
        cls: built(cls)
        for cls in (
            RankInfo,
            Notice,
            RankEnd,
            Watch,
            Join,
            Welcome,
            HubStatus,
            CommandReport,
            TurnedAway,
            relaying.RelayHello,
            relaying.RelayLink,
            relaying.RelayPing,
            relaying.RelayPong,
        )
    },
}
MESSAGES[CommandOutcome] = built(CommandOutcome, ranks=several(built(RankOutcome)))
messages = st.one_of(*MESSAGES.values())

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | text | st.binary(),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(text, inner, max_size=4),
    max_leaves=40,
)

STEP = StepTotals(3, 7, 1, 5, 2, 2, *[1] * 12)
COMMAND = Command("20260101-000000-abcdef", "capture", (Argument("steps", 5),), "me@here, pid 1", 1)
REPORT = CommandReport(0, COMMAND.id, "capture", 1, "written", 7, "/there/rank0.json.gz")
OUTCOME = CommandOutcome(
    COMMAND.id, "written", "", 7, True, (RankOutcome(0, "written", "written", "/there/rank0.json.gz"),)
)
MACHINE = MachineFacts(0, "gpu-a", (NumaNode(0, "0-31", 1 << 36),), (Nic("mlx5_0", 0, None),), ())
DEVICE = DeviceFacts(
    0, "GPU-1", "NVIDIA H200", "0000:1b:00.0", "4.0", 18, 450_000_000_000, 5, 5, 16, 16, 63_000_000_000,
    1 << 37, 700_000, 1_980_000_000, 3_201_000_000, (GpuLink("nvswitch", "", 18, ""),),
)  # fmt: skip
NUMA = NumaFacts(
    0, 0, None, "mlx5_0", 0, "0-31", (NodeShare(0, 32),), (), "default", (), "bound", "near", "", "",
)  # fmt: skip
SAMPLE = DeviceSample(
    0, 1, 281_000_000_000, None, 0, 0, 0.94, 0.5, 1.0, 1 << 36, 650_000, 1_700_000_000, None,
    ("power cap",), (Unknown("nvlink_tx_bytes_per_s", "not supported"),),
)  # fmt: skip
KNOB_ROW = ("bucket_cap_mb", 25, "25", "25", 1, 10_000)
KNOBS = KnobFacts(0, (Knob(*KNOB_ROW),))
GRADIENTS = GradientFacts(0, (4, 8), 2, "0", None)
SEARCH = Search(COMMAND.id, "me@here, pid 1", "bucket_cap_mb", 25)
DETAIL = StepDetail(0, 1, 0, 100, (PhaseSpan("forward", 0, 9),), (0, 5), (), (), (), ())


def decodes_or_refuses(data):
    """The contract of decode, for any bytes."""
    try:
        message = decode(data)
    except WireError:
        return
    assert isinstance(message, Message)
    assert decode(encode(message)) == message


def test_every_message_is_covered_here():
    assert set(MESSAGES) == set(Message.__args__)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_a_message_decodes_to_itself(cls):
    @settings(max_examples=40, deadline=None)
    @given(MESSAGES[cls])
    def check(message):
        data = encode(message)
        assert decode(data) == message
        assert len(data) <= codec.MAX_FRAME_BYTES

    check()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
@example(b"")
@example(b"\x91" * 200_000)
@example(b"\x81\x91\x01\x01")
@example(b"\xc7\x0c\xff" + b"\xff" * 12)
@example(b"\xd6\xff\x00\x00\x00\x00")
@example(b"\xa1\xff")
def test_arbitrary_bytes_are_a_message_or_refused(data):
    decodes_or_refuses(data)


@settings(max_examples=200, deadline=None)
@given(plain)
def test_arbitrary_msgpack_is_a_message_or_refused(value):
    decodes_or_refuses(msgpack.packb(value))


@settings(max_examples=100, deadline=None)
@given(st.integers(-1, 16), st.lists(plain, max_size=24))
def test_arbitrary_fields_behind_a_tag_are_a_message_or_refused(tag, fields):
    decodes_or_refuses(msgpack.packb([tag, *fields]))


@settings(max_examples=300, deadline=None)
@given(messages, st.data())
def test_a_mutated_message_is_a_message_or_refused(message, data):
    mutated = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated) - 1))
        match data.draw(st.sampled_from(("flip", "cut", "insert", "end"))):
            case "flip":
                mutated[at] ^= data.draw(st.integers(1, 255))
            case "cut" if len(mutated) > 1:
                del mutated[at]
            case "insert":
                mutated.insert(at, data.draw(st.integers(0, 255)))
            case "end" if at:
                del mutated[at:]
    decodes_or_refuses(bytes(mutated))


@settings(max_examples=200, deadline=None)
@given(messages, st.data())
def test_a_message_with_one_field_replaced_is_a_message_or_refused(message, data):
    row = msgpack.unpackb(encode(message))
    row[data.draw(st.integers(0, len(row) - 1))] = data.draw(plain)
    decodes_or_refuses(msgpack.packb(row))


@settings(max_examples=100, deadline=None)
@given(messages, st.lists(plain, min_size=1, max_size=3))
def test_fields_that_a_newer_peer_adds_are_ignored(message, added):
    row = msgpack.unpackb(encode(message))
    assert decode(msgpack.packb([*row, *added])) == message


def row_of(message, **changed):
    """The message's bytes with some fields replaced by what encode would refuse."""
    names = [field.name for field in dataclasses.fields(message)]
    row = msgpack.unpackb(encode(message))
    for name, value in changed.items():
        row[1 + names.index(name)] = value
    return msgpack.packb(row)


@pytest.mark.parametrize(
    ("message", "changed", "words"),
    [
        (STEP, {"step_ns": 1 << 63}, "StepTotals.step_ns: expected an integer from 1 to"),
        (STEP, {"step_ns": None}, "StepTotals.step_ns"),
        (STEP, {"step_ns": True}, "StepTotals.step_ns"),
        (STEP, {"comm_ns": 1.5}, "StepTotals.comm_ns"),
        (STEP, {"rank": -1}, "StepTotals.rank"),
        (STEP, {"rank": codec.MAX_RANK + 1}, "StepTotals.rank"),
        (DETAIL, {"compute_spans_ns": (1, 2, 3)}, "odd number"),
        (DETAIL, {"comm_spans_ns": (0, 1) * 4097}, "not msgpack within bounds"),
        (DETAIL, {"collectives": (("a", 1, "", True, 0, 1),) * 4097}, "at most 4096"),
        (DETAIL, {"phases": (("forward", 0, 1),) * 1025}, "at most 1024"),
        (DETAIL, {"phases": (("sideways", 0, 1),)}, "PhaseSpan.name: expected one of forward"),
        (DETAIL, {"phases": (("forward", 0),)}, "PhaseSpan: expected 3 fields"),
        (DETAIL, {"phases": 7}, "StepDetail.phases"),
        (Notice(0, 1, "info", ""), {"level": "fatal"}, "Notice.level"),
        (Notice(0, 1, "info", ""), {"text": "x" * 4097}, "Notice.text: expected text of at most 4096"),
        (Notice(0, 1, "info", ""), {"text": b"x"}, "Notice.text"),
        (Watch(detail=True), {"detail": 1}, "Watch.detail"),
        (Join(1, ()), {"detail_ranks": (-1,)}, "Join.detail_ranks"),
        (Join(1, ()), {"detail_ranks": (1,) * 5000}, "Join.detail_ranks"),
        (COMMAND, {"name": "rm"}, "Command: there is no such command; there is: capture"),
        (COMMAND, {"id": "../../etc/passwd"}, "Command: its id is not 8 to 40"),
        (COMMAND, {"id": "ABCDEFGHIJ"}, "Command: its id is not"),
        (COMMAND, {"id": "12345678\n"}, "Command: its id is not"),
        (COMMAND, {"by": "x" * 201}, "Command: who asks is named in more than 200"),
        (COMMAND, {"arguments": ()}, "Command: capture takes exactly: steps"),
        (COMMAND, {"arguments": (("steps", 0),)}, "Command: steps must be from 1 to 100, not 0"),
        (COMMAND, {"arguments": (("steps", 101),)}, "Command: steps must be from 1 to 100, not 101"),
        (COMMAND, {"arguments": (("steps", True),)}, "Argument.value"),
        (COMMAND, {"arguments": (("steps", 5.0),)}, "Argument.value"),
        (COMMAND, {"arguments": (("steps", 5), ("steps", 6))}, "capture takes exactly"),
        (COMMAND, {"arguments": (("folder", 5),)}, "capture takes exactly"),
        (COMMAND, {"arguments": (("steps", 5),) * 9}, "at most 8"),
        (REPORT, {"state": "done"}, "CommandReport.state: expected one of accepted"),
        (REPORT, {"rank": -1}, "CommandReport.rank"),
        (KNOBS, {"knobs": (KNOB_ROW,) * 65}, "KnobFacts.knobs: .* at most 64"),
        (KNOBS, {"knobs": (("a b", *KNOB_ROW[1:]),)}, "Knob: 'a b' cannot be a knob's name"),
        (KNOBS, {"knobs": ((*KNOB_ROW[:4], 9, 8),)}, "Knob: its values cannot be from 9 to 8"),
        (KNOBS, {"knobs": ((*KNOB_ROW[:4], 1, 1 << 32),)}, "Knob: its values cannot be from 1 to"),
        (KNOBS, {"knobs": ((*KNOB_ROW[:4], 1, 8, (1,) * 257),)}, "Knob.choices: .* at most 256"),
        (KNOBS, {"knobs": ((*KNOB_ROW[:4], 1, 8, (1 << 40,)),)}, "Knob: one of its choices"),
        (KNOBS, {"knobs": (KNOB_ROW[:5],)}, "Knob: expected 6 fields"),
        (KNOBS, {"knobs": ((*KNOB_ROW[:1], 2.5, *KNOB_ROW[2:]),)}, "Knob.value"),
        (GRADIENTS, {"size_bytes": (-1,)}, "GradientFacts.size_bytes: expected an integer from 0 to"),
        (GRADIENTS, {"size_bytes": (1,) * 8193}, "not msgpack within bounds"),
        (GRADIENTS, {"world_size": -1}, "GradientFacts.world_size"),
        (SEARCH, {"id": "../x"}, "Search: its id is not 8 to 40"),
        (SEARCH, {"by": "x" * 201}, "Search: who searches is named in more than 200"),
        (SEARCH, {"knob": "os.system"}, "Search: 'os.system' cannot be a knob's name"),
        (SEARCH, {"undo_value": 1 << 40}, "Search: it cannot go back to"),
        (SEARCH, {"over": 1}, "Search.over"),
        (STEP, {"step_ns": 0}, "StepTotals.step_ns: expected an integer from 1 to"),
        (STEP, {"step_ns": -1}, "StepTotals.step_ns"),
        (STEP, {"step_ns": MAX_DURATION_NS + 1}, "StepTotals.step_ns"),
        (STEP, {"idle_ns": -1}, "StepTotals.idle_ns: expected an integer from 0 to"),
        (STEP, {"step": -1}, "StepTotals.step: "),
        (STEP, {"start_ns": -1}, "StepTotals.start_ns"),
        (STEP, {"collectives": -1}, "StepTotals.collectives"),
        (STEP, {"idle_ns": 5}, "StepTotals: its parts are longer than the 5 ns of the step"),
        (STEP, {"stall_ns": 6}, "StepTotals: a lane is longer than the 5 ns of the step"),
        (
            STEP,
            {"hidden_ns": 3, "idle_ns": 0, "copy_only_ns": 0},
            "StepTotals: more communication is hidden",
        ),
        (DETAIL, {"step_ns": 0}, "StepDetail.step_ns"),
        (DETAIL, {"compute_spans_ns": (0, 1 << 60)}, "StepDetail.compute_spans_ns"),
        (DETAIL, {"phases": (("forward", 0, 1 << 60),)}, "PhaseSpan.end_ns"),
        (SAMPLE, {"sm_activity": 1.01}, "DeviceSample.sm_activity: expected a share from 0.0 to 1.0"),
        (SAMPLE, {"tensor_activity": -0.01}, "DeviceSample.tensor_activity: expected a share"),
        (SAMPLE, {"dram_activity": math.nan}, "DeviceSample.dram_activity: expected a share"),
        (SAMPLE, {"dram_activity": math.inf}, "DeviceSample.dram_activity: expected a share"),
        (SAMPLE, {"dram_activity": 1}, "DeviceSample.dram_activity: expected a share"),
        (SAMPLE, {"power_mw": 1.5}, "DeviceSample.power_mw"),
        (SAMPLE, {"throttle_reasons": ("hot",) * 33}, "DeviceSample.throttle_reasons: .* at most 32"),
        (SAMPLE, {"throttle_reasons": (7,)}, "DeviceSample.throttle_reasons: expected text"),
        (SAMPLE, {"throttle_reasons": "hot"}, "DeviceSample.throttle_reasons: expected a list"),
        (SAMPLE, {"unknown": (("a", "b"),) * 33}, "DeviceSample.unknown: .* at most 32"),
        (SAMPLE, {"unknown": (("a",),)}, "DeviceSample.unknown: Unknown: expected 2 fields"),
        (MACHINE, {"numa_nodes": ((0, "0", 1),) * 257}, "MachineFacts.numa_nodes: .* at most 256"),
        (MACHINE, {"nics": (("eth0", None, None),) * 257}, "MachineFacts.nics: .* at most 256"),
        (MACHINE, {"nics": (("eth0", "zero", None),)}, "Nic.numa_node"),
        (MACHINE, {"gpus": ((0, "", "", "", None),) * 257}, "MachineFacts.gpus: .* at most 256"),
        (DEVICE, {"links": (("pcie", "GPU-2", None, "PIX"),) * 257}, "DeviceFacts.links: .* at most 256"),
        (DEVICE, {"links": (("wifi", "", None, ""),)}, "GpuLink.kind: expected one of nvlink"),
        (DEVICE, {"nvlink_count": 1 << 63}, "DeviceFacts.nvlink_count"),
        (NUMA, {"state": "fine"}, "NumaFacts.state: expected one of bound"),
        (NUMA, {"memory_by_node": ((0, 1),) * 257}, "NumaFacts.memory_by_node: .* at most 256"),
        (NUMA, {"cpu_set": "0," * 3000}, "NumaFacts.cpu_set: expected text of at most 4096"),
        (NUMA, {"rank": codec.MAX_RANK + 1}, "NumaFacts.rank"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_its_name(message, changed, words):
    with pytest.raises(WireError, match=words):
        decode(row_of(message, **changed))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (msgpack.packb([99, 1]), "unknown message type int 99"),
        (msgpack.packb([]), "begins with a tag"),
        (
            msgpack.packb([10, COMMAND.id, "set_bucket_cap_mb", [["mb", 50]], "me@here", 1]),  # protocol 3
            "there is no such command; there is: capture, set, restore",
        ),
        (msgpack.packb([2, 1]), "StepTotals: expected 18 fields"),
        (msgpack.packb({"tag": 1}), "begins with a tag"),
        (b"\0" * (codec.MAX_FRAME_BYTES + 1), "are over"),
    ],
)
def test_what_is_no_message_is_refused(data, words):
    with pytest.raises(WireError, match=words):
        decode(data)


BOMBS = {
    "arrays in arrays": b"\x91" * codec.MAX_FRAME_BYTES,
    "an array said to be endless": b"\xdd\xff\xff\xff\xff",
    "a text said to be endless": b"\x92\x04\xdb\xff\xff\xff\xff",
    "many empty maps": (b"\xdc\x20\x00" + b"\x80" * 8192) * 100,
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


@pytest.mark.parametrize(
    "message",
    [
        dataclasses.replace(STEP, step_ns=1 << 63),
        dataclasses.replace(STEP, step_ns=10**6000),
        dataclasses.replace(STEP, comm_ns=1.0),
        dataclasses.replace(COMMAND, name="rm"),
        dataclasses.replace(COMMAND, arguments=(Argument("steps", 101),)),
        dataclasses.replace(COMMAND, arguments=(("steps", 5),)),
        dataclasses.replace(REPORT, state="done"),
        dataclasses.replace(SAMPLE, sm_activity=1.0000001),
        dataclasses.replace(SAMPLE, sm_activity=math.nan),
        dataclasses.replace(SAMPLE, sm_activity=np.float64(0.5)),
        dataclasses.replace(SAMPLE, throttle_reasons=["hot"]),
        dataclasses.replace(DEVICE, links=(GpuLink("wifi", "", None, ""),)),
        dataclasses.replace(DEVICE, links=(GpuLink("pcie", "", None, ""),) * 257),
        dataclasses.replace(NUMA, state="fine"),
        dataclasses.replace(NUMA, cpu_nodes=((0, 32),)),
        dataclasses.replace(DETAIL, compute_spans_ns=(1,)),
        dataclasses.replace(DETAIL, compute_spans_ns=[1, 2]),
        dataclasses.replace(DETAIL, phases=(("forward", 0, 1),)),
        dataclasses.replace(DETAIL, collectives=(CollectiveSpan("x" * 400, 0, "", True, 0, 1),) * 4096),
        "a text",
        PhaseSpan("forward", 0, 1),
    ],
)
def test_what_decode_would_refuse_is_not_encoded(message):
    with pytest.raises(WireError):
        encode(message)


def test_a_wrong_value_is_named_without_being_printed():
    class Tensor:
        def __repr__(self):
            raise AssertionError("the repr of a tensor waits for its device")

    with pytest.raises(WireError, match=r"StepTotals.step_ns: .*Tensor"):
        encode(dataclasses.replace(STEP, step_ns=Tensor()))


def test_text_that_is_too_long_or_not_unicode_is_sent_as_well_as_it_can_be():
    notice = decode(encode(Notice(0, 1, "error", "\udc80" + "x" * 5000)))
    assert notice.text == "?" + "x" * 4094 + "…"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=10), st.data())
def test_frames_come_out_as_they_went_in_however_the_stream_was_cut(payloads, data):
    stream = b"".join(map(frame, payloads))
    reader, heard = FrameReader(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        heard += reader.feed(stream[:size])
        stream = stream[size:]
    assert heard == payloads


def test_the_longest_frame_passes_and_a_longer_one_is_refused():
    longest = bytes(codec.MAX_FRAME_BYTES)
    assert FrameReader().feed(frame(longest)) == [longest]
    with pytest.raises(WireError):
        frame(longest + b"\0")
    with pytest.raises(WireError):
        FrameReader().feed((codec.MAX_FRAME_BYTES + 1).to_bytes(4, "big"))

"""Torch's flight recorder: its entries as launches of NCCL, and a dump that is no more than values."""

from __future__ import annotations

import os
import pickle

import pytest
from torch._C import _distributed_c10d

from overlaptop.agent.sources.flight_recorder import FlightRecorder, FlightRecorderError, launches_of

from .recordings import RECORDED, recording

GROUPS = {
    "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
    "1": {"name": "1", "desc": "mine", "ranks": "[1]"},
}


def entry(
    name, seq=1, at_ns=100, *, sizes=((4,),), out=None, dtype="Float", group="0", p2p=False, record=0
):
    """One operation as the flight recorder tells of it."""
    outputs = sizes if out is None else out
    return {
        "record_id": record,
        "process_group": (group, GROUPS.get(group, {}).get("desc", "")),
        "collective_seq_id": 0 if p2p else seq,
        "p2p_seq_id": seq if p2p else 0,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": at_ns,
        "input_sizes": [list(each) for each in sizes],
        "input_dtypes": [dtype] * len(sizes),
        "output_sizes": [list(each) for each in outputs],
        "output_dtypes": [dtype] * len(outputs),
        "is_p2p": p2p,
    }


def told(entries):
    return [(each.call.op, each.call.bytes, each.unix_ns) for each in launches_of(entries, GROUPS)]


@pytest.mark.parametrize("name", RECORDED)
def test_each_recorded_entry_is_a_launch(name):
    burst = recording(name)
    launches = burst.launches()
    assert [each.unix_ns for each in launches] == [one["time_created_ns"] for one in burst.entries]
    assert {each.call.group for each in launches} == {"0 default_pg"}
    assert not any(each.call.coalesced for each in launches)


@pytest.mark.parametrize(
    ("name", "kernels", "several"),
    [
        ("all_reduce", {"AllReduce"}, False),
        ("all_reduce_barrier", {"AllReduce"}, False),
        ("_all_gather_base", {"AllGather"}, False),
        ("all_gather", {"AllGather"}, False),
        ("_reduce_scatter_base", {"ReduceScatter"}, False),
        ("reduce_scatter", {"ReduceScatter"}, False),
        ("broadcast", {"Broadcast"}, False),
        ("_broadcast_oop", {"Broadcast"}, False),
        ("reduce", {"Reduce"}, False),
        ("_reduce_oop", {"Reduce"}, False),
        ("send 0->1", {"SendRecv"}, False),
        ("recv 0<-1", {"SendRecv"}, False),
        ("all_to_all", {"SendRecv"}, True),
        ("gather", {"SendRecv"}, True),
        ("scatter", {"SendRecv"}, True),
        ("all_gather_into_tensor_coalesced", {"AllGather"}, True),
        ("reduce_scatter_tensor_coalesced", {"ReduceScatter"}, True),
        ("allreduce_coalesced", {"AllReduce"}, True),
    ],
)
def test_an_operations_name_tells_its_kernels_and_whether_they_may_be_several(name, kernels, several):
    [launch] = launches_of([entry(name)], GROUPS)
    assert kernels <= set(launch.collectives)
    assert launch.several is several
    assert launch.call.op == name.partition(" ")[0]


def test_bytes_are_those_of_the_larger_side():
    assert told(
        [
            entry("_all_gather_base", 1, sizes=[(8,)], out=[(16,)], dtype="BFloat16"),
            entry("_reduce_scatter_base", 2, sizes=[(6, 2)], out=[(6,)], dtype="Double"),
            entry("all_to_all", 3, sizes=[(2,), (3,)], out=[(4,)], dtype="Byte"),
            entry("all_reduce", 4, sizes=[()], dtype="Long"),
        ]
    ) == [
        ("_all_gather_base", 32, 100),
        ("_reduce_scatter_base", 96, 100),
        ("all_to_all", 5, 100),
        ("all_reduce", 8, 100),
    ]


def test_operations_on_nothing_and_those_of_a_rank_alone_launch_nothing():
    assert told(
        [
            entry("all_reduce", 1, sizes=[(0,)]),
            entry("all_reduce", 2, sizes=[(4, 0, 3)]),
            entry("all_reduce", 3, group="1"),
            entry("broadcast", 4, at_ns=7),
        ]
    ) == [("broadcast", 16, 7)]


def test_a_group_that_nobody_configured_counts_as_one_of_several_ranks():
    assert told([entry("all_reduce", group="77")]) == [("all_reduce", 16, 100)]
    [launch] = launches_of([entry("all_reduce", group="77")], {})
    assert launch.call.group == "77"


def test_coalesced_operations_are_one_launch_issued_when_they_are_sent_off():
    log = [
        entry("all_reduce", 1, 10),
        entry("_all_gather_base", 2, 20, out=[(8,)]),
        entry("_all_gather_base", 2, 21, out=[(8,)]),
        entry("_reduce_scatter_base", 2, 22),
        entry("coalesced", 2, 23, sizes=(), out=()),
        entry("all_reduce", 3, 30),
    ]
    assert told(log) == [
        ("all_reduce", 16, 10),
        ("coalesced _all_gather_base+_reduce_scatter_base", 32 + 32 + 16, 23),
        ("all_reduce", 16, 30),
    ]
    [_, together, _] = launches_of(log, GROUPS)
    assert together.several
    assert together.call.coalesced
    assert set(together.collectives) == {"AllGather", "ReduceScatter"}


def test_coalesced_point_to_point_operations_are_told_from_collectives_of_the_same_number():
    assert told(
        [
            entry("send 0->1", 5, 10, p2p=True),
            entry("recv 0<-1", 5, 11, p2p=True),
            entry("coalesced", 5, 12, sizes=(), out=(), p2p=True),
            entry("all_reduce", 5, 13),
        ]
    ) == [("coalesced recv+send", 32, 12), ("all_reduce", 16, 13)]


def test_a_send_of_its_own_is_one_launch():
    log = [entry("send 0->1", 5, 10, p2p=True), entry("recv 0<-1", 6, 11, p2p=True)]
    assert told(log) == [("send", 16, 10), ("recv", 16, 11)]


@pytest.mark.parametrize(
    "parts", [[], [entry("_all_gather_base", 2, 20, sizes=[(0,)])]], ids=["no parts", "parts of nothing"]
)
def test_a_coalesced_launch_of_nothing_launches_nothing(parts):
    assert told([*parts, entry("coalesced", 2, 23, sizes=(), out=())]) == []


def test_coalesced_operations_of_a_rank_alone_launch_nothing():
    log = [
        entry("_all_gather_base", 2, 20, group="1"),
        entry("coalesced", 2, 23, sizes=(), out=(), group="1"),
        entry("all_reduce", 2, 30),
    ]
    assert told(log) == [("all_reduce", 16, 30)]


# Bytes on the links.


def links(entries, near=True, groups=GROUPS):
    asked = []

    def on_this_node(ranks):
        asked.append(ranks)
        return near

    told = [each.call.link for each in launches_of(entries, groups, on_this_node)]
    assert asked == [[0, 1], [1]][: len(groups)]
    return told


def test_each_launch_tells_what_the_rank_sends_and_receives_in_it():
    assert links(
        [
            entry("all_reduce", 1, sizes=[(1000,)]),
            entry("_all_gather_base", 2, sizes=[(8,)], out=[(16,)]),
            entry("_reduce_scatter_base", 3, sizes=[(16,)], out=[(8,)]),
            entry("send 0->1", 4, p2p=True),
            entry("recv 0<-1", 5, p2p=True),
        ]
    ) == [(4000, 4000), (32, 32), (32, 32), (16, 0), (0, 16)]


def test_a_launch_of_several_operations_sums_what_each_moves():
    """The bytes of a send and of a receive in one sum could not be told apart any more."""
    assert links(
        [
            entry("send 0->1", 5, 10, sizes=[(100,)], p2p=True),
            entry("recv 0<-1", 5, 11, sizes=[(10,)], p2p=True),
            entry("coalesced", 5, 12, sizes=(), out=(), p2p=True),
        ]
    ) == [(400, 40)]


@pytest.mark.parametrize("near", [False, None])
def test_a_group_that_is_not_known_to_be_on_this_node_leaves_the_links_unknown(near):
    assert links([entry("all_reduce")], near) == [None]


def test_a_group_whose_ranks_are_not_told_leaves_the_links_unknown(monkeypatch):
    """Zero bytes would be a claim."""
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    [launch] = launches_of([entry("all_reduce")], {"0": {"name": "0", "desc": "", "ranks": "[]"}})
    assert launch.call.link is None


def test_unknown_groups_types_and_operations_leave_the_links_unknown():
    log = [
        entry("all_reduce", 1, group="77"),
        entry("all_reduce", 2, dtype="Float3_e1m1"),
        entry("gather", 3),
    ]
    assert links(log) == [None, None, None]


# The dump.


class Dump:
    """Stands where torch's dump function does."""

    def __init__(self, content):
        self.content = content
        self.asked = []

    def __call__(self, **options):
        self.asked.append(options)
        return self.content if isinstance(self.content, bytes) else pickle.dumps(self.content, protocol=2)


@pytest.fixture
def dumping(monkeypatch):
    """A recorder that gives this content."""

    def recorder(content):
        dump = Dump(content)
        monkeypatch.setattr(_distributed_c10d, "_dump_nccl_trace", dump, raising=False)
        return FlightRecorder(), dump

    return recorder


def content(*entries):
    return {"version": "2.10", "pg_config": GROUPS, "entries": list(entries)}


def test_a_dump_is_asked_for_without_stack_traces(dumping):
    recorder, dump = dumping(content(entry("all_reduce")))
    recorder.read(0)
    assert dump.asked == [{"includeCollectives": True, "includeStackTraces": False, "onlyActive": False}]


def test_what_was_issued_since_then_is_read(dumping):
    log = [entry("all_reduce", seq, 10 * seq, record=seq) for seq in range(5)]
    recorder, _ = dumping(content(*log))
    launches = recorder.read(20)
    assert launches is not None
    assert [each.unix_ns for each in launches] == [20, 30, 40]


def test_a_ring_that_no_longer_goes_back_so_far_is_not_read(dumping):
    log = [entry("all_reduce", seq, 10 * seq, record=seq) for seq in range(3, 6)]
    recorder, _ = dumping(content(*log))
    assert recorder.read(29) is None
    launches = recorder.read(30)
    assert launches is not None
    assert len(launches) == 3


def test_a_ring_that_never_ran_over_goes_back_to_the_first_collective_of_all(dumping):
    recorder, _ = dumping(content(entry("all_reduce", 1, 50, record=0)))
    launches = recorder.read(10)
    assert launches is not None
    assert len(launches) == 1


def test_a_flight_recorder_that_is_switched_off_says_so(dumping):
    """TORCH_FR_BUFFER_SIZE=0: it hands out a dump without entries, though NCCL's kernels are seen."""
    recorder, _ = dumping(content())
    with pytest.raises(FlightRecorderError, match="off"):
        recorder.read(0)


def test_a_torch_without_one_is_refused(monkeypatch):
    monkeypatch.delattr(_distributed_c10d, "_dump_nccl_trace", raising=False)
    with pytest.raises(FlightRecorderError, match="this torch has no flight recorder for NCCL"):
        FlightRecorder()


def test_a_type_of_unknown_size_leaves_the_bytes_unknown_and_the_launch_there():
    strange = entry("all_reduce", 1, dtype="Float3_e1m1")
    assert told([strange, entry("broadcast", 2)]) == [("all_reduce", None, 100), ("broadcast", 16, 100)]
    part = entry("_all_gather_base", 3, dtype="Float3_e1m1")
    together = entry("coalesced", 3, sizes=(), out=())
    assert told([part, entry("_all_gather_base", 3), together]) == [
        ("coalesced _all_gather_base", None, 100)
    ]


class Hostile:
    """Unpickled by a plain unpickler, it would make a folder."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return os.mkdir, (self._path,)


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: content(one), lambda one: {"entries": one}])
def test_a_dump_that_wants_to_run_something_is_refused_and_nothing_runs(dumping, tmp_path, wrap):
    target = tmp_path / "made"
    recorder, _ = dumping(pickle.dumps(wrap(Hostile(str(target)))))
    with pytest.raises(FlightRecorderError, match="has no place in it"):
        recorder.read(0)
    assert not target.exists()


def without(field):
    return {key: value for key, value in entry("all_reduce").items() if key != field}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x80",
        b".",
        b"0.",
        b"not a pickle",
        pickle.dumps(None),
        pickle.dumps([]),
        pickle.dumps({}),
        pickle.dumps({"entries": 3}),
        pickle.dumps(content(3)),
        pickle.dumps(content(entry("all_reduce")))[:-20],
        pickle.dumps(content(without("process_group"))),
        pickle.dumps(content(without("input_dtypes"))),
        pickle.dumps(content(entry("all_reduce") | {"process_group": ()})),
        pickle.dumps(content(entry("all_reduce") | {"process_group": ("0",)})),
        pickle.dumps(content(entry("all_reduce") | {"time_created_ns": None})),
        pickle.dumps(content(entry("all_reduce") | {"input_sizes": [["a"]]})),
        pickle.dumps(content(entry("all_reduce")) | {"pg_config": {"0": {"ranks": "0, 1"}}}),
    ],
)
def test_a_dump_that_is_not_understood_says_so(dumping, raw):
    recorder, _ = dumping(raw)
    with pytest.raises(FlightRecorderError, match="the flight recorder's dump is not understood"):
        recorder.read(0)

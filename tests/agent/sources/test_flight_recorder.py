"""Torch's flight recorder: its entries as launches of NCCL, and a dump that is no more than values."""

import os
import pickle

import pytest
from torch._C import _distributed_c10d

from overlaptop.agent.sources.flight_recorder import (
    FlightRecorder,
    FlightRecorderError,
    last_calls_of,
    launches_of,
)
from overlaptop.timeline.collectives import LinkBytes

GROUPS = {
    "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
    "1": {"name": "1", "desc": "mine", "ranks": "[1]"},
}
STRANGE = "Float3_e1m1"  # A type of unknown size


def entry(
    name,
    seq=1,
    at_ns=100,
    *,
    sizes=((4,),),
    out=None,
    dtype="Float",
    group="0",
    p2p=False,
    other=0,
    record=0,
):
    outputs = sizes if out is None else out
    return {
        "record_id": record,
        "process_group": (group, GROUPS.get(group, {}).get("desc", "")),
        "collective_seq_id": other if p2p else seq,
        "p2p_seq_id": seq if p2p else other,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": at_ns,
        "input_sizes": [list(each) for each in sizes],
        "input_dtypes": [dtype] * len(sizes),
        "output_sizes": [list(each) for each in outputs],
        "output_dtypes": [dtype] * len(outputs),
        "is_p2p": p2p,
    }


def coalesced(seq=2, at_ns=23, **fields):
    """The common launch of what has been coalesced. That of sends and receives is not called one."""
    return entry("coalesced", seq, at_ns, sizes=(), out=(), **fields) | {"is_p2p": False}


def test_the_last_collectives_of_each_group_say_how_far_they_are():
    states = ["completed"] * 9 + ["started", "scheduled"]
    entries = [{**entry("all_reduce", seq, seq), "state": state} for seq, state in enumerate(states, 1)]
    calls = last_calls_of([*entries, entry("send", 3, p2p=True, other=11), entry("barrier", 1, group="1")])
    assert [(each.sequence, each.state) for each in calls["0 default_pg"]] == [
        *((number, "ended") for number in range(4, 10)),
        (10, "started"),
        (11, "issued"),
    ]
    assert [each.op for each in calls["1 mine"]] == ["barrier"]


def test_entries_become_launches_in_order():
    log = [
        # The bytes of the larger side count.
        entry("_all_gather_base", 1, sizes=[(8,)], out=[(16,)], dtype="BFloat16"),
        entry("all_to_all", 2, sizes=[(2,), (3,)], out=[(4,)], dtype="Byte"),
        entry("all_reduce", 3, sizes=[()], dtype="Long"),
        entry("all_reduce", 4, dtype=STRANGE),
        # Operations on nothing and of a rank alone launch nothing.
        entry("all_reduce", 5, sizes=[(4, 0, 3)]),
        entry("all_reduce", 6, group="1"),
        # Coalesced operations are one launch when they are sent off.
        entry("_all_gather_base", 7, 20, out=[(8,)]),
        entry("_all_gather_base", 7, 21, out=[(8,)]),
        entry("_reduce_scatter_base", 7, 22),
        coalesced(7),
        # Point-to-point operations may have the number of a collective.
        entry("send 0->1", 8, 10, p2p=True),
        entry("recv 0<-1", 8, 11, p2p=True),
        coalesced(8, p2p=True),
        entry("all_reduce", 8, 30),
    ]
    launches = launches_of(log, GROUPS)
    assert [(each.op, each.bytes, each.issued_ns) for each in launches] == [
        ("_all_gather_base", 32, 100),
        ("all_to_all", 5, 100),
        ("all_reduce", 8, 100),
        ("all_reduce", None, 100),
        ("coalesced _all_gather_base+_reduce_scatter_base", 32 + 32 + 16, 23),
        ("coalesced recv+send", 32, 23),
        ("all_reduce", 16, 30),
    ]
    assert ["AllGather" in each.kernels for each in launches] == [True, *[False] * 3, True, False, False]
    assert [each.op for each in launches if each.coalesced and each.several] == [
        each.op for each in launches if each.op.startswith("coalesced")
    ]


def test_numbers_used_up_by_batches_are_left_out():
    log = [
        entry("all_reduce", 1),
        entry("all_reduce", 1, group="2"),
        entry("send 0->1", 0, p2p=True, other=2),
        coalesced(0, p2p=True, other=2),
        entry("all_reduce", 3),
    ]
    assert [each.sequence for each in launches_of(log, GROUPS)] == [None, 1, None, None]
    assert list(last_calls_of(log)) == ["2"]


def links(entries, nodes=1):
    return [each.link for each in launches_of(entries, GROUPS, lambda ranks: nodes)]


def test_launch_has_the_bytes_sent_and_received():
    assert links(
        [
            entry("all_reduce", 1, sizes=[(1000,)]),
            entry("_all_gather_base", 2, sizes=[(8,)], out=[(16,)]),
            # The bytes of a send and of a receive in one sum could not be told apart any more.
            entry("send 0->1", 6, sizes=[(100,)], p2p=True),
            entry("recv 0<-1", 6, sizes=[(10,)], p2p=True),
            coalesced(6, p2p=True),
        ]
    ) == [LinkBytes(*each) for each in ((4000, 4000), (32, 32), (400, 40))]
    assert links([entry("all_reduce", 1, sizes=[(1000,)])], 2) == [LinkBytes(0, 0, 4000, 4000)]
    assert links([entry("all_reduce")], None) == [None]
    unknown = [entry("all_reduce", group="77"), entry("all_reduce", 2, dtype=STRANGE), entry("gather", 3)]
    assert links(unknown) == [None] * 3


def test_sends_and_receives_name_the_global_rank():
    groups = {"0": {"name": "0", "desc": "", "ranks": "[4, 7, 9]"}}
    batches = [["send 0->1"], ["recv 0<-2"], ["send 0->1", "recv 0<-2"], ["send 0->1", "send 0->2"]]
    batches.append(["send 0->3"])  # no member
    log = []
    for number, names in enumerate(batches):
        log += [*(entry(name, number, p2p=True) for name in names), coalesced(number, p2p=True)]
    found = launches_of(log, groups, node_count=lambda ranks: 1)
    ends = [(launch.sends_to, launch.receives_from) for launch in found]
    assert ends == [(7, None), (None, 9), (7, 9), (None, None), (None, None)]


# The dump.


@pytest.fixture
def dumping(monkeypatch):
    def recorder(content):
        raw = content if isinstance(content, bytes) else pickle.dumps(content, protocol=2)

        def dump(**options):
            assert options == {
                "includeCollectives": True, "includeStackTraces": False, "onlyActive": False
            }  # fmt: skip
            return raw

        monkeypatch.setattr(_distributed_c10d, "_dump_nccl_trace", dump, raising=False)
        return FlightRecorder()

    return recorder


def content(*entries):
    return {"version": "2.10", "pg_config": GROUPS, "entries": list(entries)}


@pytest.mark.parametrize(
    ("records", "from_ns", "read", "is_short"),
    [
        (range(5), 20, [15, 20, 30, 40], False),
        (range(3, 6), 29, None, False),  # the ring no longer goes back so far
        (range(3, 6), 30, [30, 40, 50], True),  # nor as far before
        (range(1), -10, [0], False),  # it never ran over: this is the first collective of all
    ],
)
def test_log_is_read_as_far_as_the_ring_goes_back(dumping, records, from_ns, read, is_short):
    log = [entry("all_reduce", seq, 10 * seq + 5 * (seq == 1), record=seq) for seq in records]
    recorder = dumping(content(*log))
    launches = recorder.read(from_ns, 5)
    assert read == (None if launches is None else [each.issued_ns for each in launches])
    assert recorder.was_short == is_short


def test_missing_flight_recorder_is_reported(dumping, monkeypatch):
    """TORCH_FR_BUFFER_SIZE=0: it hands out a dump without entries, though NCCL's kernels are seen."""
    with pytest.raises(FlightRecorderError, match="off"):
        dumping(content()).read(0)
    monkeypatch.delattr(_distributed_c10d, "_dump_nccl_trace", raising=False)
    with pytest.raises(FlightRecorderError, match="this torch has no flight recorder for NCCL"):
        FlightRecorder()


class Hostile:
    """Unpickled by a plain unpickler, it would make a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_dump_that_wants_to_run_something_is_refused(dumping, tmp_path):
    target = tmp_path / "made"
    with pytest.raises(FlightRecorderError, match="has no place in it"):
        dumping(content(Hostile(str(target)))).read(0)
    assert not target.exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"not a pickle",
        {},
        pickle.dumps(content(entry("all_reduce")))[:-20],
        content(entry("all_reduce") | {"time_created_ns": None}),
        content(entry("all_reduce") | {"input_sizes": [["a"]]}),
        content(entry("all_reduce")) | {"pg_config": {"0": {"ranks": "0, 1"}}},
    ],
)
def test_a_dump_that_is_not_understood_says_so(dumping, raw):
    with pytest.raises(FlightRecorderError, match="the flight recorder's dump is not understood"):
        dumping(raw).read(0)

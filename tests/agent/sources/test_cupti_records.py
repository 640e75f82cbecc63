"""CUPTI's buffers: what its records say, in each version, and how the tracer gathers them."""

import ctypes
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.sources.cupti import library, tracer
from overlaptop.agent.sources.cupti.callbacks import BUFFER_BYTES, ENTRIES
from overlaptop.agent.sources.cupti.layouts import (
    ACTIVITY,
    CONCURRENT_KERNEL,
    KINDS,
    MEMCPY,
    MEMSET,
    PEER_MEMCPY,
    SYNCHRONIZATION,
    UnknownRecordError,
    read,
    sizes_for,
)
from overlaptop.agent.sources.cupti.library import CuptiError
from overlaptop.agent.sources.cupti.tracer import MAX_BUFFERS, Tracer

from .cupti_calls import complete, request

VERSIONS = (18, 26, 130000, 130100, 130300, 130400)  # The first CUPTI_API_VERSION of each layout

# By cupti_activity.h: offset and struct's code of each field.
FIELDS = {
    CONCURRENT_KERNEL: "start_ns 16Q end_ns 24Q device 40I stream 48I correlation 92I name 104Q graph 156I",
    MEMCPY: "value 4I bytes 8Q start_ns 16Q end_ns 24Q device 32I stream 40I correlation 44I graph 72I",
    MEMSET: "value 4I bytes 8Q start_ns 16Q end_ns 24Q device 32I stream 40I correlation 44I graph 72I",
    PEER_MEMCPY: "bytes 8Q start_ns 16Q end_ns 24Q device 32I stream 40I from_device 44I to_device 52I "
    "correlation 60I graph 80I",
    SYNCHRONIZATION: "value 4I start_ns 8Q end_ns 16Q correlation 24I stream 32I",
}
API_VERSION = 130000
HOST_TO_DEVICE, DEVICE_TO_DEVICE, PEER_TO_PEER = 1, 8, 10
ZEROS = dict.fromkeys(ACTIVITY.names, 0)


def fields_of(kind):
    words = FIELDS[kind].split()
    return [(name, int(at[:-1]), at[-1]) for name, at in zip(words[::2], words[1::2], strict=True)]


def record(kind, fields=ZEROS, version=API_VERSION, copy_kind=HOST_TO_DEVICE):
    """One record as CUPTI writes it; what nobody reads is filled with ones, not zeros."""
    raw = bytearray(b"\xff" * sizes_for(version)[kind])
    struct.pack_into("<I", raw, 0, kind)
    for name, offset, code in fields_of(kind):
        struct.pack_into(f"<{code}", raw, offset, fields[name])
    if kind == MEMCPY:
        struct.pack_into("<B", raw, 4, copy_kind)
    return bytes(raw)


def read_back(raw, version=API_VERSION):
    """What is read of a buffer that lies as CUPTI's do: at an address that 8 divides."""
    words = np.frombuffer(raw + b"\0" * (-len(raw) % 8), dtype=np.uint64).copy()
    return read(words.view(np.uint8)[: len(raw)].data, sizes_for(version))


u32, times_ns, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**62), st.integers(0, 2**64 - 1)
values = st.fixed_dictionaries(
    dict.fromkeys(("device", "from_device", "to_device", "stream", "correlation", "graph", "value"), u32)
    | dict.fromkeys(("start_ns", "end_ns"), times_ns)
    | dict.fromkeys(("name", "bytes"), u64)
)


@pytest.mark.parametrize("version", [17, 130600])
def test_a_version_that_nobody_has_looked_at_is_refused(version):
    with pytest.raises(RuntimeError, match=f"the records of CUPTI {version} are not known"):
        sizes_for(version)


def as_activity(kind, fields):
    """What is to be read of a record: what its kind has not is 0, and its own GPU is both ends of it."""
    there = {"kind": kind} | {name: fields[name] for name, _, _ in fields_of(kind)}
    if kind == MEMCPY:
        there["value"] = fields["value"] & ~0xFF | HOST_TO_DEVICE
    device = there.get("device", 0)
    ends = {} if kind == PEER_MEMCPY else dict.fromkeys(("from_device", "to_device"), device)
    return tuple((there | ends).get(name, 0) for name in ACTIVITY.names)


@given(st.sampled_from(VERSIONS), st.lists(st.tuples(st.sampled_from(KINDS), values), max_size=20))
def test_records_of_any_version_are_read_back_by_kind(version, wanted):
    found = read_back(b"".join(record(kind, fields, version) for kind, fields in wanted), version)
    by_kind = sorted(wanted, key=lambda each: KINDS.index(each[0]))
    assert found.tolist() == [as_activity(kind, fields) for kind, fields in by_kind]


def test_an_ordinary_copy_between_two_gpus_is_a_peer_copy():
    kinds = (HOST_TO_DEVICE, PEER_TO_PEER, DEVICE_TO_DEVICE)
    raw = b"".join(record(MEMCPY, copy_kind=kind) for kind in kinds)
    assert read_back(raw)["kind"].tolist() == [MEMCPY, PEER_MEMCPY, MEMCPY]


def test_record_of_another_kind_is_refused():
    raw = bytearray(record(MEMSET) * 3)
    struct.pack_into("<I", raw, 88, 3)
    with pytest.raises(UnknownRecordError, match="kind 3"):
        read_back(bytes(raw))


@given(st.binary(max_size=60).map(lambda raw: raw * 8))
def test_any_bytes_are_read_or_refused(raw):
    try:
        found = read_back(raw)
    except UnknownRecordError:
        return
    assert found.dtype == ACTIVITY
    assert len(found) > 0 or not raw


# Gathering, with a CUPTI that is not there.


class FakeCupti:
    """Records what it is told into buffers that it asks for, as libcupti does."""

    def __init__(self):
        self.enabled: set[int] = set()
        self.registrations = 0
        self.is_finalised = False
        self.drops = 0
        self.room = BUFFER_BYTES
        self.callbacks = None
        self.buffers: list[tuple[int, bytes]] = []  # Addresses and contents; the last one is being filled

    def version(self):
        return API_VERSION

    def timestamp_ns(self):
        return 1_000

    def register(self, *callbacks):
        self.registrations += 1
        self.callbacks = callbacks

    def enable(self, kind):
        self.enabled.add(kind)

    def disable(self, kind):
        self.enabled.discard(kind)

    def dropped(self):
        drops, self.drops = self.drops, 0
        return drops

    def flush(self, *, forced=False):
        """Give back what is full or, once nothing is recorded any more, all; forced: all."""
        if self.is_finalised:
            raise CuptiError("flush: refused")
        kept = 0 if forced or not self.enabled else 1
        while len(self.buffers) > kept:
            address, content = self.buffers.pop(0)
            ctypes.memmove(address, content, len(content))
            complete(self.callbacks[1], address, len(content))

    def happens(self, kind=MEMSET, **fields):
        if kind not in self.enabled:
            return
        raw = record(kind, ZEROS | {"start_ns": 5, "end_ns": 7} | fields)
        if not self.buffers or len(self.buffers[-1][1]) + len(raw) > self.room:
            self.buffers.append((request(self.callbacks[0])[0], b""))
        address, content = self.buffers[-1]
        self.buffers[-1] = address, content + raw


@pytest.fixture
def cupti(monkeypatch) -> FakeCupti:
    fake = FakeCupti()
    monkeypatch.setattr(tracer, "load", lambda: fake)
    return fake


@pytest.fixture
def traced(cupti) -> Tracer:
    made = Tracer()
    assert made.outstanding == 0
    made.start()
    return made


def finish(traced):
    traced.stop()
    traced.gather()
    assert traced.outstanding == 0
    return sorted(traced.taken()["correlation"].tolist())


def test_trace_has_what_happened_between_start_and_stop(cupti):
    traced = Tracer()
    for first in (1, 11):
        cupti.happens(correlation=first)
        traced.start()
        assert cupti.enabled == set(KINDS)
        assert traced.outstanding == 1  # callbacks are expected for as long as it traces
        cupti.happens(correlation=first + 1)
        traced.gather()
        cupti.happens(CONCURRENT_KERNEL, correlation=first + 2)
        traced.stop()
        cupti.happens(correlation=first + 3)
        assert traced.outstanding == 1
        assert finish(traced) == [first + 1, first + 2]
        assert len(traced.taken()) == 0
    assert (traced.lost, cupti.registrations) == (0, 1)


def test_cuptis_clock_is_compared_with_ours_at_each_start(cupti, monkeypatch):
    # The second comparison is the quickest; the others were interrupted.
    at_ns = iter([1_000, 3_000, 1_490, 1_510, 1_000, 9_000] + [0, 10_000] * 20)
    monkeypatch.setattr(tracer, "now_ns", lambda: next(at_ns))
    traced = Tracer()
    traced.start()
    assert traced.clock_offset_ns == 500


def test_dropped_and_timeless_records_are_counted(cupti, traced):
    cupti.happens(correlation=1, start_ns=5, end_ns=0)
    cupti.happens(correlation=2, start_ns=0, end_ns=0)
    cupti.happens(correlation=3)
    cupti.drops = 12
    assert finish(traced) == [3]
    assert traced.lost == 2 + 12


def test_a_trace_that_grows_too_long_says_so_and_loses_nothing(cupti, traced, monkeypatch):
    cupti.room = 88
    with monkeypatch.context() as patch:
        patch.setattr(cupti, "flush", lambda: None)  # no record is complete
        for correlation in range(MAX_BUFFERS + 1):
            assert not traced.exhausted
            cupti.happens(correlation=correlation)
            traced.gather()
        assert traced.exhausted
    assert finish(traced) == list(range(MAX_BUFFERS + 1))
    assert (traced.exhausted, traced.lost) == (False, 0)


@pytest.mark.parametrize("when", ["tracing", "stopped", "in other hands", "finalised", "fallen behind"])
def test_hand_over_brings_back_every_buffer(cupti, traced, when):
    cupti.happens(correlation=1)
    if when == "stopped":
        traced.stop()
    elif when == "in other hands":
        cupti.buffers.clear()  # given to whoever registered after us
    elif when == "finalised":
        cupti.is_finalised = True
    elif when == "fallen behind":
        for _ in range(ENTRIES + 1):
            complete(cupti.callbacks[1], 1, 0)
    traced.hand_over()
    assert (traced.outstanding, len(traced.taken()), cupti.enabled) == (0, 0, set())
    cupti.is_finalised = False
    cupti.buffers.clear()
    traced.start()
    assert cupti.registrations == 2
    cupti.happens(correlation=2)
    assert finish(traced) == [2]


# Which library.

LIBCUPTI = "/home/a user/site-packages/nvidia/cu13/lib/libcupti.so.13"


@pytest.mark.parametrize(
    ("loaded", "refusal"),
    [("", "has not loaded libcupti"), (LIBCUPTI, f"libcupti cannot be opened: {LIBCUPTI}")],
)
def test_loaded_libcupti_is_found_wherever_it_lies(monkeypatch, tmp_path, loaded, refusal):
    path = tmp_path / "maps"
    path.write_text(f"7f01-7f02 rw-p 00000000 00:00 0 \n7f02-7f03 r-xp 0 08:01 2       {loaded}\n")
    monkeypatch.setattr(library, "MAPS", path)
    with pytest.raises(CuptiError, match=refusal):
        library.load()

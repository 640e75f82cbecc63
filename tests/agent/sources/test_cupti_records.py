"""CUPTI's buffers: what its records say, in each version, and how the tracer gathers them."""

from __future__ import annotations

import ctypes
import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.sources.cupti import buffers as buffers_module
from overlaptop.agent.sources.cupti import layouts, library, tracer
from overlaptop.agent.sources.cupti.buffers import BUFFER_BYTES, MAX_BUFFERS, READY, Buffers
from overlaptop.agent.sources.cupti.layouts import (
    ACTIVITY,
    CONCURRENT_KERNEL,
    KINDS,
    MEMCPY,
    MEMSET,
    PEER_MEMCPY,
    UnknownRecordError,
    read,
    sizes_for,
)
from overlaptop.agent.sources.cupti.library import CuptiError
from overlaptop.agent.sources.cupti.tracer import Tracer
from overlaptop.agent.sources.kernel_steps import MARK_WORDS

from .recordings import RECORDED, recording

# By cupti_activity.h: the first CUPTI_API_VERSION of each layout -> bytes of a record of a kernel, memcpy,
# memset and peer copy.
VERSIONS = {
    18: (208, 88, 88, 96),
    26: (208, 96, 88, 96),
    130000: (216, 96, 88, 96),
    130100: (224, 96, 88, 96),
    130300: (232, 96, 88, 96),
    130400: (248, 112, 104, 96),
}

# By cupti_activity.h: field -> offset and struct's code for it.
FIELDS = {
    CONCURRENT_KERNEL: {
        "start_ns": (16, "Q"), "end_ns": (24, "Q"), "device": (40, "I"), "stream": (48, "I"),
        "correlation": (92, "I"), "name": (104, "Q"), "graph": (156, "I"),
    },
    MEMCPY: {
        "bytes": (8, "Q"), "start_ns": (16, "Q"), "end_ns": (24, "Q"), "device": (32, "I"),
        "stream": (40, "I"), "correlation": (44, "I"), "graph": (72, "I"),
    },
    MEMSET: {
        "value": (4, "I"), "bytes": (8, "Q"), "start_ns": (16, "Q"), "end_ns": (24, "Q"),
        "device": (32, "I"), "stream": (40, "I"), "correlation": (44, "I"), "graph": (72, "I"),
    },
    PEER_MEMCPY: {
        "bytes": (8, "Q"), "start_ns": (16, "Q"), "end_ns": (24, "Q"), "device": (32, "I"),
        "stream": (40, "I"), "from_device": (44, "I"), "to_device": (52, "I"), "correlation": (60, "I"),
        "graph": (80, "I"),
    },
}  # fmt: skip
HOST_TO_DEVICE, DEVICE_TO_DEVICE, PEER_TO_PEER = 1, 8, 10


def record(version, kind, fields, copy_kind=HOST_TO_DEVICE):
    """One record as CUPTI writes it; what nobody reads is filled with ones, not zeros."""
    raw = bytearray(b"\xff" * sizes_for(version)[kind])
    struct.pack_into("<I", raw, 0, kind)
    if kind == MEMCPY:
        struct.pack_into("<B", raw, 4, copy_kind)
    for name, (offset, code) in FIELDS[kind].items():
        struct.pack_into(f"<{code}", raw, offset, fields[name])
    return bytes(raw)


def aligned(raw):
    """A buffer as CUPTI's are: at an address that 8 divides."""
    return np.frombuffer(raw + b"\0" * (-len(raw) % 8), dtype=np.uint64).copy().view(np.uint8)[: len(raw)]


def rows(activities):
    return sorted(activities.tolist())


u32, times_ns = st.integers(0, 2**32 - 1), st.integers(0, 2**62)
values = st.fixed_dictionaries(
    {
        **dict.fromkeys(
            ("device", "from_device", "to_device", "stream", "correlation", "graph", "value"), u32
        ),
        **dict.fromkeys(("start_ns", "end_ns"), times_ns),
        **dict.fromkeys(("name", "bytes"), st.integers(0, 2**64 - 1)),
    }
)


@pytest.mark.parametrize(("version", "sizes"), VERSIONS.items())
def test_each_version_has_the_sizes_of_its_headers(version, sizes):
    expected = dict(zip((CONCURRENT_KERNEL, MEMCPY, MEMSET, PEER_MEMCPY), sizes, strict=True))
    assert dict(sizes_for(version)) == expected


def test_a_version_in_between_has_the_layout_of_the_one_before_it():
    for first, following in zip(VERSIONS, [*VERSIONS][1:], strict=False):
        assert sizes_for(following - 1) == sizes_for(first)
    assert sizes_for(130599) == sizes_for(130400)


@pytest.mark.parametrize("version", [0, 17, 130600, 140000])
def test_a_version_that_nobody_has_looked_at_is_refused(version):
    with pytest.raises(RuntimeError, match=f"the records of CUPTI {version} are not known"):
        sizes_for(version)


def as_activity(kind, fields):
    """What is to be read of a record: what its kind has not is 0, and its own GPU is both ends of it."""
    said = {"kind": kind} | {name: fields[name] for name in FIELDS[kind]}
    ends = {} if kind == PEER_MEMCPY else dict.fromkeys(("from_device", "to_device"), fields["device"])
    return tuple((said | ends).get(name, 0) for name in ACTIVITY.names)


@given(st.sampled_from([*VERSIONS]), st.lists(st.tuples(st.sampled_from(KINDS), values), max_size=20))
def test_what_is_written_in_any_version_is_read_back(version, wanted):
    raw = b"".join(record(version, kind, fields) for kind, fields in wanted)
    found = read(aligned(raw).data, sizes_for(version))
    assert rows(found) == sorted(as_activity(kind, fields) for kind, fields in wanted)


@given(st.lists(st.tuples(st.sampled_from(KINDS), values), min_size=1, max_size=20))
def test_records_of_one_kind_keep_their_order(wanted):
    raw = b"".join(record(130000, kind, fields) for kind, fields in wanted)
    found = read(aligned(raw).data, sizes_for(130000))
    for kind in KINDS:
        expected = [fields["correlation"] for each, fields in wanted if each == kind]
        assert found[found["kind"] == kind]["correlation"].tolist() == expected


def zeros():
    return dict.fromkeys(ACTIVITY.names, 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_ordinary_copy_between_two_gpus_is_a_peer_copy(version):
    raw = b"".join(
        record(version, MEMCPY, zeros(), copy_kind)
        for copy_kind in (HOST_TO_DEVICE, PEER_TO_PEER, DEVICE_TO_DEVICE)
    )
    assert read(aligned(raw).data, sizes_for(version))["kind"].tolist() == [MEMCPY, PEER_MEMCPY, MEMCPY]


@pytest.mark.parametrize("kind", [0, 3, 9, 2**32 - 1])
def test_a_record_of_a_kind_nobody_asked_for_is_refused_wherever_it_lies(kind):
    raw = bytearray(record(130000, MEMSET, zeros()) * 3)
    struct.pack_into("<I", raw, 88, kind)
    with pytest.raises(UnknownRecordError, match=f"kind {kind}"):
        read(aligned(bytes(raw)).data, sizes_for(130000))


@pytest.mark.parametrize("missing_bytes", [8, 80, 208])
def test_a_truncated_last_record_is_refused(missing_bytes):
    raw = record(130000, MEMSET, zeros()) + record(130000, CONCURRENT_KERNEL, zeros())
    with pytest.raises(UnknownRecordError):
        read(aligned(raw[:-missing_bytes]).data, sizes_for(130000))


def test_a_buffer_given_back_empty_holds_no_records():
    assert len(read(b"", sizes_for(130000))) == 0


@given(st.binary(max_size=60).map(lambda raw: raw * 8))
def test_bytes_that_are_no_records_are_refused_or_read_never_worse(raw):
    try:
        found = read(aligned(raw).data, sizes_for(130000))
    except UnknownRecordError:
        return
    assert found.dtype == ACTIVITY


# The recorded buffers.


@pytest.mark.parametrize(
    ("name", "kernels", "nccl"),
    [("ddp", 2625, b"ncclDevKernel_AllReduce"), ("fsdp2", 960, b"ncclDevKernel")],
)
def test_a_recorded_burst_holds_what_the_job_launched(name, kernels, nccl):
    burst = recording(name)
    activities = burst.activities()
    of_kernels = activities[activities["kind"] == CONCURRENT_KERNEL]
    assert len(of_kernels) == kernels
    assert set(of_kernels["name"].tolist()) == set(burst.kernel_names)
    assert any(text.startswith(nccl) for text in burst.kernel_names.values())
    assert (activities["end_ns"] >= activities["start_ns"]).all()
    assert set(activities["device"].tolist()) == {0}


@pytest.mark.parametrize("name", RECORDED)
def test_the_marks_of_a_recorded_burst_come_back_in_order_with_their_values(name):
    burst = recording(name)
    activities = burst.activities()
    marks = activities[(activities["kind"] == MEMSET) & (activities["bytes"] == MARK_WORDS * 4)]
    marks = marks[np.argsort(marks["start_ns"])]
    assert marks["value"].tolist() == [mark.value for mark in burst.marks]
    assert (np.diff(marks["start_ns"]) > 0).all()
    assert (np.diff(marks["correlation"].astype(np.int64)) > 0).all()
    issued_ns = np.array([mark.host_ns for mark in burst.marks])
    assert (marks["start_ns"] + burst.clock_offset_ns > issued_ns).all()


# The buffers that CUPTI fills.


class Requester:
    """Calls the two callbacks as CUPTI does."""

    def __init__(self, pool: Buffers) -> None:
        self._pool = pool

    def request(self):
        """The address and size of a buffer, None where there was none, and how many records may go in."""
        address, size, records = ctypes.c_void_p(1), ctypes.c_size_t(1), ctypes.c_size_t(99)
        self._pool.request(ctypes.byref(address), ctypes.byref(size), ctypes.byref(records))
        return address.value, size.value, records.value

    def complete(self, address, valid_bytes):
        self._pool.complete(None, 0, address, BUFFER_BYTES, valid_bytes)


def test_buffers_are_aligned_whole_and_never_the_same_while_cupti_has_them():
    pool = Buffers()
    cupti = Requester(pool)
    given = [cupti.request() for _ in range(2 * READY)]
    assert len({address for address, _, _ in given}) == 2 * READY
    assert all(address % 8 == 0 for address, _, _ in given)
    assert {(size, records) for _, size, records in given} == {(BUFFER_BYTES, 0)}
    assert pool.outstanding == 2 * READY


def test_buffers_come_back_in_order_and_are_used_again():
    pool = Buffers()
    cupti = Requester(pool)
    given = [cupti.request()[0] for _ in range(READY)]
    for at, address in enumerate(given):
        cupti.complete(address, at)
    assert pool.outstanding == 0
    assert [pool.take() for _ in given] == list(zip(given, range(READY), strict=True))
    assert pool.take() is None
    for address in given:
        pool.release(address)
    assert {cupti.request()[0] for _ in given} == set(given)


def test_cupti_is_never_refused_a_buffer_but_too_many_mean_that_tracing_has_to_end(monkeypatch):
    monkeypatch.setattr(buffers_module, "BUFFER_BYTES", 64)
    pool = Buffers()
    cupti = Requester(pool)
    given = [cupti.request()[0] for _ in range(MAX_BUFFERS)]
    assert not pool.exhausted
    given.append(cupti.request()[0])
    assert pool.exhausted
    assert len(set(given)) == MAX_BUFFERS + 1
    assert None not in given
    for address in given:
        cupti.complete(address, 0)
    assert pool.exhausted  # they still hold records
    while taken := pool.take():
        pool.release(taken[0])
    assert not pool.exhausted
    assert {cupti.request()[0] for _ in given} == set(given)  # no more memory than that


@pytest.mark.parametrize("address", [None, 4096])
def test_a_buffer_that_is_not_ours_is_left_alone(address):
    pool = Buffers()
    cupti = Requester(pool)
    ours = cupti.request()[0]
    cupti.complete(address, 96)
    assert pool.take() is None
    assert pool.outstanding == 1
    cupti.complete(ours, 8)
    assert pool.take() == (ours, 8)
    assert pool.outstanding == 0


# The tracer, with a CUPTI that is not there.


class FakeCupti:
    """Records what it is told into buffers that it asks for, as libcupti does."""

    def __init__(self, version=130000):
        self._version = version
        self.enabled: set[int] = set()
        self.registrations = 0
        self.refuses = ""
        """The function that fails from now on, as when somebody else has finalised CUPTI."""
        self.drops = 0
        self._request = self._complete = None
        self._buffer = None
        self._used = 0
        self._held: list[tuple[int, int]] = []
        self.room = BUFFER_BYTES

    def _call(self, name):
        if self.refuses == name:
            raise CuptiError(f"{name}: refused")

    def version(self):
        return self._version

    def timestamp_ns(self):
        self._call("timestamp")
        return 1_000

    def register(self, request, complete):
        self._call("register")
        self.registrations += 1
        self._request, self._complete = request, complete

    def enable(self, kind):
        self._call("enable")
        self.enabled.add(kind)

    def disable(self, kind):
        self._call("disable")
        self.enabled.discard(kind)

    def dropped(self):
        drops, self.drops = self.drops, 0
        return drops

    def flush(self, *, forced=False):
        """Give back what is full or, once nothing is recorded any more, all; forced: all."""
        self._call("flush")
        if self._buffer is not None and (forced or not self.enabled):
            self._put_away()
        for address, valid_bytes in self._held:
            self._complete(None, 0, address, BUFFER_BYTES, valid_bytes)
        self._held.clear()

    def happens(self, kind, **fields):
        """One activity; dropped where nobody asked for its kind or no buffer is there."""
        if kind not in self.enabled:
            return
        raw = record(self._version, kind, zeros() | {"start_ns": 5, "end_ns": 7} | fields)
        if self._buffer is not None and self._used + len(raw) > self.room:
            self._put_away()
        if self._buffer is None:
            address, size, records = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
            self._request(ctypes.byref(address), ctypes.byref(size), ctypes.byref(records))
            if address.value is None:
                self.drops += 1
                return
            self._buffer, self._used = address.value, 0
        ctypes.memmove(self._buffer + self._used, raw, len(raw))
        self._used += len(raw)

    def _put_away(self):
        self._held.append((self._buffer, self._used))
        self._buffer = None


@pytest.fixture
def cupti(monkeypatch) -> FakeCupti:
    fake = FakeCupti()
    monkeypatch.setattr(tracer, "load", lambda: fake)
    return fake


def test_a_trace_is_what_happened_between_start_and_stop(cupti):
    traced = Tracer()
    cupti.happens(MEMSET, correlation=1)
    traced.start()
    assert cupti.enabled == set(KINDS)
    cupti.happens(MEMSET, correlation=2)
    traced.gather()
    assert not traced.complete
    cupti.happens(CONCURRENT_KERNEL, correlation=3)
    traced.stop()
    cupti.happens(MEMSET, correlation=4)
    assert not traced.complete
    assert traced.outstanding == 1
    traced.gather()
    assert traced.complete
    assert traced.outstanding == 0
    assert sorted(traced.taken()["correlation"].tolist()) == [2, 3]
    assert len(traced.taken()) == 0
    assert traced.lost == 0


def test_the_next_trace_holds_nothing_of_the_one_before(cupti):
    traced = Tracer()
    for correlation in (1, 2):
        traced.start()
        cupti.happens(MEMSET, correlation=correlation)
        traced.stop()
        traced.gather()
    assert traced.taken()["correlation"].tolist() == [2]
    assert cupti.registrations == 1


def test_cuptis_clock_is_compared_with_ours_at_each_start(cupti, monkeypatch):
    # The second comparison is the quickest; the others were interrupted.
    at_ns = iter([1_000, 3_000, 1_490, 1_510, 1_000, 9_000] + [0, 10_000] * 20)
    monkeypatch.setattr(tracer, "now_ns", lambda: next(at_ns))
    traced = Tracer()
    traced.start()
    assert traced.clock_offset_ns == 500


def test_records_without_times_are_counted_and_left_out(cupti):
    traced = Tracer()
    traced.start()
    cupti.happens(MEMSET, correlation=1, start_ns=5, end_ns=0)
    cupti.happens(MEMSET, correlation=2, start_ns=0, end_ns=0)
    cupti.happens(MEMSET, correlation=3)
    traced.stop()
    traced.gather()
    assert traced.taken()["correlation"].tolist() == [3]
    assert traced.lost == 2


def test_what_cupti_dropped_is_counted(cupti):
    traced = Tracer()
    traced.start()
    cupti.drops = 12
    traced.gather()
    cupti.drops = 3
    traced.gather()
    assert traced.lost == 15


def test_a_trace_that_grows_too_long_says_so_and_loses_nothing(cupti):
    cupti.room = 88
    traced = Tracer()
    traced.start()
    for correlation in range(MAX_BUFFERS):
        cupti.happens(MEMSET, correlation=correlation)
    assert not traced.exhausted
    cupti.happens(MEMSET, correlation=MAX_BUFFERS)
    assert traced.exhausted
    traced.stop()
    traced.gather()
    assert not traced.exhausted
    assert len(traced.taken()) == MAX_BUFFERS + 1
    assert traced.lost == 0
    assert traced.complete


@given(seed=st.integers(0, 2**32))
def test_every_record_is_gathered_once_or_counted_however_calls_interleave(seed):
    chance = random.Random(seed)
    fake = FakeCupti()
    fake.room = chance.choice([88, 88 * 3, BUFFER_BYTES])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracer, "load", lambda: fake)
        traced = Tracer()
    found, happened = [], 0
    for _ in range(chance.randrange(1, 4)):
        traced.start()
        for _ in range(chance.randrange(40)):
            fake.happens(chance.choice([MEMSET, CONCURRENT_KERNEL]), correlation=happened)
            happened += 1
        traced.stop()
        traced.gather()
        assert traced.complete
        found += traced.taken()["correlation"].tolist()
    assert sorted(found) == list(range(happened))
    assert traced.lost == 0


def test_handing_over_brings_every_buffer_back_and_registers_anew_afterwards(cupti):
    traced = Tracer()
    traced.start()
    cupti.happens(MEMSET, correlation=1)
    traced.hand_over()
    assert traced.outstanding == 0
    assert cupti.enabled == set()
    assert len(traced.taken()) == 0
    traced.start()
    assert cupti.registrations == 2
    cupti.happens(MEMSET, correlation=2)
    traced.stop()
    traced.gather()
    assert traced.taken()["correlation"].tolist() == [2]


def test_buffers_that_are_in_other_hands_are_not_waited_for(cupti):
    traced = Tracer()
    traced.start()
    cupti.happens(MEMSET)
    cupti._buffer = None  # given to whoever registered after us
    traced.hand_over()
    assert traced.outstanding == 0
    traced.start()
    cupti.happens(MEMSET, correlation=2)
    traced.stop()
    traced.gather()
    assert traced.complete
    assert traced.taken()["correlation"].tolist() == [2]


def test_callbacks_are_expected_for_as_long_as_it_traces(cupti):
    traced = Tracer()
    assert traced.outstanding == 0
    traced.start()
    assert traced.outstanding == 1
    traced.stop()
    assert traced.outstanding == 0


def test_handing_over_after_stop_brings_back_what_was_still_under_way(cupti):
    traced = Tracer()
    traced.start()
    cupti.happens(MEMSET)
    traced.stop()
    assert traced.outstanding == 1
    traced.hand_over()
    assert traced.outstanding == 0


@pytest.mark.parametrize("refused", ["flush", "disable"])
def test_a_cupti_that_somebody_has_finalised_does_not_keep_us_from_handing_over(cupti, refused):
    traced = Tracer()
    traced.start()
    cupti.happens(MEMSET)
    cupti.refuses = refused
    traced.hand_over()
    cupti.refuses = ""
    traced.start()
    assert cupti.registrations == 2


def test_a_cupti_that_refuses_to_start_can_be_handed_over(cupti):
    traced = Tracer()
    cupti.refuses = "enable"
    with pytest.raises(CuptiError, match="enable"):
        traced.start()
    traced.hand_over()
    assert cupti.enabled == set()


def test_a_record_of_somebody_elses_is_an_error(cupti):
    traced = Tracer()
    traced.start()
    cupti.happens(MEMSET)
    ctypes.memmove(cupti._buffer, struct.pack("<I", 3), 4)
    traced.stop()
    traced.gather()
    with pytest.raises(UnknownRecordError):
        traced.taken()


def test_a_cupti_of_an_unknown_version_is_refused(cupti):
    cupti._version = 999_999
    with pytest.raises(RuntimeError, match="999999"):
        Tracer()


# Which library.


def test_the_libcupti_that_is_loaded_is_found_wherever_it_lies(monkeypatch, tmp_path):
    maps = tmp_path / "maps"
    folder = "/home/a user/site-packages/nvidia/cu13/lib"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/libc.so.6\n"
        "7f01-7f02 rw-p 00000000 00:00 0 \n"
        f"7f02-7f03 r-xp 00000000 08:01 2                          {folder}/libcupti.so.13\n"
    )
    opened = []
    monkeypatch.setattr(library, "MAPS", maps)
    monkeypatch.setattr(library, "Cupti", opened.append)
    library.load()
    assert opened == [f"{folder}/libcupti.so.13"]


@pytest.mark.parametrize("maps", ["", "7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/libc.so.6\n"])
def test_a_torch_without_libcupti_is_told_apart(monkeypatch, tmp_path, maps):
    path = tmp_path / "maps"
    path.write_text(maps)
    monkeypatch.setattr(library, "MAPS", path)
    with pytest.raises(CuptiError, match="has not loaded libcupti"):
        library.load()


def test_a_libcupti_that_cannot_be_opened_says_why(monkeypatch, tmp_path):
    path = tmp_path / "maps"
    path.write_text(f"7f00-7f01 r-xp 00000000 08:01 1 {tmp_path}/libcupti.so.12\n")
    monkeypatch.setattr(library, "MAPS", path)
    with pytest.raises(CuptiError, match="libcupti cannot be opened"):
        library.load()


def test_the_layouts_know_every_kind_that_is_asked_for():
    assert set(KINDS) == set(sizes_for(18)) == set(FIELDS)
    assert layouts.KINDS == KINDS

"""CUPTI: the callbacks for its buffers, their records in each version, and how the tracer gathers them."""

import ctypes
import struct
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unicorn import UC_ARCH_ARM64, UC_HOOK_CODE, UC_MODE_ARM, Uc
from unicorn.arm64_const import UC_ARM64_REG_SP, UC_ARM64_REG_X0, UC_ARM64_REG_X30, UC_CPU_ARM64_MAX

from overlaptop.agent.sources.cupti import callbacks, library, tracer
from overlaptop.agent.sources.cupti.callbacks import BUFFER_BYTES, ENTRIES, REQUESTED, CallbackLog, assemble
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

REQUEST = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)
COMPLETE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


def request(callback):
    """Ask for a buffer as CUPTI does: its address, its size and how many records may go in."""
    address, size, records = ctypes.c_void_p(1), ctypes.c_size_t(1), ctypes.c_size_t(99)
    REQUEST(callback.value)(*map(ctypes.addressof, (address, size, records)))
    return address.value, size.value, records.value


def complete(callback, address, valid_bytes):
    COMPLETE(callback.value)(None, 0, address, BUFFER_BYTES, valid_bytes)


# The callbacks note what they are given, on any thread, and wait for nobody.


def test_a_thread_that_waits_with_the_gil_does_not_stop_a_callback():
    log = CallbackLog()
    thread = ctypes.c_ulong()
    with_gil = ctypes.PyDLL(None)
    # A thread of C that calls `complete`, whose arguments are then whatever lies in the registers.
    assert with_gil.pthread_create(ctypes.byref(thread), None, log.complete, None) == 0
    assert with_gil.pthread_join(thread, None) == 0
    assert log.count == 1


def test_threads_do_not_lose_each_others_entries():
    log = CallbackLog()
    seen = []

    def work():
        for _ in range(200):
            complete(log.complete, request(log.request)[0], 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen += log.entries()
    seen += log.entries()
    requested = sorted(address for address, valid_bytes in seen if valid_bytes == REQUESTED)
    assert requested == sorted(address for address, valid_bytes in seen if valid_bytes == 1)
    assert len(set(requested)) == 800


def test_it_goes_round_and_says_when_it_was_overtaken():
    log = CallbackLog()
    for turn in range(3):
        for at in range(1, ENTRIES + 1):
            complete(log.complete, at, turn)
        assert list(log.entries()) == [(at, turn) for at in range(1, ENTRIES + 1)]
    for at in range(1, ENTRIES + 2):
        complete(log.complete, at, 7)
    with pytest.raises(CuptiError, match="keep up"):
        list(log.entries())


def test_machines_that_cannot_have_the_callbacks_are_named(monkeypatch):
    def forbidden(*_args):
        raise PermissionError(1, "Operation not permitted")

    with pytest.raises(CuptiError, match="no callbacks for CUPTI on riscv64"):
        assemble("riscv64", 1, 2)
    monkeypatch.setattr(callbacks.mmap, "mmap", forbidden)
    with pytest.raises(CuptiError, match=r"forbids the callbacks that CUPTI needs: .*not permitted"):
        CallbackLog()


def test_the_code_for_arm64_does_the_same():
    code_at, log_at, stack_at, memory = 0x10000, 0x20000, 0x80000, 0xABCDE0
    malloc_at, back_at = code_at + 0x800, code_at + 0x900
    code, complete_at = assemble("aarch64", malloc_at, log_at)
    machine = Uc(UC_ARCH_ARM64, UC_MODE_ARM)
    machine.ctl_set_cpu_model(UC_CPU_ARM64_MAX)
    for at, size in ((code_at, 0x1000), (log_at, 0x50000), (stack_at, 0x1000)):
        machine.mem_map(at, size)
    machine.mem_write(code_at, code)
    sizes = []
    machine.mem_write(malloc_at, bytes.fromhex("c0035fd6"))  # ret

    def malloc(machine, _address, _size, _user):
        sizes.append(machine.reg_read(UC_ARM64_REG_X0))
        machine.reg_write(UC_ARM64_REG_X0, memory)
        for at in range(1, 18):  # it may use these
            machine.reg_write(UC_ARM64_REG_X0 + at, 0xDEAD)

    machine.hook_add(UC_HOOK_CODE, malloc, begin=malloc_at, end=malloc_at)

    def call(at, *arguments):
        for number, argument in enumerate(arguments):
            machine.reg_write(UC_ARM64_REG_X0 + number, argument)
        machine.reg_write(UC_ARM64_REG_SP, stack_at + 0x800)
        machine.reg_write(UC_ARM64_REG_X30, back_at)
        machine.emu_start(code_at + at, back_at)
        assert machine.reg_read(UC_ARM64_REG_SP) == stack_at + 0x800

    def words(at, count):
        return struct.unpack(f"<{count}Q", machine.mem_read(at, 8 * count))

    call(0, stack_at + 0x900, stack_at + 0x908, stack_at + 0x910)
    call(complete_at, 1, 2, memory, BUFFER_BYTES, 88)
    assert sizes == [BUFFER_BYTES]
    assert words(stack_at + 0x900, 3) == (memory, BUFFER_BYTES, 0)
    assert words(log_at, 6) == (2, 0, memory, REQUESTED, memory, 88)
    machine.mem_write(log_at, struct.pack("<Q", 3 * ENTRIES + 5))
    call(complete_at, 1, 2, 7, BUFFER_BYTES, 9)
    assert words(log_at + 16 + 5 * 16, 2) == (7, 9)


# Records.

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

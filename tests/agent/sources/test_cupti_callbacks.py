"""CUPTI's callbacks: they note what they are given, on any thread, and wait for nobody."""

import ctypes
import struct
import threading

import pytest
from unicorn import UC_ARCH_ARM64, UC_HOOK_CODE, UC_MODE_ARM, Uc
from unicorn.arm64_const import UC_ARM64_REG_SP, UC_ARM64_REG_X0, UC_ARM64_REG_X30, UC_CPU_ARM64_MAX

from overlaptop.agent.sources.cupti import callbacks
from overlaptop.agent.sources.cupti.callbacks import BUFFER_BYTES, ENTRIES, REQUESTED, CallbackLog, assemble
from overlaptop.agent.sources.cupti.library import CuptiError

from .cupti_calls import complete, request


def test_a_request_gets_memory_and_both_callbacks_note_it():
    log = CallbackLog()
    first, size, max_records = request(log.request)
    assert (size, max_records) == (BUFFER_BYTES, 0)
    ctypes.memset(first, 255, BUFFER_BYTES)
    second = request(log.request)[0]
    complete(log.complete, first, 88)
    assert abs(second - first) >= BUFFER_BYTES
    assert list(log.entries()) == [(first, REQUESTED), (second, REQUESTED), (first, 88)]
    assert list(log.entries()) == []


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

"""The callbacks that give CUPTI buffers and take them back, in machine code.

CUPTI calls them on any thread, holding a lock. A callback in Python would wait for the GIL there, while the
thread with the GIL waits for that lock to launch a kernel, and the job hangs. (FSDP2 did: NCCL's watchdog
queries events, and DTensor's dispatcher launches with the GIL.) Nothing in Python or torch makes a callback
that needs no GIL, and users' machines often have no compiler: so here are its 24 instructions.
"""

import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.agent.sources.cupti.library import CuptiError

BUFFER_BYTES = 1 << 18
"""Holds about 1,200 kernels. CUPTI zeroes a buffer on the launching thread, with page faults in 0.13 ms:
0.1 us a launch."""
ENTRIES = 1 << 14  # Of the log, which is a ring
REQUESTED = 2**64 - 1  # In an entry, instead of the bytes that are valid: CUPTI has requested the buffer

# void request(uint8_t **buffer, size_t *size, size_t *max_records) {
#     uint8_t *memory = malloc(BUFFER_BYTES);
#     *buffer = memory; *size = BUFFER_BYTES; *max_records = 0 /* no limit */;
#     complete(0, 0, memory, 0, REQUESTED);
# }
# void complete(CUcontext, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
#     entry = &log->entries[atomic_fetch_add(&log->count, 1) % ENTRIES];
#     entry->valid = valid; entry->buffer = buffer;
# }
# In `complete`, rdx or x2 is the buffer, r8 or x4 the valid bytes.
_X86_64 = """
57 56 52            push rdi, rsi, rdx
bf 00000400         mov  edi, BUFFER_BYTES
48b8 {malloc}       mov  rax, malloc
ffd0                call rax
5a 5e 5f            pop  rdx, rsi, rdi
488907              mov  [rdi], rax
48c706 00000400     mov  [rsi], BUFFER_BYTES
48c702 00000000     mov  [rdx], 0
4889c2              mov  rdx, rax
49c7c0 ffffffff     mov  r8, REQUESTED
complete:
49b9 {log}          mov  r9, log
b9 01000000         mov  ecx, 1
f0490fc109          lock xadd [r9], rcx
81e1 ff3f0000       and  ecx, ENTRIES - 1
c1e104              shl  ecx, 4
4901c9              add  r9, rcx
4d894118            mov  [r9 + 24], r8
49895110            mov  [r9 + 16], rdx
c3                  ret
"""
_ARM64 = """
fd7bbda9            stp  x29, x30, [sp, -48]!
e00701a9            stp  x0, x1, [sp, 16]
e21300f9            str  x2, [sp, 32]
8000a0d2            mov  x0, BUFFER_BYTES
88020058            ldr  x8, malloc
00013fd6            blr  x8
e31341a9            ldp  x3, x4, [sp, 16]
e51340f9            ldr  x5, [sp, 32]
fd7bc3a8            ldp  x29, x30, [sp], 48
8600a0d2            mov  x6, BUFFER_BYTES
600000f9            str  x0, [x3]
860000f9            str  x6, [x4]
bf0000f9            str  xzr, [x5]
e20300aa            mov  x2, x0
04008092            mov  x4, REQUESTED
complete:
69010058            ldr  x9, log
2a0080d2            mov  x10, 1
2b01eaf8            ldaddal x10, x11, [x9]
6b354092            and  x11, x11, ENTRIES - 1
29110b8b            add  x9, x9, x11, lsl 4
240d00f9            str  x4, [x9, 24]
29410091            add  x9, x9, 16
22fd9fc8            stlr x2, [x9]
c0035fd6            ret
{malloc}            malloc
{log}               log
"""
_CODE_COLUMN = slice(0, 20)
_SOURCES = {"x86_64": _X86_64, "aarch64": _ARM64}


class CallbackLog:
    """The two callbacks, and what they have noted. They are never freed: CUPTI may call them even after
    Python has ended.
    """

    def __init__(self) -> None:
        """Raises CuptiError if this machine's processor is another, or its system forbids new code."""
        self._log = np.zeros(2 + 2 * ENTRIES, dtype=np.uint64)
        """The count, then from word 2 on a buffer's address and the valid bytes of each entry."""
        self._read = 0
        allocator = ctypes.CDLL(None)
        self.free = allocator.free  # Frees a buffer by its address
        self.free.argtypes, self.free.restype = [ctypes.c_void_p], None
        malloc = ctypes.cast(allocator.malloc, ctypes.c_void_p).value or 0
        code, complete_at = assemble(platform.machine(), malloc, self._log.ctypes.data)
        try:
            executable = _map(code)
        except OSError as fault:
            if raised_by_job(fault):
                raise
            raise CuptiError(f"this system forbids the callbacks that CUPTI needs: {fault}") from None
        _keep_for_good(executable)
        _keep_for_good(self._log)
        self.request = ctypes.c_void_p(executable.ctypes.data)  # CUpti_BuffersCallbackRequestFunc
        self.complete = ctypes.c_void_p(executable.ctypes.data + complete_at)
        """CUpti_BuffersCallbackCompleteFunc."""

    @property
    def count(self) -> int:
        """Calls of the callbacks."""
        return int(self._log[0])

    def entries(self) -> Iterator[tuple[int, int]]:
        """Yield the new entries: a buffer's address, and its valid bytes or REQUESTED. The entry at which a
        caller is interrupted is yielded again. Raises CuptiError if entries were overwritten unread.
        """
        count = self.count
        if count - self._read > ENTRIES:
            self._read = count
            raise CuptiError("the agent cannot keep up with CUPTI's buffers")
        while self._read < count:
            at = 2 + 2 * (self._read % ENTRIES)
            address, valid_bytes = (int(word) for word in self._log[at : at + 2])
            if not address:
                return  # counted, but not written yet
            yield address, valid_bytes
            self._log[at] = 0
            self._read += 1


def assemble(machine: str, malloc: int, log: int) -> tuple[bytes, int]:
    """Return the callbacks' code for a processor, named as by `platform.machine`, and where `complete` is
    in it. `malloc`, `log`: addresses. Raises CuptiError for another processor.
    """
    if machine not in _SOURCES:
        raise CuptiError(f"there are no callbacks for CUPTI on {machine}")
    words = {"malloc": struct.pack("<Q", malloc).hex(), "log": struct.pack("<Q", log).hex()}
    request, complete = (
        bytes.fromhex("".join(line[_CODE_COLUMN] for line in part.splitlines()).format(**words))
        for part in _SOURCES[machine].split("complete:")
    )
    return request + complete, len(request)


def _map(code: bytes) -> NDArray[np.uint8]:
    """Map code as executable, and never as writable. Raises OSError."""
    file = os.memfd_create("overlaptop-cupti-callbacks")
    try:
        os.write(file, code)
        mapped = mmap.mmap(file, len(code), mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    finally:
        os.close(file)
    return np.frombuffer(mapped, dtype=np.uint8)


def _keep_for_good(thing: Any) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))

"""Starts a program that is no child of this process: no ``wait()`` and no SIGCHLD of the job sees it.

A child's end is announced by the signal named in its ``clone()``. A child without one is skipped by every
``wait()`` that does not ask for such children. But executing a program brings SIGCHLD back. So the child
starts the program by ``posix_spawn`` and ends, and the program then belongs to init.

As in vfork(), the child shares its parent's memory, and the calling thread waits until it has ended.
Nothing is copied, as a copy of a process whose memory a network card writes to would be dangerous. No
Python runs in the child, as it could wait for a lock that only another thread releases. The child runs two
contexts made in advance: ``posix_spawn(...)``, then ``_exit(0)``.

If the job is the first process of its container, or a subreaper, it adopts init's children: the hub is then
its child, like every orphan.
"""

import contextlib
import ctypes
import errno
import os
from collections.abc import Mapping, Sequence
from typing import Any

from overlaptop.agent.isolation.threads import signals_blocked

_CLONE_VM, _CLONE_VFORK = 0x100, 0x4000
_WCLONE = -(1 << 31)  # 0x80000000 as a C int
_STACK_BYTES = 1 << 16
_FILE_ACTIONS_BYTES = 1 << 10  # The C library's structure takes less than 100
_ALIGNMENT = 64


class _Context(ctypes.Structure):
    """The head of glibc's ucontext_t, alike on every architecture, with space for the rest."""

    _fields_ = (
        ("flags", ctypes.c_ulong),
        ("link", ctypes.c_void_p),
        ("stack", ctypes.c_void_p),
        ("stack_flags", ctypes.c_int),
        ("stack_bytes", ctypes.c_size_t),
        ("rest", ctypes.c_char * 8192),
    )


def start_detached(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Start a program with all signals blocked and its standard streams on /dev/null.

    Raises OSError if it cannot be started in this way.
    """
    try:
        start = _Start(ctypes.CDLL(None, use_errno=True))
        # Block all signals: the contexts store the mask. A Python signal handler that ran in the child
        # would note the signal in the shared memory, as one of this process's.
        signals_blocked(lambda: start.run(argv, environment))
    except AttributeError as missing:
        raise OSError(errno.ENOSYS, f"this C library is not glibc: {missing}") from None


class _Start:
    """The memory for one start. It must not move until the child has ended."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._kept: list[Any] = []

    def run(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        library = self._library
        actions = self._memory(_FILE_ACTIONS_BYTES)
        library.posix_spawn_file_actions_init(actions)
        for descriptor in range(3):
            library.posix_spawn_file_actions_addopen(
                actions, descriptor, os.fsencode(os.devnull), os.O_RDWR, 0
            )
        pid = self._memory(ctypes.sizeof(ctypes.c_int))
        words = self._texts(argv)
        program = ctypes.c_void_p.from_address(words.value or 0)  # the first word
        variables = self._texts([f"{name}={value}" for name, value in environment.items()])
        end = self._context(library["_exit"], (ctypes.c_void_p(0),), None)
        arguments = (pid, program, actions, ctypes.c_void_p(), words, variables)
        try:
            self._clone(self._context(library.posix_spawn, arguments, end))
        finally:
            library.posix_spawn_file_actions_destroy(actions)
        if not ctypes.c_int.from_address(pid.value or 0).value:
            raise OSError(errno.ENOEXEC, f"{argv[0]} cannot be started")

    def _clone(self, context: ctypes.c_void_p) -> None:
        top = ctypes.c_void_p((self._memory(_STACK_BYTES).value or 0) + _STACK_BYTES)
        run = ctypes.cast(self._library.setcontext, ctypes.c_void_p)
        child = self._library.clone(run, top, _CLONE_VM | _CLONE_VFORK, context)
        if child < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        with contextlib.suppress(ChildProcessError):  # the job also waits for such children
            os.waitpid(child, _WCLONE)

    def _context(
        self, function: Any, arguments: tuple[ctypes.c_void_p, ...], then: ctypes.c_void_p | None
    ) -> ctypes.c_void_p:
        """Make a context that calls a C function with these arguments and then runs another context."""
        address = self._memory(ctypes.sizeof(_Context))
        if self._library.getcontext(address) != 0:
            raise OSError(ctypes.get_errno(), "getcontext")
        context = _Context.from_address(address.value or 0)
        context.link = then.value if then is not None else None
        context.stack, context.stack_bytes = self._memory(_STACK_BYTES).value, _STACK_BYTES
        context.stack_flags = 0
        pointer = ctypes.cast(function, ctypes.c_void_p)
        self._library.makecontext(address, pointer, ctypes.c_int(len(arguments)), *arguments)
        return address

    def _memory(self, size: int) -> ctypes.c_void_p:
        """Return the address of ``size`` zero bytes, aligned for any type."""
        memory = ctypes.create_string_buffer(size + _ALIGNMENT)
        self._kept.append(memory)
        return ctypes.c_void_p((ctypes.addressof(memory) + _ALIGNMENT - 1) & -_ALIGNMENT)

    def _texts(self, texts: Sequence[str]) -> ctypes.c_void_p:
        listed = (ctypes.c_char_p * (len(texts) + 1))(*map(os.fsencode, texts), None)
        self._kept.append(listed)
        return ctypes.c_void_p(ctypes.addressof(listed))

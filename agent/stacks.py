"""Samples the line of the script that the training thread executes, on the agent's thread.

It reads a frame's file, line and function name, never a variable.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePath
from types import FrameType
from typing import NamedTuple

from overlaptop.wire.messages import MAX_STACK_LINES, StackLine, StackSamples

SEND_NS = 1_000_000_000
MAX_NAME_CHARS = 120
_GENERATED = ("<frozen", "<eval_with_key>", "<string>")
"""Prefixes of file names for code of Python's frozen modules, of torch.fx, and of `exec` (dataclasses)."""
_COMPILED = "/torchinductor_"


class ScriptFrame(NamedTuple):
    """A frame of the script."""

    frame: FrameType
    called: str  # The torch.distributed function that it calls; empty: none
    calls_torch: bool  # Whether it calls torch, or the agent's hooks in torch


def script_frames(thread: int) -> Iterator[ScriptFrame]:
    """Yield a thread's frames, innermost first, without frames of Python's library, torch, generated code
    and the agent.
    """
    agent, torch, library = _folders(getattr(sys.modules.get("torch"), "__file__", "") or __file__)
    hidden = (agent, torch, *_GENERATED)
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001 - it is documented
    called, calls_torch = "", False
    while frame is not None:
        file = frame.f_code.co_filename
        of_library = file.startswith(library) and "site-packages" not in file
        if not of_library and not file.startswith(hidden) and _COMPILED not in file:
            yield ScriptFrame(frame, called, calls_torch)
            calls_torch = False
        elif not file.endswith("/c10d_logger.py"):  # it wraps each function of torch.distributed
            called = frame.f_code.co_name if file.startswith(f"{torch}distributed/") else ""
            calls_torch |= not of_library
        frame = frame.f_back


@lru_cache(maxsize=2)
def _folders(torch_file: str) -> tuple[str, str, str]:
    """Folders of the agent, of torch and of Python's library."""
    # sysconfig would import modules on this thread.
    parents = Path(__file__).parent, Path(torch_file).parent, Path(os.__file__).parent
    agent, torch, library = (f"{each}/" for each in parents)
    return agent, torch, library


class StackSampler:
    """Counts samples by line of the script and makes a message of them once a second."""

    def __init__(self, folder: Path) -> None:
        """``folder``: the job's working folder. Its files are named relative to it."""
        self._folder = f"{folder}/"
        self._from_ns: int | None = None
        self._samples = 0
        self._counts: Counter[tuple[str, int | None, str]] = Counter()
        self._asleep: Counter[tuple[str, int | None, str]] = Counter()

    def sample(self, thread: int, at_ns: int, *, asleep: bool = False) -> None:
        """Sample the thread once. ``asleep``: the kernel reports that it sleeps."""
        if self._from_ns is None:
            self._from_ns = at_ns
        if (innermost := next(script_frames(thread), None)) is not None:
            code = innermost.frame.f_code
            line = code.co_filename, innermost.frame.f_lineno, code.co_name
            self._counts[line] += 1
            self._asleep[line] += asleep and not innermost.calls_torch
        del innermost  # a frame would keep the job's variables alive
        self._samples += 1

    def take(self, rank: int, at_ns: int) -> StackSamples | None:
        """Return the samples of the last second and start over; None before a second has passed."""
        if self._from_ns is None or 0 <= at_ns - self._from_ns < SEND_NS:
            return None
        most = self._counts.most_common(MAX_STACK_LINES)
        lines = tuple(StackLine(self._named(*line), samples, self._asleep[line]) for line, samples in most)
        taken = StackSamples(rank, min(self._from_ns, at_ns), at_ns, self._samples, lines)
        self._from_ns, self._samples = at_ns, 0
        self._counts, self._asleep = Counter(), Counter()
        return taken

    def _named(self, file: str, line: int | None, function: str) -> str:
        """``train.py:57 in collate``."""
        if file.startswith(self._folder):
            file = file.removeprefix(self._folder)
        else:
            file = "/".join(PurePath(file).parts[-2:])
        return f"{file[-MAX_NAME_CHARS:]}:{line or 0} in {function[:MAX_NAME_CHARS]}"

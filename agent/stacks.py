"""Which line of the script the training thread is at: looked at from within, on the agent's thread.

Of a frame only its file, its line and its function's name are read, never a variable.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePath
from types import FrameType

from overlaptop.wire.messages import MAX_STACK_LINES, StackLine, StackSamples

SEND_NS = 1_000_000_000
MAX_NAME_CHARS = 120
_GOLDEN = 0.618034
_GENERATED = ("<frozen", "<eval_with_key>")
"""What Python's own modules and torch.fx call their code."""
_COMPILED = "/torchinductor_"


def rounds_s(period_s: float) -> Iterator[float]:
    """Yield how long to wait until each next round: ``period_s`` in the mean, unevenly spaced.

    Rounds that are evenly spaced meet a step as long as the period always in the same place.
    """
    phase = 0.0
    while True:
        following = (phase + _GOLDEN) % 1.0
        yield period_s * (1.0 + following - phase)
        phase = following


def script_frames(thread: int) -> Iterator[tuple[FrameType, str]]:
    """Yield a thread's frames, innermost first, without those of Python's library, of torch, of code that
    torch generates, and of the agent. With each comes the function of torch.distributed that it calls;
    empty: none.
    """
    agent, torch, library = _folders(getattr(sys.modules.get("torch"), "__file__", "") or __file__)
    hidden = (agent, torch, *_GENERATED)
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001 - it is documented
    called = ""
    while frame is not None:
        file = frame.f_code.co_filename
        of_library = file.startswith(library) and "site-packages" not in file
        if not of_library and not file.startswith(hidden) and _COMPILED not in file:
            yield frame, called
        elif not file.endswith("/c10d_logger.py"):  # around each of them
            called = frame.f_code.co_name if file.startswith(f"{torch}distributed/") else ""
        frame = frame.f_back


@lru_cache(maxsize=2)
def _folders(torch_file: str) -> tuple[str, str, str]:
    """Those of the agent, of torch and of Python's library."""
    # sysconfig would import, on this thread.
    parents = Path(__file__).parent, Path(torch_file).parent, Path(os.__file__).parent
    agent, torch, library = (f"{each}/" for each in parents)
    return agent, torch, library


class StackSampler:
    """Counts at which line of the script a thread is, and makes a message of that once a second."""

    def __init__(self, folder: Path) -> None:
        """``folder``: the job's working folder. Its files are named without it."""
        self._folder = f"{folder}/"
        self._from_ns: int | None = None
        self._samples = 0
        self._counts: Counter[tuple[str, int | None, str]] = Counter()

    def sample(self, thread: int, at_ns: int) -> None:
        """Look at the thread once."""
        if self._from_ns is None:
            self._from_ns = at_ns
        for frame, _ in script_frames(thread):
            code = frame.f_code
            self._counts[code.co_filename, frame.f_lineno, code.co_name] += 1
            break
        self._samples += 1

    def take(self, rank: int, at_ns: int) -> StackSamples | None:
        """The samples of the last second, and begin anew; None before it is over."""
        if self._from_ns is None or 0 <= at_ns - self._from_ns < SEND_NS:
            return None
        most = self._counts.most_common(MAX_STACK_LINES)
        lines = tuple(StackLine(self._named(*line), samples) for line, samples in most)
        taken = StackSamples(rank, min(self._from_ns, at_ns), at_ns, self._samples, lines)
        self._from_ns, self._samples, self._counts = at_ns, 0, Counter()
        return taken

    def _named(self, file: str, line: int | None, function: str) -> str:
        """``train.py:57 in collate``."""
        if file.startswith(self._folder):
            file = file.removeprefix(self._folder)
        else:
            file = "/".join(PurePath(file).parts[-2:])
        return f"{file[-MAX_NAME_CHARS:]}:{line or 0} in {function[:MAX_NAME_CHARS]}"

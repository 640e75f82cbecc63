"""Lets another thread do something in the middle of a call, at a place that is chosen, not hit by luck."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

Call = Callable[[], Any]


def in_the_middle(module: ModuleType, call: Call) -> Iterator[Callable[[Call], Any]]:
    """For each instruction that `module` executes in `call()`: a function that makes this call, and calls
    what it is given just before that instruction.

    What is given should do its work on another thread, and wait for it: that is what a switch of threads
    there amounts to.
    """
    at, reached = 0, True

    def run(other: Call) -> Any:
        nonlocal reached
        seen, reached = 0, False

        def trace(frame: FrameType, event: str, _arg: object) -> Any:
            nonlocal seen, reached
            if frame.f_code.co_filename != module.__file__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                if seen == at:
                    reached = True
                    other()
                seen += 1
            return trace

        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for the first one in `settrace`
        sys.settrace(trace)
        try:
            return call()
        finally:
            sys.settrace(before)

    while reached:
        yield run
        at += 1

"""Keeps torch.compile from compiling the agent's hooks.

While compiled code runs, Dynamo traces every Python function that is called outside of a graph, hooks and
kernels that C++ calls among them. A strategy set on a function's code object makes it run that one as is.
Setting it imports nothing, and costs nothing where nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(function: F) -> F:
    """Have Dynamo run ``function`` as it is, and all that it calls: for the agent's own code."""
    return _run_as_is(function, callees=True)


def transparent(function: F) -> F:
    """The same for what calls the job's code in its turn, which is compiled as it would be without us."""
    return _run_as_is(function, callees=False)


def _run_as_is(function: F, *, callees: bool) -> F:
    # Public is torch.compiler.disable only, which imports Dynamo: a second for each job.
    try:
        from torch._C._dynamo import eval_frame

        action = eval_frame._FrameAction  # noqa: SLF001
        strategy = eval_frame._FrameExecStrategy(  # noqa: SLF001
            action.SKIP, action.SKIP if callees else action.DEFAULT
        )
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    except (ImportError, AttributeError):  # in this torch it has another name: most jobs compile nothing
        pass
    return function

"""Replaces a function of torch's by one that calls it: the only way to some of what the agent must see."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from overlaptop.agent.isolation.compiling import transparent
from overlaptop.agent.isolation.fault_barrier import warn


def replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put ``wrap(original)`` in the place of ``owner.name``, with the original's name and words."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(transparent(wrap(original))))


def note_calls(owner: Any, name: str, note: Callable[..., Any], *, after: bool = False) -> None:
    """Call ``note`` with the positional arguments of each call of ``owner.name``, before it or after it,
    however it ended. Where there is no such function, as may be in a later torch, the job's log says so.
    """

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        def noted_call(*args: Any, **kwargs: Any) -> Any:
            if not after:
                note(*args)
                return call(*args, **kwargs)
            try:
                return call(*args, **kwargs)
            finally:
                note(*args)

        return noted_call

    if hasattr(owner, name):
        replace(owner, name, noting)
    else:
        warn(f"this torch has no {owner.__name__}.{name}: the agent cannot see its calls")


@contextmanager
def own_handle_numbers() -> Iterator[None]:
    """Number the hooks that are registered here below 0. Torch numbers all hooks of a process in order, and
    a model that is saved whole has the numbers of its own in it.
    """
    from torch.utils.hooks import RemovableHandle

    global _handle_number
    job_number, RemovableHandle.next_id = RemovableHandle.next_id, _handle_number
    try:
        yield
    finally:
        _handle_number, RemovableHandle.next_id = RemovableHandle.next_id, job_number


_handle_number = -(1 << 30)
"""Of the agent's next one."""

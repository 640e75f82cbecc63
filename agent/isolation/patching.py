"""Replaces a torch function by a wrapper: the agent can see some calls in no other way."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from overlaptop.agent.isolation.compiling import transparent
from overlaptop.agent.isolation.fault_barrier import warn


def replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace ``owner.name`` by ``wrap(original)``, with the original's name and docstring."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(transparent(wrap(original))))


def note_calls(owner: Any, name: str, note: Callable[..., Any], *, after: bool = False) -> None:
    """Call ``note`` with the positional arguments of each call of ``owner.name``: before it, or after it
    even if it raises. If this torch has no such function, the job's log says so.
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
    """Give the hooks registered here numbers below 0. Torch numbers all hooks of a process in order, and a
    model that is saved whole contains the numbers of its hooks.
    """
    from torch.utils.hooks import RemovableHandle

    global _handle_number
    job_number, RemovableHandle.next_id = RemovableHandle.next_id, _handle_number
    try:
        yield
    finally:
        _handle_number, RemovableHandle.next_id = RemovableHandle.next_id, job_number


_handle_number = -(1 << 30)
"""The agent's next hook number."""

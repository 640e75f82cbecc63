"""Replaces a torch function by a wrapper: the agent can see some calls in no other way."""

from __future__ import annotations

import functools
from collections.abc import Callable
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

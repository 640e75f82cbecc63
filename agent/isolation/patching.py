"""Replaces a function of torch's by one that calls it: the only way to some of what the agent must see."""

from __future__ import annotations

import functools
from collections.abc import Callable
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

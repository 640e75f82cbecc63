"""Replaces a function of torch's by one that calls it: the only way to some of what the agent must see."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from overlaptop.agent.isolation.compiling import transparent


def replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put ``wrap(original)`` in the place of ``owner.name``, with the original's name and words."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(transparent(wrap(original))))

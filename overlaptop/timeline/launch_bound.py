"""Whether a step was held up by the CPU: it could not launch work as fast as the GPU did it."""

from __future__ import annotations

NO_LEAD = 0.02
"""A launch lead below this share of the step is none: the GPU waits for each launch."""
MUCH_IDLE = 0.05
"""Idle time above this share of the step is worth speaking of."""


def launch_bound(step_ns: int, launch_lead_ns: int | None, idle_ns: int | None) -> bool | None:
    """Whether the step was launch-bound: the CPU had no lead at its end, and the GPU stood idle in it.

    The lead alone does not show it: a step that ends by waiting for the GPU (``loss.item()``) has none
    either, and may yet keep the GPU busy. None where either is not known.
    """
    if launch_lead_ns is None or idle_ns is None:
        return None
    return launch_lead_ns < NO_LEAD * step_ns and idle_ns > MUCH_IDLE * step_ns

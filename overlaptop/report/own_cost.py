"""What the agents cost the job, as text."""

from __future__ import annotations

from overlaptop.wire.messages import OwnCost

LESS = "--every N measures fewer steps, --phases-only none in detail, --no-telemetry leaves out NVML"


def in_brief(cost: OwnCost) -> str:
    """``+0.1 % ± 0.2``."""
    return _with_error(cost.change, cost.error)


def in_full(cost: OwnCost) -> str:
    """One sentence, and how to lower it."""
    return (
        f"overlaptop makes steps {in_brief(cost)} longer, and those that it measures in detail "
        f"{_with_error(cost.measured_change, cost.measured_error)}. For less: {LESS}"
    )


def _with_error(change: float, error: float) -> str:
    return f"{change * 100:+.1f} % ± {error * 100:.1f}"

"""The parts of a step and the lanes of its timeline: order, words, colours, glyphs."""

from dataclasses import dataclass

from overlaptop.tui.draw.segments import DIM, TextStyle
from overlaptop.wire.messages import StepTotals

GOOD_OVERLAP, POOR_OVERLAP = 0.9, 0.6


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of a step in a bar or a lane. ``key`` is also its colour's name."""

    key: str
    word: str
    meaning: str


COMPUTE = StepPart("compute", "compute only", "kernels ran, no communication beside them")
PHASES = StepPart(
    "phases",
    "phases",
    "in place of compute only, if kernels are not seen: forward, backward or optimizer ran, with gaps",
)
HIDDEN = StepPart("hidden", "hidden", "communication that ran while compute ran")
EXPOSED = StepPart("exposed", "exposed", "communication with no compute beside it")
COPY = StepPart("copy", "copy only", "only host-device or device-local copies ran")
FUSED = StepPart(
    "fused", "fused", "kernels that compute and communicate in one: neither hidden nor exposed"
)
IDLE = StepPart("idle", "idle", "nothing ran")
STALL = StepPart("stall", "stall", "compute waited for communication")
WAITING = StepPart("waiting", "waiting", "communication until the late rank starts; no byte moves")
HIDDEN_WAITING = StepPart("hidden_waiting", "waiting", "the same, beside compute: not counted as exposed")
STEP_PARTS = (COMPUTE, HIDDEN, EXPOSED, FUSED, COPY, IDLE)
LEGEND = (COMPUTE, PHASES, HIDDEN, EXPOSED, WAITING, FUSED, COPY, IDLE, STALL)
COMM_LANE = (HIDDEN, HIDDEN_WAITING, EXPOSED, WAITING, FUSED)
PARTS = {part.key: part for part in (*STEP_PARTS, PHASES, STALL, WAITING, HIDDEN_WAITING)}


def parts_of(
    step: StepTotals, exposed_wait_ns: int = 0, compute: StepPart = COMPUTE
) -> tuple[tuple[str, int], ...]:
    """Return a measured step's parts in drawing order, in ns, ``exposed_wait_ns`` apart from exposed.
    ``compute``: PHASES if no more is known of it.
    """
    exposed_ns = (step.exposed_ns or 0) - exposed_wait_ns
    return (
        (compute.key, step.compute_only_ns or 0),
        (HIDDEN.key, step.hidden_ns or 0),
        (EXPOSED.key, exposed_ns),
        *(((WAITING.key, exposed_wait_ns),) if exposed_wait_ns else ()),
        *(((FUSED.key, step.fused_ns),) if step.fused_ns else ()),
        (COPY.key, step.copy_only_ns or 0),
        (IDLE.key, step.idle_ns or 0),
    )


def overlap_style(overlap: float | None, *, bold: bool = False) -> TextStyle:
    """Return green for hidden, orange for exposed, plain in between; the figure itself says the same."""
    if overlap is None:
        return DIM
    color = "good" if overlap >= GOOD_OVERLAP else "bad" if overlap < POOR_OVERLAP else "text"
    return TextStyle(color, bold=bold)

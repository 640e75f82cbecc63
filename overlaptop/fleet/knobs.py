"""The job's knobs, merged over all ranks. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from overlaptop.wire.commands import HOW_TO_ALLOW
from overlaptop.wire.knobs import Knob
from overlaptop.wire.messages import AGENT_DISABLED, RankInfo

NOT_ALLOWED = f"{HOW_TO_ALLOW} changes"


@dataclass(frozen=True, slots=True)
class JobKnob:
    """One knob of the job."""

    knob: Knob  # The description of the lowest rank that has it
    differs: bool
    """Ranks have different values, or some have none. This happens only briefly, during a change."""
    refusal: str  # Why it cannot be changed, with the rank that refuses. Empty if it can.


def job_knobs(ranks: Iterable[tuple[RankInfo | None, tuple[Knob, ...]]]) -> tuple[JobKnob, ...]:
    """Return all knobs that any rank has. ``ranks``: the running ones by number, with their knobs."""
    known = [(info, {knob.name: knob for knob in knobs}) for info, knobs in ranks if info is not None]
    names = dict.fromkeys(name for _, knobs in known for name in knobs)
    return tuple(_together(name, known) for name in names)


def _together(name: str, known: list[tuple[RankInfo, dict[str, Knob]]]) -> JobKnob:
    held = [(info, knobs[name]) for info, knobs in known if name in knobs]
    first = held[0][1]
    refusal = ""
    for info, knobs in known:
        own = knobs.get(name)
        if info.agent_disabled:
            refusal = refusal or f"rank {info.rank}: {AGENT_DISABLED}"
        elif not info.control_allowed:
            refusal = refusal or NOT_ALLOWED
        elif own is None:
            refusal = refusal or f"rank {info.rank} has no {name}"
        elif own.refusal:
            refusal = refusal or f"rank {info.rank}: {own.refusal}"
    differs = len(held) < len(known) or any(knob.value_text != first.value_text for _, knob in held)
    return JobKnob(first, differs, refusal)

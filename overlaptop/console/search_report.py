"""What a search measured and found, as lines, a table, and records of JSON."""

from __future__ import annotations

import math

from overlaptop import text
from overlaptop.console.table import Table
from overlaptop.report.knobs import value_words
from overlaptop.tuning.search import CONFIDENCE, MeasuredValue
from overlaptop.tuning.state import MeasuredWindow, SearchState


def window_words(state: SearchState, window: MeasuredWindow) -> str:
    """One line of progress."""
    mean_ns = sum(window.steps_ns) / len(window.steps_ns)
    words = [
        f"round {window.round + 1}: {state.knob.name} {value_words(state.knob, window.value)}",
        f"{text.duration(mean_ns)} a step in {text.plural(len(window.steps_ns), 'step')}",
        text.plural(state.candidates, "candidate"),
        f"{text.plural(state.steps_spent, 'step')} spent"
        + (f", at most {state.steps_to_go} to go" if state.steps_to_go is not None else ""),
    ]
    return ", ".join(words)


def table(state: SearchState) -> str:
    """What was measured of each value."""
    head = [state.knob.name, "step time", "95 % interval", "exposed", "windows", "steps", ""]
    rows = Table(head, left={""})
    for point in state.points:
        is_best = state.result is not None and state.result.found.value == point.value
        rows.add(
            str(point.value),
            text.duration(point.step_ns),
            (
                f"{text.duration(point.low_ns)} .. {text.duration(point.high_ns)}"
                if math.isfinite(point.high_ns)
                else text.UNKNOWN
            ),
            text.duration(point.exposed_ns),
            str(point.windows),
            str(point.steps),
            "best" if is_best else point.state.value,
        )
    return rows.render()


def last_line(state: SearchState, left: str) -> str:
    """The best setting, what it saves, how sure; which one the job has; and the line to paste."""
    result = state.result
    assert result is not None
    said = [result.line]
    if left:
        said.append(left[0].upper() + left[1:])
    if result.code:
        said.append(f"To make {value_words(state.knob, result.found.value)} permanent: {result.code}")
    return ". ".join(said)


def window_record(job: str | None, state: SearchState, window: MeasuredWindow) -> dict[str, object]:
    """A window as it was measured; times in ns."""
    return {
        "type": "window",
        "job": job,
        "knob": state.knob.name,
        "value": window.value,
        "round": window.round,
        "first_step": window.first_step,
        "step_ns": list(window.steps_ns),
        "exposed_ns": window.exposed_ns,
    }


def point_record(job: str | None, state: SearchState, point: MeasuredValue) -> dict[str, object]:
    """All that is known of a value; times in ns."""
    told = math.isfinite(point.high_ns)
    return {
        "type": "point",
        "job": job,
        "knob": state.knob.name,
        "value": point.value,
        "state": point.state.value,
        "windows": point.windows,
        "steps": point.steps,
        "step_ns": round(point.step_ns),
        "low_ns": round(point.low_ns) if told else None,
        "high_ns": round(point.high_ns) if told else None,
        "exposed_ns": point.exposed_ns,
    }


def result_record(job: str | None, state: SearchState) -> dict[str, object]:
    """What was found; savings are fractions of the step with the value before."""
    result = state.result
    assert result is not None
    found = result.found
    told = math.isfinite(found.saves_low)
    return {
        "type": "result",
        "job": job,
        "knob": state.knob.name,
        "value": found.value,
        "before": result.before_text,
        "saves": found.saves if told else None,
        "saves_low": found.saves_low if told else None,
        "saves_high": found.saves_high if told else None,
        "confidence": CONFIDENCE,
        "known": found.known,
        "first_guess": found.once,
        "rivals_gain": found.rivals_gain,
        "steps_spent": state.steps_spent,
        "ended": state.why,
        "left": state.left,
        "line": result.line,
        "code": result.code,
    }

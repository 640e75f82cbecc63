"""What a search measured and found, as lines, a table, and records of JSON."""

from __future__ import annotations

import math

from overlaptop import text
from overlaptop.console.table import Table
from overlaptop.tuning.state import CurvePoint, MeasuredWindow, SearchState, value_text


def steps(number: int) -> str:
    """``1 step``, ``12 steps``."""
    return f"{number} step{'s' * (number != 1)}"


def window_words(state: SearchState, window: MeasuredWindow) -> str:
    """One line of progress."""
    mean_ns = sum(window.steps_ns) / len(window.steps_ns)
    words = [
        f"round {window.round + 1}: {state.knob.name} {window.value} {state.knob.unit}".rstrip(),
        f"{text.duration(mean_ns)} a step in {steps(len(window.steps_ns))}",
        f"{state.candidates} candidate{'s' * (state.candidates != 1)}",
        f"{steps(state.steps_spent)} spent"
        + (f", at most {state.steps_to_go} to go" if state.steps_to_go is not None else ""),
    ]
    return ", ".join(words)


def table(state: SearchState) -> str:
    """What was measured of each value, and how far the model is off."""
    rows = Table(
        [
            state.knob.name,
            "step time",
            "95 % interval",
            "exposed",
            "windows",
            "steps",
            "model",
            "error",
            "",
        ],
        left={""},
    )
    result = state.result
    for point in state.points:
        error = point.model_error
        rows.add(
            [
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
                text.duration(point.predicted_ns),
                text.UNKNOWN if error is None else f"{error * 100:+.1f} %",
                "best" if result is not None and result.value == point.value else point.state.value,
            ]
        )
    return f"{rows.render()}\n{model_words(state)}"


def model_words(state: SearchState) -> str:
    """How well the model knows the job: what it had seen when it spoke, and what it had not."""
    now = [abs(each.model_error) for each in state.points if each.model_error is not None]
    blind = [abs(each.foretold_error) for each in state.points if each.foretold_error is not None]
    if not now:
        return f"no model: {state.model_reason}"
    words = f"the model is off by {text.percent(sum(now) / len(now))} on average"
    words += f", {text.percent(max(now))} at most"
    if blind:
        words += (
            f"; before a value was measured, by {text.percent(sum(blind) / len(blind))} on average "
            f"({len(blind)} values)"
        )
    return words


def last_line(state: SearchState, left: str) -> str:
    """The best setting, what it saves, how sure; which one the job has; and the line to paste."""
    found = state.result
    assert found is not None
    said = [found.line]
    if left:
        said.append(left[0].upper() + left[1:])
    if found.code:
        said.append(f"To make {value_text(state.knob, found.value)} permanent: {found.code}")
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


def point_record(job: str | None, state: SearchState, point: CurvePoint) -> dict[str, object]:
    """All that is known of a value; times in ns, errors of the model as fractions."""
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
        "predicted_ns": None if point.predicted_ns is None else round(point.predicted_ns),
        "model_error": point.model_error,
        "foretold_ns": None if point.foretold_ns is None else round(point.foretold_ns),
        "foretold_error": point.foretold_error,
    }


def result_record(job: str | None, state: SearchState) -> dict[str, object]:
    """What was found; savings are fractions of the step with the value before."""
    found = state.result
    assert found is not None
    told = math.isfinite(found.saves_low)
    return {
        "type": "result",
        "job": job,
        "knob": state.knob.name,
        "value": found.value,
        "before": found.before_text,
        "saves": found.saves if told else None,
        "saves_low": found.saves_low if told else None,
        "saves_high": found.saves_high if told else None,
        "confidence": found.confidence,
        "known": found.known,
        "first_guess": found.first_guess,
        "rivals_gain": found.rivals_gain,
        "steps_spent": state.steps_spent,
        "ended": state.why,
        "left": state.left,
        "line": found.line,
        "code": found.code,
    }

"""The question for an exact value of the selected knob, for the foot of any screen."""

from __future__ import annotations

from collections.abc import Callable

from overlaptop.tui.draw.line_prompt import LinePrompt
from overlaptop.tui.tune.knob_values import SCRIPT, allowed_words, short_name
from overlaptop.wire.knobs import Knob


def ask_for_value(knob: Knob, take: Callable[[str], str]) -> LinePrompt:
    """A value, or the word for the script's own."""
    original = f"{SCRIPT} ({knob.original_text})" if knob.original_text else SCRIPT
    answer = str(knob.value) if knob.value is not None else ""
    hint = f"{allowed_words(knob)}, or: {original}   esc: not now"
    return LinePrompt(f"{short_name(knob.name)}:", answer, hint, take)

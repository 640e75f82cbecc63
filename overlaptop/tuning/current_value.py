"""Which value of a knob the job has, as far as a search has changed it."""

from __future__ import annotations

from overlaptop.report.knobs import present_words, value_words
from overlaptop.wire.knobs import Knob


class CurrentValue:
    """The value in force, from the changes that a search had made. `switch` with each change."""

    def __init__(self, knob: Knob, undo_value: int | None) -> None:
        """``knob``: as it was before the search, which is gone back to with `undo_value`."""
        self._knob, self._undo_value = knob, undo_value
        self.value = knob.value
        """None: not a whole number, or not known."""
        self.undone = True
        """It is the value before."""
        self._changed = False
        """It has ever been another one."""

    def switch(self, value: int | None) -> None:
        """All ranks have this one now; None: what the script gave."""
        self.value = self._knob.value if value is None else value
        self.undone, self._changed = value == self._undo_value, True

    def lose(self) -> None:
        """Ranks may have different values now."""
        self.value, self.undone, self._changed = None, False, True

    @property
    def before_text(self) -> str:
        """The value that the job had, as a person reads it."""
        return present_words(self._knob)

    @property
    def before(self) -> int:
        """The same, or the whole number next to it: that one is measured in its place."""
        if self._knob.value is not None:
            return self._knob.value
        try:
            return max(self._knob.least, min(round(float(self._knob.value_text)), self._knob.most))
        except (ValueError, OverflowError):
            return self._knob.least

    def in_words(self, value: int | None) -> str:
        """A value with its unit; None: what the script gave."""
        return value_words(self._knob, value)

    def words_after(self, value: int | None, *, known: bool) -> str:
        """Which value the job has after somebody else's change; not ``known``: if that was made."""
        if known:
            return f"the job has {self.in_words(value)}, as somebody else set it"
        return (
            f"it is not known which value the job has; its hub goes back to {self.before_text} unless it "
            "learns of that change"
        )

    @property
    def words(self) -> str:
        """Which value the job has now, a sentence without a full stop."""
        if not self._changed:
            return f"the job still has {self.before_text}"
        if self.undone:
            return f"the job has {self.before_text} again, as before the search"
        if self.value is None:
            return "ranks may have different values now"
        return f"the job has {self.in_words(self.value)} now"

"""Trials of this dashboard: a row for each value or rank, and the result."""

from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from overlaptop.report.knobs import present_words
from overlaptop.text import count, duration, plural
from overlaptop.tui.draw.layout import Item, code_to_keep, fit, paragraph
from overlaptop.tui.draw.segments import BOLD, DIM, TEXT, Segment, StyledLine, TextStyle, bold, dim
from overlaptop.tui.draw.table import Column, Table
from overlaptop.tui.help.glossary import TRIALS
from overlaptop.tui.model.keys import TRIALS_KEYS, bindings
from overlaptop.tui.model.running_trials import RunningTrials, usual_values
from overlaptop.tui.widgets.prompt import LinePrompt
from overlaptop.tui.widgets.screen import PageScreen
from overlaptop.tui.widgets.view import Page
from overlaptop.wire.knobs import Knob

if TYPE_CHECKING:
    from overlaptop.trials.runner import TrialsState
    from overlaptop.trials.settings import Best

_WHAT_THEY_ARE = (
    "In a trial all ranks switch a knob to another value at one step, and back some steps later. Each "
    "value is tried several times, in random order, against the steps around it, until its difference is "
    "known. x delays one rank at a time in the same way, to find the ranks on the critical path. You can "
    "leave, quit or stop at any moment: nothing has to be undone."
)
_STYLES = {"shorter": "good", "best": "good", "longer": "bad", "critical": "warning", "refused": "error"}


class TrialsView(Page):
    """The newest trials, or an explanation if there were none."""

    def lines(self, width: int) -> list[StyledLine]:
        running = self.dashboard.trials.newest
        if running is None:
            return [(bold(" No trials yet"),), (), *paragraph(_WHAT_THEY_ARE, width, TEXT, rows=12)]
        state, best = running.trials.state, running.best
        lines = _status(running, state, width)
        if running.job != self.dashboard.session.job_key:
            warning = TextStyle("warning", bold=True)
            lines += paragraph("of an earlier job", width, warning, indent=3)
        lines += [(), *_rows(running, best, width)]
        for each in state.tried:
            if each.refused:
                text = f"{each.candidate.name}: {each.refused}"
                lines += paragraph(text, width, TextStyle("error"), rows=3)
        if best is not None and state.over:
            lines += [(), *paragraph(best.line, width, BOLD, rows=4)]
            if best.code:
                lines += code_to_keep(best.code, width)
        return lines


def _status(running: RunningTrials, state: "TrialsState", width: int) -> list[StyledLine]:
    style = TextStyle("error" if state.failed else "good" if state.over else "warning", bold=True)
    glyph = "✗" if state.failed else "■" if state.over else "◆"
    spent = plural(state.spent_steps, "step")
    if state.budget_steps is not None and state.left_ns is not None and not state.over:
        whole, left = plural(state.budget_steps, "step"), duration(state.left_ns)
        spent = f"{count(state.spent_steps)} of {whole}, {left} left at most"
    title = Item((Segment(f" {glyph} ", style), bold(running.title)))
    lines = [fit([title, Item((dim(spent),), 1)], [], width)]
    doing = state.why if state.over else state.doing
    return lines + (paragraph(doing, width, style, indent=3, rows=3) if doing else [])


class _Row(NamedTuple):
    name: str
    step_ns: float | None
    effect: str
    trials: str
    verdict: str


def _rows(running: RunningTrials, best: "Best | None", width: int) -> list[StyledLine]:
    """Return a row for each value, below the present one; or for each delayed rank."""
    from overlaptop.trials import settings, slack

    state, knob, rows = running.trials.state, running.knob, []
    verdict, effect = slack.verdict, slack.slope_words
    if knob is not None:
        verdict, effect = settings.verdict, settings.difference_words
        rows.append(_Row(present_words(knob), state.present_ns, "", "", "present"))
    for tried in state.tried:
        step_ns = None
        if tried.effect is not None and state.present_ns is not None:
            step_ns = state.present_ns * (1 + tried.effect.centre)
        is_best = best is not None and best.value == tried.candidate.key
        word = "best" if is_best else verdict(tried)
        rows.append(_Row(tried.candidate.name, step_ns, effect(tried.effect), str(len(tried.pairs)), word))

    def verdict_cell(row: _Row) -> Segment:
        color = _STYLES.get(row.verdict)
        return Segment(row.verdict, DIM if color is None else TextStyle(color, bold=True))

    step: Column[_Row] = Column("step", 8, lambda row: duration(row.step_ns))
    columns: list[Column[_Row]] = [
        Column("rank" if knob is None else "value", 9, lambda row: bold(row.name)),
        *([] if knob is None else [step]),
        Column("slope (95 %)" if knob is None else "difference (95 %)", 25, lambda row: row.effect),
        Column("trials", 6, lambda row: dim(row.trials), shown_from=62),
        Column("verdict", 15, verdict_cell, right=False),
    ]
    table = Table(columns, width)
    return [table.header(), *map(table.row, rows)]


class TrialsScreen(PageScreen[TrialsView]):
    """The trials of this dashboard."""

    title_in_help = TRIALS
    BINDINGS: ClassVar = bindings(TRIALS_KEYS)
    view_class = TrialsView

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        trials, job = self.dashboard.trials, self.dashboard.session.job_key
        if (action == "keep" and trials.best(job) is None) or (action == "stop" and not trials.running):
            return False
        return super().check_action(action, parameters)

    async def action_stop(self) -> None:
        self.dashboard.trials.stop()

    async def action_keep(self) -> None:
        dashboard = self.dashboard
        if (best := dashboard.trials.best(dashboard.session.job_key)) is not None:
            dashboard.knobs.selected_name, value = best
            dashboard.knobs.type(str(value))

    async def ask_for_values(self, knob: Knob) -> None:
        """Ask for values to try. Escape closes a screen without trials, too."""
        dashboard, usual = self.dashboard, usual_values(knob, self.dashboard.latest)
        hint = "no other value is known to do anything else"
        if usual:
            from overlaptop.trials.runner import longest_ns

            step_ns = dashboard.latest.totals.step_ns
            longest = f", up to {duration(longest_ns(step_ns))} a value" if step_ns else ""
            hint = f"enter: start{longest}   esc: not now"

        def try_values(typed: str) -> None:
            dashboard.trials.try_values(dashboard.latest, knob.name, typed)

        take = partial(dashboard.answer, try_values)
        await self.ask(LinePrompt(f"try {knob.name} ", usual, hint, take, left=self._leave_if_empty))

    def _leave_if_empty(self) -> None:
        if self.dashboard.trials.newest is None:
            self.action_back()

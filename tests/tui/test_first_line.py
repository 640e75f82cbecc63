"""The form of the first line does not turn with its figures."""

from overlaptop.report.who_is_late import FirstLine

from .fakes import opened, shown, text_of
from .waits import waiting_job

WIDTH = 100


async def test_a_shorter_form_stays_while_the_longer_one_hardly_fits():
    async with opened(waiting_job(), size=(WIDTH, 40)) as (app, pilot):
        await shown(app, pilot)
        view, state = app.screen._first_line, app.dashboard.state
        state.findings = ()
        forms = []
        for length in (WIDTH - 5, WIDTH - 3, WIDTH - 5, WIDTH - 3, WIDTH - 20):
            state.first_line = FirstLine("w" * length, "brief")
            (line,) = view.draw(WIDTH, 1)
            forms.append("brief" if "brief" in text_of(line) else "words")
        assert forms == ["words", "brief", "brief", "brief", "words"]

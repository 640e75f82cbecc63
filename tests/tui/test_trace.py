"""The dashboard on a finished trace: a picture that stands still."""

import re
from pathlib import Path

from overlaptop.commands.analyze import session_of
from overlaptop.formats.finished_session import FinishedSession
from overlaptop.formats.job import analyze
from overlaptop.timeline.lanes import LaneRules
from overlaptop.tui.help.glossary import OF_TRACES
from tests.formats.traces import kernel, small_job, write

from .fakes import line_of, opened, screen_of, shown

DATA = Path(__file__).parent.parent / "formats" / "data"


def trace_of(path: Path) -> FinishedSession:
    return session_of(analyze(path, LaneRules()))


async def test_fused_kernels_have_a_glyph_figures_and_a_legend(tmp_path: Path) -> None:
    flux = "void cutlass::device_kernel<cutlass::gemm::kernel::Sm90RSGemmUniversal<X> >()"
    fused = write(tmp_path / "fused.json", kernel(0, 20), kernel(20, 60, flux), kernel(80, 20))
    screen = await screen_of(trace_of(fused), ascii=True, size=(100, 40))
    for row in (" compute  ", " comm  "):
        assert re.search(r"%{40,}", line_of(screen, row))
    for words in ("%% fused", "fused 60.0 us", "no communication was measured; 60.0 us is fused"):
        assert words in screen


async def test_brackets_select_a_step_or_the_whole_trace(tmp_path: Path) -> None:
    async with opened(trace_of(small_job(tmp_path)), size=(140, 40)) as (app, pilot):
        whole = await shown(app, pilot)
        for number, overlap in ((5, "100.0 %"), (6, "50.0 %"), (6, "50.0 %")):
            text = await shown(app, pilot, "]")
            assert f"overlap {overlap}" in text.splitlines()[3]
            assert f"rank 0  step {number}   100 µs" in text
        assert "step 5  overlap 100.0 %" in await shown(app, pilot, "enter", "[")
        assert await shown(app, pilot, "escape", "[", "[") == whole


async def test_nothing_is_offered_that_a_trace_cannot_do(tmp_path: Path) -> None:
    async with opened(trace_of(small_job(tmp_path)), size=(220, 200)) as (app, pilot):
        before = (await shown(app, pilot)).splitlines()
        assert "[] step" in before[-1]
        for key in (*"c5au7bo4wm6H8pd", "space"):
            assert (await shown(app, pilot, key)).splitlines() == before, key
        assert not app._notifications
        page = await shown(app, pilot, "question_mark")
    titles = {line.strip() for line in page.splitlines()[:-1] if re.match(r" \w", line)}
    assert titles == {*OF_TRACES, "Words here", "Everywhere", "Other words"}

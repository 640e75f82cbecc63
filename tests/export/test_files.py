"""Chrome, Perfetto, CSV and HTML files of a job."""

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from overlaptop.export import chrome, page
from overlaptop.export.timeline import JobTimeline, from_snapshot, from_traces
from overlaptop.formats.job import analyze
from overlaptop.records import FindingRecord
from overlaptop.timeline.lanes import LaneRules
from tests.export.jobs import RECORDED, all_reduce, folders, recorded, traced
from tests.export.test_perfetto import require_same_figures
from tests.fleet.builders import info, status, welcome
from tests.fleet.fakes import FakeSession
from tests.formats.traces import kernel, write
from tests.tui.waits import split_step

FIGURES = (
    *("rank", "step", "step_ns", "compute_ns", "comm_ns", "hidden_ns", "exposed_ns", "copy_only_ns"),
    *("fused_ns", "overlap", "wait_ns", "transfer_ns", "not_attributed_ns", "exposed_wait_ns", "late_rank"),
)


def figures(job: JobTimeline) -> list[list]:
    return [[getattr(each, name) for name in FIGURES] for each in job.step_records()]


def require_same_when_read_back(job: JobTimeline, folder: Path) -> None:
    files = chrome.write(job, folder)
    assert [file.name for file in files] == [f"rank{each.rank}.json.gz" for each in job.ranks]
    assert figures(from_traces(traced(folder))) == figures(job)


@pytest.mark.parametrize("name", RECORDED)
def test_all_files_of_a_job_have_the_same_figures(name: str, tmp_path: Path) -> None:
    require_same_when_read_back(recorded(name), tmp_path / "chrome")
    require_same_figures(recorded(name))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_all_files_of_any_job_have_the_same_figures(data: st.DataObject, tmp_path_factory) -> None:
    folder: Path = tmp_path_factory.mktemp("job")
    job = from_traces(traced(data.draw(folders(folder))))
    require_same_when_read_back(job, folder / "chrome")
    require_same_figures(job)


def test_hta_counts_every_activity_of_chrome_files(tmp_path: Path) -> None:
    """It leaves out what was launched after the last ProfilerStep began, so one more follows."""
    # Whole microseconds: of others it rounds starts and ends.
    write(tmp_path / "rank0.json", kernel(0, 50), all_reduce(20, 60, 1), kernel(90, 5), rank=0)
    chrome.write(from_traces(traced(tmp_path / "rank0.json")), tmp_path / "chrome")
    (by_hta,) = analyze(tmp_path / "chrome", LaneRules(), by_hta=True).whole
    assert (by_hta.comm_ns, by_hta.hidden_ns, by_hta.compute_ns) == (60_000, 30_000, 55_000)


def test_csv_has_the_fields_of_step_records() -> None:
    job = recorded("ddp_gloo")
    out = io.StringIO(newline="")
    job.write_csv(out)
    found = list(csv.DictReader(io.StringIO(out.getvalue(), newline="")))
    for row, record in zip(found, map(asdict, job.step_records()), strict=True):
        assert list(row) == list(record)
        assert row["step_ns"] == str(record["step_ns"])
        assert row["compute_exact"] == "false"
        assert row["idle_ns"] == ""
        assert '"overlap": "≤"' in row["bounds"]


# The page

MARKUP = "<script>alert(1)</script><!--data--><b>"


class Page(HTMLParser):
    """The elements, their text, and the addresses that they would load."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.words, self.loaded = [], [], []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def summary(words: str) -> page.Summary:
    finding = FindingRecord("job", "late", words, (), words, 1_000_000, "likely", words, None)
    return page.Summary(words, words, words, {"overlap": words}, [finding])


def test_names_with_markup_stay_text(tmp_path: Path) -> None:
    for rank in range(2):
        events = [kernel(0, 50), all_reduce(10 + rank, 60, 2, **{"Collective name": MARKUP})]
        write(tmp_path / f"rank{rank}.json", *events, rank=rank, world_size=2)
    job = from_traces(traced(tmp_path))
    assert job.collectives[0].op == MARKUP
    plain, marked = (Page(page.render(job, summary(words))) for words in ("plain", MARKUP))
    assert marked.tags == plain.tags
    assert marked.words.count(MARKUP) > 6


def test_the_page_loads_nothing() -> None:
    html = page.render(recorded("ddp_25mb"), summary("rank 2 is late"))
    assert Page(html).loaded == []
    assert re.search(r"https?://|@import|url\(", html) is None
    assert "default-src 'none'" in html


def test_a_long_job_is_drawn_from_the_first_step_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    job = recorded("ddp_25mb")
    whole = page.render(job, summary(""))
    monkeypatch.setattr(page, "MAX_SPANS", 3000)
    part = page.render(job, summary(""))
    assert "3 measured steps, 2 to 4." in whole
    assert re.search("[12] measured steps?, [34] to 4", part)
    monkeypatch.setattr(page, "MAX_SPANS", 1)
    assert "No step is short enough to be drawn." in page.render(job, summary(""))


def drawn_ranks(html: str) -> list[dict]:
    return json.loads(html.partition('id="data">')[2].partition("</script>")[0])["ranks"]


def test_phases_are_drawn_as_such_where_kernels_are_not_seen() -> None:
    session = FakeSession(welcome(), info(0, exact=False), *split_step(0, 0), status())
    html = page.render(from_snapshot(session.tick()), summary(""))
    (rank,) = drawn_ranks(html)
    assert "phases" in rank["lanes"]
    assert "compute" not in rank["lanes"]
    assert "Phases (forward, backward, optimizer)" in html


def test_of_many_ranks_those_are_drawn_that_others_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_DRAWN_RANKS", 2)
    html = page.render(recorded("ddp_25mb"), summary(""))
    assert "The 2 of 4 ranks that others waited for most." in html
    assert [rank["rank"] for rank in drawn_ranks(html)] == [0, 2]
    assert html.count("of 75</td>") == 4

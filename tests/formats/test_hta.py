"""HolisticTraceAnalysis's rules, against what HolisticTraceAnalysis itself computed."""

import gzip
import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.formats import chrome, files, hta
from overlaptop.formats.summary import summarize
from overlaptop.timeline import ratios
from tests.formats.traces import DATA, PATH, kernel, nccl, read, text

RECORDED = json.loads((DATA / "hta-0.5.0.json").read_text())
ROUNDED_TO_POINTS = 0.01


def events_of(content):
    return chrome.decode(PATH, content).events


def breakdowns(*traces):
    return hta.choose([hta.figures(events_of(json.dumps(each).encode())) for each in traces])


def overlap(whole):
    return ratios.overlap(whole.hidden_ns, whole.comm_ns)


@pytest.mark.parametrize("job", RECORDED)
def test_every_rank_of_every_recorded_job_is_as_hta_has_it(job):
    recorded = RECORDED[job]
    paths = [DATA / job / f"rank{rank}.json.gz" for rank in range(len(recorded))]
    found = hta.choose([hta.figures(events_of(files.read(path))) for path in paths])
    for rank, whole in enumerate(found):
        said = recorded[str(rank)]
        assert abs(100 * overlap(whole) - said["overlap_pct"]) <= ROUNDED_TO_POINTS / 2 + 1e-9
        assert whole.idle_ns == 1000 * said["idle_time(us)"]
        assert whole.compute_ns == 1000 * said["compute_time(us)"]
        assert whole.step_ns == 1000 * said["kernel_time(us)"]


def test_made_up_jobs_with_every_oddity_are_as_hta_has_it():
    cases = json.loads(gzip.decompress((DATA / "random.json.gz").read_bytes()))
    assert len(cases) > 50
    assert sum(any(case["overlap_pct"]) for case in cases) > 30
    for case in cases:
        found = breakdowns(*case["traces"])
        said = case["overlap_pct"]
        assert [100 * overlap(whole) for whole in found] == pytest.approx(said, abs=ROUNDED_TO_POINTS)
        for whole, us in zip(found, case.get("us", ()), strict="us" in case):
            assert whole.idle_ns == pytest.approx(1000 * us["idle"])
            assert whole.compute_ns == pytest.approx(1000 * us["compute"])
            assert whole.step_ns == pytest.approx(1000 * us["kernel"])


RAN = st.tuples(st.integers(0, 10_000), st.integers(1, 3_000), st.sampled_from((kernel, nccl)))


@given(st.lists(RAN, min_size=1, max_size=60))
def test_of_whole_microseconds_without_steps_both_agree(activities):
    """Of the differences that --help lists, none is there: the figures must agree to the last digit."""
    # Each on a stream of its own: of one stream no two run at once.
    events = (make(start, length, stream=at) for at, (start, length, make) in enumerate(activities))
    content = text(*events, base_ns=0)
    ours = summarize(read(content), 0, "job").whole
    theirs = hta.figures(events_of(content)).everything
    assert asdict(theirs) == {name: getattr(ours, name) for name in asdict(theirs)}

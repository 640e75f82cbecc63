"""What is shown of findings changes when the job does, or on evidence that lasts."""

from dataclasses import replace

import pytest
from msgspec import structs

from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.watch import SteadyFindings, SteadyLine
from overlaptop.fleet.snapshot import HubState
from overlaptop.report.who_is_late import FirstLine, Kind, overlap_line
from tests.fleet.builders import MS, S
from tests.tui.waits import waiting_job

SNAPSHOT = replace(waiting_job().tick(), hub_state=HubState.LIVE)
FIGURES = overlap_line(SNAPSHOT).words
HEALTHY = FirstLine("healthy", "", kind=Kind.HEALTHY)
EXPOSED = FirstLine("exposed", "", kind=Kind.EXPOSED)
UNKNOWN = FirstLine("unknown", "", kind=Kind.UNKNOWN)
NOT_YET = FirstLine("too few", "", kind=Kind.MEASURING)
JITTER = FirstLine("jitter", "", rule="jitter", kind=Kind.FINDING)
OF_JOB = FirstLine("bytes move", "", rule="communication_bound", kind=Kind.FINDING)
CPUS = FirstLine("no CPU", "", rule="short_cpus", kind=Kind.FINDING, warns=True)
SLACK = FirstLine("slack", "", rule="slack", kind=Kind.SLACK)
LATE = FirstLine("late", "", late_rank=1, kind=Kind.LATE)
LOADS = LATE._replace(words="late: loads", cause="it loads", cause_rule="data_loading")
LAUNCHES = LATE._replace(words="late: launches", cause="it is launch-bound", cause_rule="launch_bound")


def at(second, **changes):
    """The snapshot so many seconds after the first look."""
    return replace(SNAPSHOT, at_ns=SNAPSHOT.at_ns + round(second * S), **changes)


def shown(*told, line=None):
    """What is shown of lines: each so many seconds after the first look, and since which step the job goes
    on as it does, if not since its first.
    """
    line = line or SteadyLine()
    line.take(SNAPSHOT, None)
    return [line.take(at(second, first_step=sum(first)), said).words for second, said, *first in told]


def settled(said):
    return [(1, said, ""), (9, said, said.words)]


SHOWN = {
    "seconds until the first answer has held": [
        (1, None, "measuring, 1 s"), (3, NOT_YET, "measuring, 3 s"), (4, LOADS, "measuring, 4 s"),
        (4.5, LOADS, "measuring, 4 s"), (5, LOADS, "late: loads"),
    ],
    **{
        f"the vaguer the first answer the longer it holds: {line.words}": [
            (1, line, "measuring, 1 s"), (0.9 + seconds, line, f"measuring, {int(0.9 + seconds)} s"),
            (1 + seconds, line, line.words),
        ]
        for line, seconds in ((LOADS, 1), (JITTER, 1), (LATE, 3), (HEALTHY, 4), (UNKNOWN, 5))
    },
    "newer figures of the same": [*settled(LOADS), (10, LOADS._replace(words="more"), "more")],
    "another answer after ten seconds": [
        *settled(LOADS), (10, HEALTHY, "late: loads"), (20, HEALTHY, "healthy"),
    ],
    "no other answer with another between": [
        *settled(LOADS), (10, HEALTHY, "late: loads"), (16, JITTER, "late: loads"),
        (21, HEALTHY, "late: loads"),
    ],
    "any answer after one that knows nothing": [
        *settled(UNKNOWN), (10, LOADS, FIGURES), (11, LOADS, "late: loads"),
    ],
    "slack of the late rank once it has held": [
        *settled(LOADS), (10, SLACK, "late: loads"), (11, SLACK, "slack"), (12, LATE, "slack"),
    ],
    "the late rank's cause once it has held": [
        *settled(LATE), (10, LOADS, "late"), (11, LOADS, "late: loads"), (12, LATE, "late: loads"),
    ],
    "a problem after three seconds where nothing was wrong": [
        *settled(HEALTHY), (10, CPUS, "healthy"), (12.9, CPUS, "healthy"), (13, CPUS, "no CPU"),
    ],
    "a late rank with a cause after three seconds of the job's finding": [
        *settled(OF_JOB), (10, LOADS, "bytes move"), (13, LOADS, "late: loads"),
    ],
    "a better cause of the rank with a slow CPU": [
        *settled(LAUNCHES), (10, LOADS, "late: launches"), (11, LOADS, "late: loads"),
    ],
    "figures while a late answer has not held yet": [
        (20, NOT_YET, "too few"), (40, HEALTHY, FIGURES), (43, HEALTHY, FIGURES), (44, HEALTHY, "healthy"),
    ],
    "the earlier answer at first after a change": [
        *settled(HEALTHY), (22, LOADS, "healthy", 90), (23, LOADS, "late: loads", 90),
    ],
    "no earlier answer in a job that changes again and again": [
        *settled(LOADS), *((10 + 8 * nth, NOT_YET, "late: loads", 100 + nth) for nth in range(2)),
        (26, NOT_YET, "measuring, 0 s", 102),
    ],
    "no answer that does not come up again": [
        *settled(LATE), (30, None, "late"), (39, None, "measuring, 39 s"),
    ],
}  # fmt: skip
"""What comes up at which second, and what is shown then; "": anything."""


@pytest.mark.parametrize("which", SHOWN)
def test_first_line_shows(which):
    told = [(second, said, *first) for second, said, _, *first in SHOWN[which]]
    expected = [words for _, _, words, *_ in SHOWN[which]]
    found = [words if wanted else "" for words, wanted in zip(shown(*told), expected, strict=True)]
    assert found == expected


def test_the_watch_begins_with_the_first_step():
    line = SteadyLine()
    empty = replace(SNAPSHOT, ranks=tuple(structs.replace(view, last=None) for view in SNAPSHOT.ranks))
    assert line.take(empty, None) is None
    assert line.take(at(600), None).words == "measuring, 0 s"


def test_first_look_shows_a_rank_or_what_an_ended_job_leaves():
    ended = replace(SNAPSHOT, hub_state=HubState.ENDED)
    looks = (SNAPSHOT, LOADS), (SNAPSHOT, HEALTHY), (ended, HEALTHY)
    said = [SteadyLine().take(snapshot, line).words for snapshot, line in looks]
    assert said == ["late: loads", "measuring, 0 s", "healthy"]


def test_figures_of_the_line_follow_while_another_waits():
    line, fresh = SteadyLine(), HEALTHY._replace(words="healthy, newer figures")
    assert shown((1, HEALTHY), (5, HEALTHY), line=line)[-1] == "healthy"
    assert line.take(at(7), JITTER, fresh).words == fresh.words
    said = line.take(at(7), JITTER, LATE)
    assert (said, said.key) == (overlap_line(at(7))._replace(kind=HEALTHY.kind), HEALTHY.key)
    assert line.take(at(7, first_step=90), LOADS, LATE) == said  # "no rank is late" no longer holds


def test_what_is_exposed_around_the_limit_is_told_in_one_sentence():
    line, nothing = SteadyLine(), HEALTHY._replace(words="Nothing to fix")
    nobody = "No rank is clearly late"
    shown((1, nothing), (5, nothing), line=line)
    told = [
        (6, nothing, "Nothing to fix"), (10, EXPOSED, "exposed"), (11, nothing, nobody),
        (12, EXPOSED, "exposed"), (41, nothing, nobody), (42, nothing, "Nothing to fix"),
    ]  # fmt: skip
    for second, plain, words in told:
        assert line.take(at(second), plain, plain).words == words


def found(rule, gain_ms=10, *, late=False):
    return Finding(rule, "", "", Certainty.LIKELY, gain_ms * MS, (1,), rule, why_late=late)


LOADING, GARBAGE, UNCLEAR = found("data_loading"), found("garbage_collection", 8), found("jitter")
LARGE, SMALL = found("bucket_too_large"), found("bucket_too_small", 20)
WEAK, OF_ALL = found("launch_bound", late=True), found("launch_bound")
BOTH = [(1, [LOADING, GARBAGE], ""), (2, [LOADING, GARBAGE], "data_loading garbage_collection")]
LISTED = {
    "once it has held": [
        (1, [LOADING], ""), (1.5, [], ""), (2, [LOADING], ""), (2.9, [LOADING], ""),
        (3, [LOADING], "data_loading"),
    ],
    "until gone for 10 s": [
        (1, [LOADING], ""), (2, [LOADING], "data_loading"), (3, [], "data_loading"),
        (12, [], "data_loading"), (13, [], ""),
    ],
    "no rule and its opposite": [
        (1, [LARGE], ""), (2, [LARGE], "bucket_too_large"), (12, [SMALL], "bucket_too_large"),
        (22, [SMALL], ""), (23, [SMALL], ""), (24, [SMALL], "bucket_too_small"),
    ],
    "without a cause later and for less long": [
        (1, [UNCLEAR], ""), (5.9, [UNCLEAR], ""), (6, [UNCLEAR], "jitter"), (7, [], "jitter"), (8, [], ""),
    ],
    "a slow CPU of a late rank later": [(1, [WEAK], ""), (2, [WEAK], ""), (6, [WEAK], "launch_bound")],
    "a slow CPU of all ranks": [(1, [OF_ALL], ""), (2, [OF_ALL], "launch_bound")],
    "in the same order for a small difference": [
        *BOTH, (3, [found("garbage_collection", 9.5), LOADING], "data_loading garbage_collection"),
    ],
    "in another order for a clear difference": [
        *BOTH, (3, [found("garbage_collection", 20), LOADING], "garbage_collection data_loading"),
    ],
}  # fmt: skip
"""What is found at which second, and the rules shown then."""


@pytest.mark.parametrize("how", LISTED)
def test_findings_are_listed(how):
    steady = SteadyFindings()
    steady.take(SNAPSHOT, [])
    for second, now, expected in LISTED[how]:
        shown = steady.take(at(second), now)
        assert " ".join(each.rule for each in shown) == expected

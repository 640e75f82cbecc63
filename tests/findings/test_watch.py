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
ALL_LAUNCH = FirstLine("all launch", "", rule="launch_bound", kind=Kind.FINDING)
EIGHTH = FirstLine("every 8th step", "", rule="long_steps", kind=Kind.FINDING)
SLACK = FirstLine("slack", "", rule="slack", kind=Kind.SLACK)
LATE = FirstLine("late", "", late_rank=1, kind=Kind.LATE)
LOADS = LATE._replace(words="late: loads", cause="it loads", cause_rule="data_loading")
LAUNCHES = LATE._replace(words="late: launches", cause="it is launch-bound", cause_rule="launch_bound")
OTHER_LOADS = LOADS._replace(late_rank=0, words="0 loads")
RANKS_EIGHTH = LATE._replace(words="rank 1 in every 8th step", cause_rule="long_steps")


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
        *settled(LOADS), (10, HEALTHY, "late: loads"), (19.9, HEALTHY, "late: loads"),
        (20, HEALTHY, "healthy"),
    ],
    **{
        f"no other answer with another between: {between and between.words}": [
            *settled(LOADS), (10, HEALTHY, "late: loads"), (16, between, "late: loads"),
            (21, HEALTHY, "late: loads"),
        ]
        for between in (LOADS, NOT_YET, None, JITTER)
    },
    "any answer after one that knows nothing": [
        *settled(UNKNOWN), (10, LOADS, FIGURES), (11, LOADS, "late: loads"),
    ],
    "slack of the late rank once it has held": [
        *settled(LOADS), (10, SLACK, "late: loads"), (10.9, SLACK, "late: loads"), (11, SLACK, "slack"),
        (12, LATE, "slack"),
    ],
    "the late rank's cause once it has held": [
        *settled(LATE), (10, LOADS, "late"), (11, LOADS, "late: loads"), (12, LATE, "late: loads"),
    ],
    "a problem after three seconds where nothing was wrong": [
        *settled(HEALTHY), (10, CPUS, "healthy"), (12.9, CPUS, "healthy"), (13, CPUS, "no CPU"),
        (16, HEALTHY, "no CPU"), (24, HEALTHY, "no CPU"),
    ],
    "a late rank with a cause after three seconds of the job's finding": [
        *settled(OF_JOB), (10, LOADS, "bytes move"), (12.9, LOADS, "bytes move"),
        (13, LOADS, "late: loads"),
        (14, OF_JOB, "late: loads"), (23, OF_JOB, "late: loads"),
    ],
    "no late rank without a cause as soon": [
        *settled(OF_JOB), (10, LATE, "bytes move"), (19, LATE, "bytes move"),
    ],
    "a better cause of the rank with a slow CPU": [
        *settled(LAUNCHES), (10, LOADS, "late: launches"), (11, LOADS, "late: loads"),
    ],
    "no cause of another rank as soon": [
        *settled(LAUNCHES), (10, OTHER_LOADS, "late: launches"), (11, OTHER_LOADS, "late: launches"),
    ],
    "a rank with a cause where all CPUs are slow": [
        *settled(ALL_LAUNCH), (10, LOADS, "all launch"), (11, LOADS, "late: loads"),
    ],
    "the same finding with a rank": [
        *settled(EIGHTH), (10, RANKS_EIGHTH, "every 8th step"),
        (13, RANKS_EIGHTH, "rank 1 in every 8th step"),
    ],
    "figures while a late answer has not held yet": [
        (9, HEALTHY, "measuring, 9 s"), (20, NOT_YET, "too few"), (40, HEALTHY, FIGURES),
        (43, HEALTHY, FIGURES),
        (44, HEALTHY, "healthy"),
    ],
    "the earlier answer at first after a change": [
        *settled(HEALTHY), (20, None, "healthy", 90), (22, LOADS, "healthy", 90),
        (23, LOADS, "late: loads", 90),
    ],
    "no earlier answer for long after a change": [
        *settled(HEALTHY), (20, None, "healthy", 90), (34, None, "healthy", 90),
        (35, None, "measuring, 15 s", 90),
        (36, HEALTHY, FIGURES, 90),
    ],
    "no earlier answer in a job that changes again and again": [
        *settled(LOADS), *((10 + 8 * nth, NOT_YET, "late: loads", 100 + nth) for nth in range(2)),
        *((26 + 8 * nth, NOT_YET, "measuring, 0 s", 102 + nth) for nth in range(2)),
    ],
    "no answer that does not come up again": [
        *settled(LATE), (60, None, "late"), (70, None, "measuring, 70 s"),
    ],
    "what is missing where an answer does not come up": [
        *settled(LATE), (60, NOT_YET, "late"), (70, NOT_YET, "too few"),
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


@pytest.mark.parametrize(
    ("hub_state", "line", "words"),
    [
        (HubState.LIVE, LOADS, "late: loads"),
        (HubState.LIVE, HEALTHY, "measuring, 0 s"),
        (HubState.ENDED, HEALTHY, "healthy"),
    ],
)
def test_first_look_shows_a_rank_or_what_an_ended_job_leaves(hub_state, line, words):
    assert SteadyLine().take(replace(SNAPSHOT, hub_state=hub_state), line).words == words


def test_after_a_change_few_steps_do_not_end_a_problem():
    line = SteadyLine()
    assert shown((1, JITTER), (2, JITTER), line=line)[-1] == "jitter"
    for second, steps in ((20, 1), (25, 3), (29, 5), (29.9, 6)):
        few = replace(SNAPSHOT.wait_window, steps=steps)
        assert line.take(at(second, first_step=90, wait_window=few), HEALTHY).words == "jitter"


@pytest.mark.parametrize(
    ("first", "others", "kept", "last"),
    [
        (HEALTHY, (JITTER, LATE), 28, {"jitter", "late"}),
        (LATE, (HEALTHY, EXPOSED), 0, {"healthy", "exposed"}),
    ],
)
def test_answer_not_come_up_for_half_a_minute_gives_way(first, others, kept, last):
    told = [(6 + second, others[second // 3 % 2]) for second in range(40)]
    words = shown((1, first), (5, first), *told)[2:]
    assert set(words[:kept]) <= {first.words}
    assert words[-1] in last


def test_figures_of_the_line_follow_while_another_waits():
    line, fresh = SteadyLine(), HEALTHY._replace(words="healthy, newer figures")
    assert shown((1, HEALTHY), (5, HEALTHY), line=line)[-1] == "healthy"
    assert line.take(at(7), JITTER, fresh).words == fresh.words
    said = line.take(at(7), JITTER, LATE)
    assert (said, said.key) == (overlap_line(at(7))._replace(kind=HEALTHY.kind), HEALTHY.key)
    assert line.take(at(7, first_step=90), LOADS, LATE) == said  # "no rank is late" no longer holds
    line, fresh = SteadyLine(), LATE._replace(words="late, newer figures")
    assert shown((1, LATE), (5, LATE), line=line)[-1] == "late"
    assert line.take(at(7), LOADS, fresh).words == fresh.words


def test_what_is_exposed_around_the_limit_is_told_in_one_sentence():
    line, nothing, nobody = (
        SteadyLine(),
        HEALTHY._replace(words="Nothing to fix"),
        "No rank is clearly late",
    )
    shown((1, nothing), (5, nothing), line=line)
    told = [
        (6, nothing, "Nothing to fix"), (10, EXPOSED, "exposed"), (11, nothing, nobody),
        (12, EXPOSED, "exposed"),
        (13, nothing, nobody), (41, nothing, nobody), (42, nothing, "Nothing to fix"),
        (43, EXPOSED, "exposed"),
        (44, nothing, "Nothing to fix", 900),
    ]  # fmt: skip
    for second, plain, words, *first in told:
        assert line.take(at(second, first_step=sum(first)), plain, plain).words == words


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
        (12, [], "data_loading"),
        (13, [], ""),
    ],
    "no rule and its opposite": [
        (1, [LARGE], ""), (2, [LARGE], "bucket_too_large"), (3, [SMALL], "bucket_too_large"),
        (12, [SMALL], "bucket_too_large"), (13, [SMALL], ""), (14, [SMALL], ""),
        (15, [SMALL], "bucket_too_small"),
    ],
    "without a cause later and for less long": [
        (1, [UNCLEAR], ""), (5.9, [UNCLEAR], ""), (6, [UNCLEAR], "jitter"), (7, [], "jitter"), (8, [], ""),
    ],
    "a slow CPU of a late rank later": [(1, [WEAK], ""), (2, [WEAK], ""), (6, [WEAK], "launch_bound")],
    "a slow CPU of all ranks": [(1, [OF_ALL], ""), (2, [OF_ALL], "launch_bound")],
    "until rules differ after a change": [
        (1, [LOADING], ""), (2, [LOADING], "data_loading"), (35, [], "data_loading", 90), (40, [], "", 90),
    ],
    "in the same order for a small difference": [
        *BOTH, (3, [found("garbage_collection", 9.5), LOADING], "data_loading garbage_collection"),
    ],
    "in another order for a clear difference": [
        *BOTH, (3, [found("garbage_collection", 20), LOADING], "garbage_collection data_loading"),
    ],
}  # fmt: skip
"""What is found at which second, since which step the job goes on as it does, and the rules shown then."""


@pytest.mark.parametrize("how", LISTED)
def test_findings_are_listed(how):
    steady = SteadyFindings()
    steady.take(SNAPSHOT, [])
    for second, now, expected, *first in LISTED[how]:
        shown = steady.take(at(second, first_step=sum(first)), now)
        assert " ".join(each.rule for each in shown) == expected


def test_a_gain_that_comes_and_goes_is_not_known():
    steady, unknown, known = SteadyFindings(), replace(LOADING, gain_ns=None), set()
    looks = [
        (0, unknown),
        (1, LOADING),
        (5, LOADING),
        (6, unknown),
        (7, LOADING),
        (9, unknown),
        (18.9, LOADING),
    ]
    for second, told, *first in [*looks, (19, LOADING), (20, unknown), (21, LOADING, 9)]:
        (each,) = steady.take(at(second, first_step=sum(first)), [told])
        known |= {second} if each.gain_ns is not None else set()
    assert known == {1, 5, 19, 21}  # at once for the first time and after a change, after 10 s otherwise

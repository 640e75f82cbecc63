"""A rank launches late, with long pauses: its CPU waited in Python, I/O or a lock.

Many short pauses between kernels without a launch lead are `launch_bound`.
"""

from collections.abc import Iterable

from overlaptop import text
from overlaptop.findings.counters import slow_by
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import Cause, LateRank, late_by
from overlaptop.findings.launching import is_launch_bound, longest_pause
from overlaptop.findings.lines import SlowLine
from overlaptop.findings.measures import idling_ns, on_host
from overlaptop.wire.messages import RankInfo

SLEEPS = "sleeping, reading, logging, a lock"


def look(evidence: Evidence) -> Iterable[Finding]:
    for late in late_by(evidence, Cause.SLEEPING):
        info = evidence.ranks[late.rank].info
        what = "training thread sleeps" if on_host(info) else "GPU is idle"
        yield late.finding(
            f"'s {what} {text.duration(late.excess_ns(idling_ns))} a step longer than {late.whose}",
            _idle_ns(evidence, late),
            _advice(late.line, info),
            Certainty.LIKELY,
            "" if on_host(info) else longest_pause(evidence, late.rank),
        )
    if (slow := slow_by(evidence, Cause.SLEEPING)) is not None:
        yield slow.finding(
            f"'s training thread sleeps {text.duration(slow.longer_ns)} a step longer than {slow.whose}",
            _advice(slow.line, evidence.ranks[slow.rank].info),
        )


def _idle_ns(evidence: Evidence, late: LateRank) -> int | None:
    """Return the excess to remove: of a launch-bound rank, only what it sleeps at a line."""
    line, idle_ns = late.line, late.excess_ns(idling_ns)
    if idle_ns is None or line is None or not is_launch_bound(evidence, late.rank):
        return idle_ns
    return min(idle_ns, round((line.share - line.others_share) * evidence.step_ns))


def _advice(line: SlowLine | None, info: RankInfo | None) -> str:
    if line is not None:
        return f"look at {line.place}: {SLEEPS}"
    pid = info.pid if info and info.pid > 0 else "PID"
    return f"py-spy dump --pid {pid} shows where its Python is: {SLEEPS}"

"""A rank launches late, with long pauses: its CPU waited in Python, I/O or a lock.

Many short pauses between kernels without a launch lead are `launch_bound`.
"""

from overlaptop.findings.finding import Certainty, Evidence, Findings
from overlaptop.findings.late import Cause, LateRank, Suspect, suspects
from overlaptop.findings.measures import longest_pause, on_host

SLEEPS = "sleeping, reading, logging, a lock"


def look(evidence: Evidence) -> Findings:
    for each in suspects(evidence, Cause.SLEEPING):
        idles = isinstance(each, LateRank) and not on_host(evidence.ranks[each.rank].info)
        yield each.finding(
            f"'s {'GPU is idle' if idles else 'training thread sleeps'} {each.longer} than {each.whose}",
            _advice(evidence, each),
            Certainty.LIKELY,
            longest_pause(evidence, each.rank) if idles else "",
        )


def _advice(evidence: Evidence, late: Suspect) -> str:
    if late.line is not None:
        return f"look at {late.line.place}: {SLEEPS}"
    info = evidence.ranks[late.rank].info
    pid = info.pid if info and info.pid > 0 else "PID"
    return f"py-spy dump --pid {pid} shows where its Python is: {SLEEPS}"

"""A late rank launches in time and computes longer: its GPU is slow, or it has more to do."""

from collections.abc import Iterable
from statistics import median

from overlaptop import text
from overlaptop.findings.counters import slow_by
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import Cause, LateRank, late_by
from overlaptop.findings.measures import computing_ns, on_host
from overlaptop.findings.rules import uneven_stages

ON_GPU = (
    "nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PIDS shows whether its GPU is slower or shared; if it has "
    "more to do, divide the work evenly"
)
ON_CPU = "top shows whether its CPU is slower or shared; if it has more to do, divide the work evenly"


def look(evidence: Evidence) -> Iterable[Finding]:
    for late in late_by(evidence, Cause.COMPUTING):
        if any(each.ranks == (late.rank,) for each in uneven_stages.look(evidence)):
            continue
        is_on_host = on_host(evidence.ranks[late.rank].info)
        threads = _threads(evidence, late) if is_on_host else ""
        if threads:
            advice = "give all ranks as many threads: OMP_NUM_THREADS, torch.set_num_threads()"
        elif late.line is not None:
            advice = f"look at {late.line.place}: if only this rank needs it, run it less often; {ON_CPU}"
        else:
            advice = ON_CPU if is_on_host else ON_GPU
        longer_ns = late.excess_ns(computing_ns)
        yield late.finding(
            f" computes {text.duration(longer_ns)} a step longer than {late.versus}{threads}",
            longer_ns,
            advice,
            Certainty.LIKELY,
        )
    if (slow := slow_by(evidence, Cause.COMPUTING)) is not None:
        longer = text.duration(slow.longer_ns)
        yield slow.finding(f" computes {longer} a step longer than {slow.versus}", ON_GPU)


def _threads(evidence: Evidence, late: LateRank) -> str:
    """Return the end of a title that says that its operations use fewer threads; empty: they do not."""

    def of(rank: int) -> int | None:
        facts = evidence.ranks[rank].environment
        return facts.threads if facts is not None else None

    own, theirs = of(late.rank), [threads for other in late.others if (threads := of(other))]
    if not own or not theirs or own >= median(theirs):
        return ""
    return f", on {text.plural(own, 'thread')} where others have {round(median(theirs))}"

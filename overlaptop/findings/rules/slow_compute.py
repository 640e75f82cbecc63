"""A late rank launches in time and computes longer: its GPU is slow, or it has more to do."""

from statistics import median

from overlaptop import text
from overlaptop.findings.finding import Certainty, Evidence, Findings
from overlaptop.findings.late import Cause, LateRank, Suspect, suspects
from overlaptop.findings.measures import on_host
from overlaptop.findings.rules import uneven_stages

ON_GPU = (
    "nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PIDS shows whether its GPU is slower or shared; if it has "
    "more to do, divide the work evenly"
)
ON_CPU = "top shows whether its CPU is slower or shared; if it has more to do, divide the work evenly"


def look(evidence: Evidence) -> Findings:
    for late in suspects(evidence, Cause.COMPUTING):
        stages = uneven_stages.look(evidence) if isinstance(late, LateRank) else ()
        if any(each.ranks == (late.rank,) for each in stages):
            continue
        is_on_host = on_host(evidence.ranks[late.rank].info)
        threads = _threads(evidence, late) if is_on_host else ""
        if threads:
            advice = "give all ranks as many threads: OMP_NUM_THREADS, torch.set_num_threads()"
        elif late.line is not None:
            advice = f"look at {late.line.place}: if only this rank needs it, run it less often; {ON_CPU}"
        else:
            advice = ON_CPU if is_on_host else ON_GPU
        yield late.finding(f" computes {late.longer} than {late.versus}{threads}", advice, Certainty.LIKELY)


def _threads(evidence: Evidence, late: Suspect) -> str:
    """Return the end of a title that says that its operations use fewer threads; empty: they do not."""
    facts = {rank: view.environment for rank, view in evidence.ranks.items()}
    own, *theirs = (each.threads if (each := facts[rank]) else None for rank in (late.rank, *late.others))
    known = [threads for threads in theirs if threads]
    if not own or not known or own >= median(known):
        return ""
    return f", on {text.plural(own, 'thread')} where others have {round(median(known))}"

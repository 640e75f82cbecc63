"""The others wait for a rank, but a host or a GPU needs the whole step anyway (`gains`).

No other finding then blames the late rank.
"""

from overlaptop import text
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.findings.late import named_late

ALIKE = 0.9  # Hosts' times are similar if none is below this share of the longest


def look(evidence: Evidence) -> Findings:
    for late in named_late(evidence):
        if not late.is_slack:
            continue
        longest = max(late.others, key=lambda rank: late.own[rank].longest_ns)
        own = late.own[longest]
        needs = f"needs {text.duration(own.longest_ns)} a step"
        alike = all(late.own[rank].host_ns >= ALIKE * own.host_ns for rank in late.others)
        if own.host_ns <= own.gpu_ns:
            bound = f"rank {longest} {needs} on its own"
            gpu_uuid, other_uuid = (evidence.ranks[rank].gpu_uuid for rank in (late.rank, longest))
            if gpu_uuid and gpu_uuid == other_uuid:
                bound = f"rank {late.rank} computes on the GPU of rank {longest} meanwhile"
        elif alike:
            bound = f"the CPU {needs} on all ranks"
        else:
            bound = f"rank {longest}'s CPU {needs}"
        yield Finding(
            title=f"rank {late.rank} trails by {evidence.wait_text}, which costs nothing: {bound}",
            measured=late.measured,
            advice="nothing to fix on this rank: shorten the step on all ranks",
            certainty=Certainty.LIKELY,
            gain_ns=0,
            ranks=(late.rank,),
        )

"""A tensor-parallel group spans hosts: its collectives delay each layer.

Tensor-parallel groups are recognised by their description: ``mesh_tp``, Megatron's
``TENSOR_MODEL_PARALLEL_GROUP``.
"""

import re

from overlaptop import text
from overlaptop.findings.exposure import EXPOSED_SHARE, exposed_sum_ns, step_calls
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings

TENSOR_PARALLEL = re.compile(r"(?:\b|_)tp(?:\b|_)|tensor", re.IGNORECASE)


def look(evidence: Evidence) -> Findings:
    calls = step_calls(evidence)
    if calls is None:
        return
    groups = {each.group for each in calls.issued if TENSOR_PARALLEL.search(each.group)}
    for group in sorted(groups):
        issued = [each for each in calls.issued if each.group == group]
        ranks = issued[0].ranks
        hosts = evidence.hosts_of(issued[0])
        gain_ns = calls.mean.gain_ns(exposed_sum_ns(issued))
        if len(hosts) < 2 or gain_ns < EXPOSED_SHARE * calls.mean.step_ns:
            continue
        yield Finding(
            title=f"tensor parallelism of {evidence.name(ranks)} spans {len(hosts)} hosts: "
            f"{text.duration(gain_ns)} a step is exposed",
            measured=f"{len(issued)} collectives a step in {group} go between {', '.join(sorted(hosts))}",
            advice=f"a tensor-parallel size of at most {evidence.most_on_a_host}, the ranks of one host, "
            "with neighbouring ranks in a group: the last dimension of init_device_mesh",
            certainty=Certainty.MEASURED,
            gain_ns=gain_ns,
            ranks=ranks,
        )

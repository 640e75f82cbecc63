"""A tensor-parallel group spans hosts: its collectives delay each layer.

Tensor-parallel groups are recognised by their description: ``mesh_tp``, Megatron's
``TENSOR_MODEL_PARALLEL_GROUP``.
"""

import re
from collections.abc import Iterable

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.exposure import EXPOSED_SHARE, exposed_sum_ns, exposure, step_calls
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.settings import hosts_of, most_on_a_host

TENSOR_PARALLEL = re.compile(r"(?:\b|_)tp(?:\b|_)|tensor", re.IGNORECASE)


def look(evidence: Evidence) -> Iterable[Finding]:
    mean, calls = exposure(evidence), step_calls(evidence)
    if mean is None or calls is None:
        return
    groups = {each.group for each in calls.issued if TENSOR_PARALLEL.search(each.group)}
    for group in sorted(groups):
        issued = [each for each in calls.issued if each.group == group]
        ranks = issued[0].ranks
        hosts = hosts_of(evidence, issued[0])
        gain_ns = mean.gain_ns(exposed_sum_ns(issued))
        if len(hosts) < 2 or gain_ns < EXPOSED_SHARE * mean.step_ns:
            continue
        yield Finding(
            title=f"tensor parallelism of {evidence.name(ranks)} spans {len(hosts)} hosts: "
            f"{text.duration(gain_ns)} a step is exposed",
            measured=f"{len(issued)} collectives a step in {group} go between {', '.join(sorted(hosts))}",
            advice=f"a tensor-parallel size of at most {most_on_a_host(evidence)}, the ranks of one host, "
            "with neighbouring ranks in a group: the last dimension of init_device_mesh",
            certainty=Certainty.MEASURED,
            gain_ns=gain_ns,
            ranks=ranks,
        )

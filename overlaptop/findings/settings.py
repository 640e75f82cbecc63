"""The job's settings as reported by its ranks: knobs, DDP's gradients, environment variables, hosts."""

from collections import Counter

from overlaptop.findings.evidence import Evidence
from overlaptop.fleet.knobs import job_knobs
from overlaptop.timeline.arrivals import Collective
from overlaptop.wire.knobs import PREFETCH, GradientFacts, Knob


def knob_of(evidence: Evidence, name: str) -> Knob | None:
    knobs = (knob for view in evidence.ranks.values() for knob in view.knobs)
    return next((knob for knob in knobs if knob.name == name), None)


def obeys_commands(evidence: Evidence) -> bool:
    infos = [view.info for view in evidence.ranks.values() if not view.ended and view.info is not None]
    return not evidence.is_trace and bool(infos) and all(info.control_allowed for info in infos)


def can_set(evidence: Evidence, name: str) -> bool:
    """Return whether ``overlaptop set`` could change this knob now."""
    running = [view for view in evidence.ranks.values() if not view.ended]
    knobs = job_knobs((view.info, view.knobs) for view in running)
    return obeys_commands(evidence) and any(k.knob.name == name and not k.refusal for k in knobs)


def gradients_of(evidence: Evidence) -> GradientFacts | None:
    """Return the gradients of the job's one DDP model; None if there is none, or several."""
    found = (view.gradients for view in evidence.ranks.values() if view.gradients is not None)
    return next(found, None)


def uses_fsdp2(evidence: Evidence) -> bool:
    return any(knob_of(evidence, name) is not None for name in PREFETCH.values())


def ranks_with(evidence: Evidence, variable: str, *values: str) -> tuple[int, ...]:
    """Return the ranks on GPUs with this environment variable set to one of these values, in lower case. On
    CPUs, CUDA's and NCCL's variables have no effect.
    """
    return tuple(
        rank
        for rank, view in sorted(evidence.ranks.items())
        if view.environment is not None
        and view.info is not None
        and view.info.device not in ("", "cpu")
        and view.environment.value(variable).lower() in values
    )


def is_on(evidence: Evidence, variable: str) -> tuple[int, ...]:
    """Return the ranks with this torch switch on (its getCvarBool)."""
    return ranks_with(evidence, variable, "1", "y", "yes", "t", "true")


def hosts_of(evidence: Evidence, collective: Collective) -> frozenset[str]:
    """Return the hosts of its ranks; empty if one is not known."""
    infos = [evidence.ranks[rank].info for rank in collective.ranks if rank in evidence.ranks]
    hosts = frozenset(info.host if info is not None else "" for info in infos)
    return frozenset() if "" in hosts or len(infos) < len(collective.parts) else hosts


def most_on_a_host(evidence: Evidence) -> int:
    infos = (view.info for view in evidence.ranks.values())
    return max(Counter(info.host for info in infos if info is not None).values())

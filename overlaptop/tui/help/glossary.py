"""What the screens' words mean, and on which screens they are found: the help opens on those of one."""

from __future__ import annotations

from typing import NamedTuple

from overlaptop.text import UNKNOWN
from overlaptop.tui.model import keys
from overlaptop.tui.model.parts import STALL, STEP_PARTS, WAITING

OVERVIEW, RANK, MACHINE, TUNE, TRIALS = "Overview", "A rank's screen", "Machine", "Tune", "Trials"
WORKLOADS, HOSTS, JOBS, CAPTURE, NOTICES = "Workloads", "Hosts", "Jobs", "Captures", "Notices"
TIMELINE, COLLECTIVES, TIMELINES = "Timeline", "Collectives", "Timelines of all ranks"
FINDINGS = "Findings"
SECTIONS: dict[str, tuple[keys.Key, ...]] = {
    OVERVIEW: keys.OVERVIEW_KEYS,
    TIMELINE: keys.TIMELINE_KEYS,
    RANK: keys.RANK_KEYS,
    COLLECTIVES: keys.COLLECTIVES_KEYS,
    TIMELINES: keys.TIMELINES_KEYS,
    FINDINGS: keys.FINDINGS_KEYS,
    MACHINE: keys.MACHINE_KEYS,
    TUNE: keys.TUNE_KEYS,
    TRIALS: keys.TRIALS_KEYS,
    WORKLOADS: keys.WORKLOADS_KEYS,
    HOSTS: keys.HOSTS_KEYS,
    JOBS: keys.LIST_KEYS,
    CAPTURE: keys.SCROLL_KEYS,
    NOTICES: keys.SCROLL_KEYS,
}
"""The keys of each screen, and those of the timeline, which two screens have."""
OF_TRACES = (OVERVIEW, TIMELINE, RANK, COLLECTIVES, TIMELINES, FINDINGS, NOTICES)
"""The screens that a trace has."""


class Word(NamedTuple):
    """A word as it stands on a screen."""

    word: str
    meaning: str
    screens: tuple[str, ...] = ()


_STEPS, _FIGURES = (OVERVIEW, RANK), (OVERVIEW, RANK, CAPTURE, WORKLOADS)
_SPLIT = (*_STEPS, COLLECTIVES, TIMELINES)
_CHANGES = (OVERVIEW, TUNE, TRIALS)
WORDS = (
    Word(
        "overlap",
        "hidden / all communication: the share that ran beside compute; none without communication",
        _FIGURES,
    ),
    *(Word(part.word, part.meaning, _FIGURES) for part in STEP_PARTS),
    Word(STALL.word, STALL.meaning, _STEPS),
    Word(
        WAITING.word,
        f"{WAITING.meaning}. Figures have what of it is exposed. Beside compute it is drawn darker, and "
        "is not counted",
        _SPLIT,
    ),
    Word(
        "transfer",
        "communication in which bytes moved: what is left of a collective without its waiting",
        _SPLIT,
    ),
    Word(
        "late rank",
        "the rank that starts a collective last: all others wait for it. The overview's first line counts "
        "over the newest 120 measured steps since the job changed, and names a rank that is late in 60 % "
        "of the collectives or more",
        _SPLIT,
    ),
    Word(
        "not split",
        "communication of which it is not known what was waiting: a rank is missing, the ranks' ends "
        "disagree, or their clocks are not known well enough",
        _SPLIT,
    ),
    Word(
        "GB/s, of peak",
        "a collective's bus bandwidth as nccl-tests defines it, on transfer time: what links carry while "
        "bytes move, whatever the number of ranks; and the share of the slowest link's peak",
        (COLLECTIVES, TIMELINES),
    ),
    Word("step", "compute only + hidden + exposed + fused + copy only + idle, to the nanosecond", _FIGURES),
    Word(
        "speed-up",
        "(compute + communication) / step: what was gained over running one after the other. Fused "
        "kernels count once",
        (OVERVIEW,),
    ),
    Word(
        "attainable",
        "(compute + communication) / the longer of the two: were all of it hidden",
        (OVERVIEW,),
    ),
    Word(
        "lead",
        "when the GPU came to a step's end, less when the CPU had issued it; the least of all ranks. With "
        "no lead, and idle time, the job is launch-bound: the CPU cannot launch as fast as the GPU works",
        _STEPS,
    ),
    Word(
        "named",
        "the share of NCCL's kernel time whose collective is known by name and bytes; others go by their "
        "kernel's name",
        (RANK,),
    ),
    Word(
        "source",
        "where spans come from: kernels (CUPTI records), events (CUDA events), host (host clock)",
        _STEPS,
    ),
    Word(
        "≤",
        "with events and host, compute is the step less its stalls, an upper bound: gaps between kernels "
        "are not seen. ≤ beside overlap or hidden says so once for a screen: hidden, overlap and speed-up "
        "are at most, exposed and waiting at least these, attainable may be off either way, and idle is "
        "not seen",
        _FIGURES,
    ),
    Word(
        "NVLink PCIe",
        "bytes a second as the GPU's own counters have them, decimal, and the share of the peak in one "
        "direction; in the overview the busier of the two directions",
        (OVERVIEW, RANK, MACHINE),
    ),
    Word(
        "NUMA",
        "the node next to the GPU, and whether the process may run there: ✓ only there, ~ also elsewhere, "
        "✗ only elsewhere, ? not known",
        (OVERVIEW, RANK, MACHINE),
    ),
    Word(
        "clock ±",
        "how well a host's clock is known, by the time that an answer took: times of its steps are shifted "
        "to this machine's clock, and may be off by so much",
        (HOSTS,),
    ),
    Word(
        "unexplained",
        "what the link counters measured less what the job's own collectives account for: traffic of "
        "somebody else, or copies of the job's own",
        (MACHINE,),
    ),
    Word(
        "knob",
        "a setting of the running job: DDP's bucket_cap_mb, FSDP2's depth of prefetch, or what the script "
        "declares with overlaptop.agent.knob(). All ranks change at one step; [ ] marks the selected one",
        _CHANGES,
    ),
    Word(
        "bucket",
        "DDP's bucket_cap_mb, MiB: gradients are reduced in buckets of that size. Small ones start early, "
        "large ones use the link better",
        _CHANGES,
    ),
    Word(
        "difference",
        "of the mean step in the trials of a value, with its 95 % interval. no difference: less than "
        "1 %. not known: too few trials, or too much noise",
        (TRIALS,),
    ),
    Word(
        "critical, slope",
        "the step's growth over the delay of a rank (x): 1 is on the critical path, 0 is slack. Making a "
        "rank with slack faster wins nothing",
        (OVERVIEW, TRIALS),
    ),
    Word(
        "before, after",
        "the mean step before and after a change, which differ by the machine's drift too: A tries both in "
        "turn, which does not",
        (OVERVIEW,),
    ),
    Word(
        "dropped",
        "messages, spans and steps that did not fit somewhere on the way here and are missing",
        _STEPS,
    ),
    Word(
        "mean of",
        "what the job's figures are of: the mean over ranks and measured steps of the window that W sets; "
        "shares are of the sums. A rank's row is its own mean over the same steps. ≈ before waiting and "
        "transfer: some of the steps were compared",
        (OVERVIEW,),
    ),
    Word(
        "standstill",
        "a step longer than 10 s and than five usual ones: the window leaves it out",
        (OVERVIEW,),
    ),
    Word(
        "past step",
        "a kept one to which { } L or a click in the history went back: all that is shown is of it",
        _STEPS,
    ),
    Word(
        "history",
        "step times from zero to a fixed scale; a column longer than the scale ends in ▲. A click shows "
        "the slowest step of a column",
        _STEPS,
    ),
    Word(
        "bars",
        "a row a rank, means over the window of the totals, all to one scale; one far longer than a usual "
        "step ends in ▸; a shade is a cell partly covered",
        _STEPS,
    ),
    Word(UNKNOWN, "not known; never zero"),
)

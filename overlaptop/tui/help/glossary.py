"""The glossary of the screens' words, by screen: the help opens at the words of one screen."""

from overlaptop.text import UNKNOWN
from overlaptop.tui.model import keys
from overlaptop.tui.model.parts import PHASES, STALL, STEP_PARTS, WAITING

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
"""The keys of each screen, and of the timeline, which two screens have."""
OF_TRACES = (OVERVIEW, TIMELINE, RANK, COLLECTIVES, TIMELINES, FINDINGS, NOTICES)
"""Screens available for a trace."""


_STEPS, _FIGURES = (OVERVIEW, RANK), (OVERVIEW, RANK, CAPTURE, WORKLOADS)
_SPLIT = (*_STEPS, COLLECTIVES, TIMELINES)
_CHANGES = (OVERVIEW, TUNE, TRIALS)
# fmt: off
WORDS: tuple[tuple[tuple[str, ...], dict[str, str]], ...] = (
    (_FIGURES, {
        "overlap": "hidden / all communication: the share that ran beside compute; none without it",
        **{part.word: part.meaning for part in STEP_PARTS},
        PHASES.word: PHASES.meaning,
        "step": "compute only + hidden + exposed + fused + copy only + idle, to the nanosecond",
        "≤": "an upper bound: events and host do not see gaps between kernels. Hidden, overlap and "
             "speed-up are then upper bounds, exposed and waiting lower bounds, and idle is not seen",
    }),
    (_STEPS, {
        STALL.word: STALL.meaning,
        "lead": "how long the GPU works on after the CPU has issued a step; the least of all ranks. "
                "Without lead, but with idle time, the job is launch-bound",
        "source": "where spans come from: kernels (CUPTI records), events (CUDA events), host (host clock)",
        "dropped": "messages, spans and steps that were lost on the way here: a queue was full",
        "past step": "a kept step, opened by { } L or a click in the history; all figures are of it",
        "history": "step times from zero to a fixed scale, such as 0–300 ms. max of 5: a column is the "
                   "longest of 5 steps. ▲: longer than the scale; ▼: the step on the screen. A click shows "
                   "a slowest step",
        "p99": "99 of 100 steps were shorter",
        "bars": "one per rank, means over the window, on one scale; ▸: longer than the scale",
        "call": "sync: the script waits for the collective at once; async: it goes on, and waits later",
        "group": "the collective's process group: its number and description",
    }),
    (_SPLIT, {
        WAITING.word: f"{WAITING.meaning}. Beside compute it is drawn darker, and is not counted",
        "transfer": "communication while bytes move: a collective without its waiting",
        "late rank": "the rank that starts a collective last: all others wait for it. The overview names a "
                     "rank that is late in 60 % of the collectives, or more, of 120 steps",
        "not attributed": "communication with unknown waiting: a rank is missing, ends disagree, "
                     "or their clocks are not known well enough. ≥ marks a wait that lacks this part",
    }),
    ((COLLECTIVES, TIMELINES), {
        "GB/s, of peak": "a collective's bus bandwidth as nccl-tests defines it, on transfer time only; "
                         "and its share of the slowest link's peak",
    }),
    ((OVERVIEW,), {
        "▲ ▼": "beside a column's name: the rows are sorted by it, upwards or downwards",
        "measured": "steps with collectives and timelines; others have their length and phases",
        "speed-up": "(compute + communication) / step: the gain over a step without overlap",
        "at best": "by perfect overlap alone: (compute + communication) / the longer of the two",
        "before, after": "the mean step before and after a change, drift included; A compares by trials",
        "mean of": "times are means over these ranks and steps, the late rank included; W sets the window. "
                   "= waiting + transfer: from the same steps, ≈: from some of them. Overlap and speed-up "
                   "are ratios of sums, lead is the least rank's, dropped a sum",
        "pause": "a step longer than 10 s and than five usual ones: the window leaves it out",
    }),
    ((RANK,), {
        "named": "the share of NCCL's kernel time whose collective is known by name and bytes",
    }),
    ((OVERVIEW, RANK, MACHINE), {
        "NVLink PCIe": "bytes a second by the GPU's counters, and the share of the peak in one direction",
        "NUMA": "the node next to the GPU, and where the process may run: ✓ only there, ~ also elsewhere, "
                "✗ only elsewhere, ? not known",
    }),
    ((MACHINE,), {
        "NIC": "the network adapter nearest to the GPU: bytes a second of all processes, and new errors",
        "unexplained": "link traffic minus the traffic of the job's own collectives: other processes' "
                       "traffic, or the job's copies",
    }),
    ((HOSTS,), {
        "clock ±": "the error of a host's clock: times of its steps may be off by this much",
    }),
    (_CHANGES, {
        "knob": "a setting of the running job: DDP's bucket_cap_mb, FSDP2's depth of prefetch, or what the "
                "script declares. All ranks change at one step",
        "bucket": "DDP's bucket_cap_mb, MiB: small ones start early, large ones use the link better. "
                  "[ ]: the keys that change it",
    }),
    ((TRIALS,), {
        "difference": "of the mean step in the trials of a value, with its 95 % interval. no difference: "
                      "less than 1 %",
        "critical, slope": "the step's growth over the delay of a rank (x): 1 is on the critical path, 0 "
                           "is slack. A faster rank gains nothing if it has slack",
    }),
    ((), {UNKNOWN: "not known; never zero"}),
)
# fmt: on
"""Words by the screens that show them."""

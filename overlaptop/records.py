"""The records of ``--json``, which users' programs read: what a field is called and holds.

Each class is one type of record, its fields in the order in which they are printed. docs/json.md and
`overlaptop --json-schema` are made from it.
"""

import json
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


def says(description: str) -> Meta:
    """What a field holds, for the reference and the schema."""
    return Meta(description=description)


class Record(msgspec.Struct, tag_field="type"):
    """A line of JSON."""


def shared(record: type[Record], source: object) -> dict[str, Any]:
    """Return the fields of a record that the source has under the same names; None has none."""
    return {name: getattr(source, name) for name in record.__struct_fields__ if hasattr(source, name)}


def as_json(record: Record) -> str:
    """Return a record as one line of ASCII, whatever encoding stdout has."""
    return json.dumps(msgspec.to_builtins(record))


Job = Annotated[str, says("the job's key")]
Rank = Annotated[int, says("the rank")]
Host = Annotated[str | None, says("the host, as `--host` names it; null: this machine")]
UnixNs = Annotated[int, says("ns, Unix time")]
UntilStep = Annotated[int | None, says("in `report`: the last step for which it held; null: it still does")]

# A job's stream


class StepRecord(Record, tag="step"):
    """One step of one rank. A step that was not measured in detail has null in the fields of its lanes."""

    job: Job
    rank: Rank
    step: Annotated[int, says("counted from 0 at the first step boundary that the agent saw")]
    source: Annotated[str | None, says('`"kernels"`, `"events"`, `"host"` or `"none"`')]
    step_ns: Annotated[int, says("ns, the step's length")]
    compute_ns: Annotated[int | None, says("ns of compute")]
    comm_ns: Annotated[int | None, says("ns of communication")]
    hidden_ns: Annotated[int | None, says("ns of communication beside compute")]
    exposed_ns: Annotated[int | None, says("ns of communication without compute beside it")]
    compute_only_ns: Annotated[int | None, says("ns of compute without communication beside it")]
    copy_only_ns: Annotated[int | None, says("ns of copies with neither beside them")]
    idle_ns: Annotated[int | None, says("ns of none of these; null where `compute_exact` is false")]
    stall_ns: Annotated[int | None, says("ns that compute was stopped at a wait for communication")]
    overlap: Annotated[float | None, says("hidden of all communication, 0 to 1; null without any")]
    collectives: Annotated[int | None, says("collectives and point-to-point operations issued")]
    dropped: Annotated[
        int,
        says(
            "of this rank since the start: messages that did not fit, spans or steps not measured, and "
            "steps lost on the way: by a slow reader or connection, a killed hub, a shortened history"
        ),
    ]
    compute_exact: Annotated[bool | None, says("false where compute is an upper bound")]
    launch_lead_ns: Annotated[
        int | None, says("ns from enqueueing the step's end to the GPU's reaching it")
    ]
    comm_kernels_ns: Annotated[int | None, says("ns of NCCL's kernels, summed; null: not looked up")]
    matched_ns: Annotated[int | None, says("ns, those of them whose collective is known")]
    captured: Annotated[bool, says("torch.profiler ran in the step, as you asked; its lanes are null")]
    link_tx_bytes: Annotated[int | None, says("bytes that a ring's collectives send within the node")]
    link_rx_bytes: Annotated[int | None, says("the same, received")]
    nic_tx_bytes: Annotated[int | None, says("the same, sent to other nodes")]
    nic_rx_bytes: Annotated[int | None, says("the same, received from other nodes")]
    transitional: Annotated[bool, says("a setting was being changed; its lanes are null")]
    cpu_ns: Annotated[int | None, says("ns of CPU time of the training thread; null in a trace")]
    delayed_ns: Annotated[int | None, says("ns that it was ready to run and had no CPU; null in a trace")]
    loading_ns: Annotated[int | None, says("ns in a DataLoader's `next`; null in a trace")]
    full_collections: Annotated[int | None, says("Python's full garbage collections; null in a trace")]
    fused_ns: Annotated[int | None, says("ns of kernels that compute and communicate in one")]
    host_ns: Annotated[int | None, says("ns of the CPU, less blocking by its GPU; null without CUPTI")]
    trial: Annotated[bool, says("a trial was under way; its lanes are null")]
    wait_ns: Annotated[int | None, says("ns of communication that waited for a late rank")]
    transfer_ns: Annotated[int | None, says("ns of communication that transferred")]
    not_attributed_ns: Annotated[int | None, says("ns that are neither; null: the ranks were not compared")]
    exposed_wait_ns: Annotated[int | None, says("ns of `wait_ns` without compute beside it")]
    exposed_transfer_ns: Annotated[int | None, says("ns of `transfer_ns` without compute beside it")]
    late_rank: Annotated[int | None, says("whom the others waited for longest; null: nobody, or not known")]
    bounds: Annotated[
        dict[str, str] | None, says('bounds among these: `{"overlap": "≤"}`; null: not known')
    ]


class CollectiveRecord(Record, tag="collective"):
    """One collective on all its ranks, with `--json --detail` and from `analyze --json`."""

    job: Job
    step: Annotated[int, says("the step")]
    op: Annotated[str | None, says("c10d's name of it; null: not known, or not the same on all ranks")]
    group: Annotated[str | None, says("the process group; null as with `op`")]
    bytes: Annotated[int | None, says("the larger of input and output; null as with `op`")]
    start_ns: Annotated[int, says("ns, Unix time: the first rank's start")]
    last_start_ns: Annotated[int, says("ns, Unix time: the last rank's start")]
    end_ns: Annotated[int, says("ns, Unix time: the last rank's end")]
    ranks: Annotated[list[int], says("its ranks")]
    wait_ns: Annotated[list[int | None], says("ns that each of them waited; null: not attributed")]
    transfer_ns: Annotated[list[int | None], says("ns that each of them transferred; null: not attributed")]
    late_rank: Annotated[int | None, says("the rank that started last; null: several, or not attributed")]
    least_transfer_ns: Annotated[int | None, says("ns, the shortest on any rank; null: not attributed")]
    residual_ns: Annotated[int | None, says("ns by which the ranks' ends disagree: how wrong waits may be")]
    clock_error_ns: Annotated[int | None, says("ns by which the clocks of its hosts may be apart")]
    bus_bandwidth_bytes_per_s: Annotated[
        float | None, says("over `least_transfer_ns`, by nccl-tests' count")
    ]
    not_attributed: Annotated[str | None, says("why waiting and transfer are not known; null: they are")]


class DeviceRecord(Record, tag="device"):
    """A sample of a rank's GPU and links, twice a second; without a GPU, its CPUs when they change."""

    job: Job
    rank: Rank
    at_ns: Annotated[int | None, says("ns, Unix time of the sample's end; null without a GPU")]
    gpu_uuid: Annotated[str | None, says("as in `nvidia-smi -L`; null without a GPU")]
    nvlink_rx_bytes_per_s: Annotated[int | None, says("bytes per second received over all NVLinks")]
    nvlink_tx_bytes_per_s: Annotated[int | None, says("the same, sent")]
    pcie_rx_bytes_per_s: Annotated[int | None, says("bytes per second received over PCIe, as payload")]
    pcie_tx_bytes_per_s: Annotated[int | None, says("the same, sent")]
    nvlink_peak_bytes_per_s: Annotated[int | None, says("bytes per second in one direction")]
    pcie_peak_bytes_per_s: Annotated[int | None, says("bytes per second in one direction, as payload")]
    collectives_over: Annotated[str | None, says('the link of collectives: `"nvlink"` or `"pcie"`')]
    collectives_rx_bytes_per_s: Annotated[
        float | None, says("bytes per second of collectives, mean of 10 s")
    ]
    collectives_tx_bytes_per_s: Annotated[float | None, says("the same, sent")]
    sm_activity: Annotated[float | None, says("share of the time that multiprocessors had work, 0 to 1")]
    tensor_activity: Annotated[float | None, says("the same of the tensor cores")]
    dram_activity: Annotated[float | None, says("the same of the memory's bus")]
    memory_used_bytes: Annotated[int | None, says("bytes of the GPU's memory")]
    memory_total_bytes: Annotated[int | None, says("bytes of the GPU's memory")]
    power_mw: Annotated[int | None, says("milliwatts")]
    power_limit_mw: Annotated[int | None, says("milliwatts")]
    sm_clock_hz: Annotated[int | None, says("hertz")]
    memory_clock_hz: Annotated[int | None, says("hertz")]
    throttle_reasons: Annotated[tuple[str, ...] | None, says("empty where the clocks are not reduced")]
    numa_node: Annotated[int | None, says("the GPU's NUMA node")]
    numa_state: Annotated[
        str | None, says('`"bound"`, `"unbound"`, `"wrong node"`, `"one node"`, `"no gpu"` or `"unknown"`')
    ]
    cpu_set: Annotated[str | None, says('the CPUs that the process may use: `"0-31,64-95"`')]
    cpu_nodes: Annotated[list[int] | None, says("their NUMA nodes")]
    memory_policy: Annotated[str | None, says('`"default"`, `"bind:0"`, `"prefer:1"`, `"interleave:0-1"`')]
    nic: Annotated[str | None, says("the network adapter nearest to the GPU")]
    nic_node: Annotated[int | None, says("its NUMA node")]
    nic_rx_bytes_per_s: Annotated[int | None, says("bytes per second that it received, for all processes")]
    nic_tx_bytes_per_s: Annotated[int | None, says("the same, sent")]
    nic_peak_bytes_per_s: Annotated[int | None, says("bytes per second in one direction")]
    nic_collectives_rx_bytes_per_s: Annotated[float | None, says("of it by collectives from other nodes")]
    nic_collectives_tx_bytes_per_s: Annotated[float | None, says("the same, sent")]
    nic_errors: Annotated[dict[str, int] | None, says('errors since the start: `{"link_downed": 1}`')]


class CostRecord(Record, tag="cost"):
    """What measuring costs a rank, whenever more is known of it."""

    job: Job
    rank: Rank
    change: Annotated[float | None, says("growth of the last minute's mean step: 0.001 for 0.1 %")]
    error: Annotated[float | None, says("half of its 95 % interval")]
    measured_change: Annotated[float | None, says("the same of a measured step")]
    measured_error: Annotated[float | None, says("half of its 95 % interval")]
    watched: Annotated[bool, says("somebody watches the rank, so the larger budget applies")]


class FindingRecord(Record, tag="finding"):
    """What a rule found, once it has held for a second or five, and every ten seconds while it holds.

    Findings about late ranks need `--detail`.
    """

    job: Job
    rule: Annotated[str, says("the rule's name")]
    title: Annotated[str, says("one line")]
    ranks: Annotated[tuple[int, ...], says("the ranks that it is about; empty: the whole job")]
    measured: Annotated[str, says("what was measured, in words")]
    gain_ns: Annotated[int | None, says("ns by which mending it shortens the step")]
    certainty: Annotated[Literal["measured", "likely", "possible"], says("how sure it is")]
    advice: Annotated[str, says("what to type or change")]
    line: Annotated[str | None, says('the line of the script: `"train.py:57 in collate"`')]
    step_ns: Annotated[int | None, says("ns of the step that `gain_ns` shortens; null: not known")] = None
    until_step: UntilStep = None


class TroubleRecord(Record, tag="trouble"):
    """Something is wrong with the running job, or that has changed."""

    job: Job
    kind: Annotated[
        str,
        says(
            '`"waiting"` (for a rank that may still come, as from a checkpoint), `"hung"`, `"silent"`, '
            '`"no step"`, `"no first step"`, `"no step seen"` (and the script goes on), `"failed"`, '
            '`"died"` or `"all died"`'
        ),
    ]
    ranks: Annotated[tuple[int, ...], says("the ranks to blame; empty: not known")]
    since_ns: UnixNs
    text: Annotated[str, says("who waits for whom, and the line of the script")]


class NoticeRecord(Record, tag="notice"):
    """A process that is not shown because another one has its rank, or a restart of the job by torchrun."""

    job: Job
    rank: Rank
    at_ns: UnixNs
    level: Annotated[str, says('`"warning"`')]
    text: Annotated[str, says("both processes by pid and script, or the number of the restart")]


class EndRecord(Record, tag="end"):
    """How a rank ended: last of all, and with `--once --json` for each rank that has ended."""

    job: Job
    rank: Rank
    at_ns: UnixNs
    failed: Annotated[bool, says("it did not end well")]
    first: Annotated[bool, says("it failed before all others")]
    exit_status: Annotated[int | None, says("null: a signal ended it, or not known")]
    signal: Annotated[str | None, says('`"SIGKILL"`; null: none, or not known')]
    failure: Annotated[str | None, says("the exception or exit status in words, as the rank sent it")]


# Other commands


class JobRecord(Record, tag="job"):
    """`--list --json`: a job of this machine, or of other hosts."""

    job: Job
    script: Annotated[str, says("the script's path, as the launcher got it")]
    cwd: Annotated[str, says("where it was started")]
    host: Annotated[str, says("the machine's own name")]
    world_size: Annotated[int, says("ranks of the job")]
    python: Annotated[str, says("its interpreter; empty on another host")]
    protocol: Annotated[int, says("the protocol of its hub")]
    started_ns: UnixNs
    ended: Annotated[bool, says("all its ranks have gone")]
    rank_pids: Annotated[tuple[int, ...], says("the ranks on that machine, by pid")]
    hub_pid: Annotated[int, says("its hub")]
    starter_pid: Annotated[int, says("the rank that started the hub")]


class TraceRankRecord(Record, tag="rank"):
    """`analyze --json`: one rank over the whole trace, from its first GPU activity to its last."""

    rank: Rank
    overlap: Annotated[float | None, says("as in `step`, like all that follow")]
    comm_ns: int | None
    hidden_ns: int | None
    exposed_ns: int | None
    compute_ns: int | None
    copy_only_ns: int | None
    idle_ns: int | None
    fused_ns: int | None
    compute_exact: bool
    wait_ns: int | None
    transfer_ns: int | None
    not_attributed_ns: int | None
    exposed_wait_ns: int | None
    exposed_transfer_ns: int | None
    late_rank: int | None


class CaptureRecord(Record, tag="capture"):
    """`capture --json`: a rank's trace."""

    job: Job | None
    id: Annotated[str, says("the command's id")]
    rank: Rank
    state: Annotated[str, says('`"written"`, or how it failed')]
    step: Annotated[int | None, says("the agreed first step; the profiler settles in it and the next two")]
    path: Annotated[str | None, says("the trace; null: none was written")]
    reason: Annotated[str | None, says("why none was written")]
    live_overlap: Annotated[float | None, says("measured by the agent in the steps just before")]
    host: Host


class KnobRecord(Record, tag="knob"):
    """`set --json`: a setting of the job."""

    job: Job | None
    knob: Annotated[str, says("its name")]
    value: Annotated[int | None, says("null: no whole number, or not known")]
    value_text: Annotated[str | None, says("the value in words")]
    original_text: Annotated[str | None, says("the script's own value in words")]
    least: Annotated[int, says("the smallest value allowed")]
    most: Annotated[int, says("the largest value allowed")]
    choices: Annotated[tuple[int, ...] | None, says("the values allowed; null: all between")]
    unit: Annotated[str | None, says("of the value")]
    owner: Annotated[str, says("what it is a setting of")]
    about: Annotated[str, says("what it does")]
    code: Annotated[str | None, says("the line that makes a value permanent")]
    differs: Annotated[bool, says("ranks have different values")]
    refusal: Annotated[str | None, says("why it cannot be changed now; null: it can")]


class ChangeRecord(Record, tag="change"):
    """`changes --json`: one command about a setting."""

    at_ns: UnixNs
    job: Job
    script: Annotated[str, says("the job's script")]
    host: Annotated[str, says("the machine's own name")]
    by: Annotated[str, says("who asked")]
    knob: Annotated[str, says("the setting")]
    old: Annotated[str | None, says("the value before")]
    new: Annotated[str | None, says("the value since, or what was asked for where it was not made")]
    step: Annotated[int | None, says("from which on the ranks acted; null: they did not")]
    outcome: Annotated[str, says('`"changed"`, `"refused"`, `"busy"`, `"failed"` or `"unknown"`')]
    reason: Annotated[str, says("why it was not made, or why that is not known; else empty")]
    command: Annotated[str, says("the command's id")]


class TuneTrialRecord(Record, tag="trial"):
    """`tune --json`: one trial."""

    job: Job | None
    knob: Annotated[str, says("the setting")]
    value: Annotated[int, says("the tried value")]
    tried_ns: Annotated[int, says("ns, the mean step in the trial")]
    present_ns: Annotated[int, says("ns, the mean step around it")]


class TuneValueRecord(Record, tag="value"):
    """`tune --json`: the result of a value's trials."""

    job: Job | None
    knob: Annotated[str, says("the setting")]
    value: Annotated[int, says("the tried value")]
    trials: Annotated[int, says("trials that count")]
    steps: Annotated[int, says("steps spent on it")]
    difference: Annotated[float | None, says("of its step from the present one, as a share of that")]
    difference_low: Annotated[float | None, says("the 95 % interval's low end")]
    difference_high: Annotated[float | None, says("the 95 % interval's high end")]
    verdict: Annotated[str, says('`"shorter"`, `"longer"`, `"no difference"` or `"not known"`')]


class TuneResultRecord(Record, tag="result"):
    """`tune --json`: what was found."""

    job: Job | None
    knob: Annotated[str, says("the setting")]
    present: Annotated[str, says("its value in words")]
    present_step_ns: Annotated[int | None, says("ns, the step with it")]
    best: Annotated[int | None, says("the best value")]
    difference: Annotated[float | None, says("of the best value's step, as in `value`")]
    difference_low: Annotated[float | None, says("the 95 % interval's low end")]
    difference_high: Annotated[float | None, says("the 95 % interval's high end")]
    rivals: Annotated[list[int] | None, says("values that may be as good")]
    confidence: Annotated[float, says("of the intervals")]
    steps_spent: Annotated[int, says("steps of all trials")]
    ended: Annotated[str, says("why the trials ended before all was known; empty: they did not")]
    line: Annotated[str | None, says("the result in words")]
    code: Annotated[str | None, says("the line of code that makes the best value permanent")]


class SlackTrialRecord(Record, tag="trial"):
    """`slack --json`: one trial."""

    job: Job | None
    rank: Rank
    place: Annotated[str, says('`"host"` or `"gpu"`: what was delayed')]
    delay_ns: Annotated[int, says("ns of delay in each step")]
    tried_ns: Annotated[int, says("ns, the mean step in the trial")]
    present_ns: Annotated[int, says("ns, the mean step around it")]


class SlackRankRecord(Record, tag="rank"):
    """`slack --json`: the result of a rank's trials."""

    job: Job | None
    rank: Rank
    place: Annotated[str, says("as in `trial`")]
    delay_ns: Annotated[int, says("as in `trial`")]
    trials: Annotated[int, says("trials that count")]
    steps: Annotated[int, says("steps spent on it")]
    slope: Annotated[float | None, says("of the step over the delay: 1 on the critical path, 0 with slack")]
    slope_low: Annotated[float | None, says("the 95 % interval's low end")]
    slope_high: Annotated[float | None, says("the 95 % interval's high end")]
    confidence: Annotated[float, says("of the interval")]
    verdict: Annotated[str, says('`"critical"`, `"slack"`, `"partly critical"` or `"not known"`')]


class CheckRecord(Record, tag="check"):
    """`doctor --json`: what one check found."""

    host: Annotated[str, says("as it was named; empty: this machine")]
    check: Annotated[str, says("what was looked at, in one word")]
    status: Annotated[Literal["ok", "warning", "fault", "unknown"], says("whether it works")]
    finding: Annotated[str, says("what was found")]
    remedy: Annotated[str, says("what to do; empty: nothing, or `finding` says it")]


class LateRank(msgspec.Struct):
    """A rank that others waited for."""

    rank: Rank
    late_count: Annotated[int, says("collectives in which it was late, when last measured")]
    collectives: Annotated[int, says("collectives compared then")]
    wait_ns: Annotated[int, says("ns that the others waited for it in a step, nothing beside")]
    for_ns: Annotated[int, says("ns for which it was late")]
    cause: Annotated[str | None, says("why, in words; null: not known")]
    line: Annotated[str | None, says('the line of the script: `"train.py:57 in collate"`')]
    until_step: UntilStep = None


class Figure(msgspec.Struct):
    """A figure of a run, with what `compare` needs of it."""

    name: Annotated[str, says('`"step"`, `"overlap"`, `"op allreduce_"`, `"rank 2 compute"`, ...')]
    unit: Annotated[Literal["ns", "share"], says("of all that follows; ns are of one step")]
    median: Annotated[float, says("over steps")]
    spread: Annotated[float | None, says("half of the range of the middle two thirds of `blocks`")]
    steps: Annotated[int, says("steps that it is of")]
    blocks: Annotated[
        list[float], Meta(max_length=28), says("medians of 7, 14 or 28 blocks; empty: too few")
    ]


class Work(msgspec.Struct):
    """What a step of a run does. Runs of unlike work are not compared."""

    world_size: Annotated[int, says("ranks of the job")]
    comm_bytes: Annotated[int | None, says("bytes that a rank hands to collectives in a step")]
    operations: Annotated[
        list[list[str]] | None,
        says("collectives of a step, in each group's order: all repeated orders, most frequent first"),
    ]


class RunRecord(Record, tag="report"):
    """`report --json`: how a job went. Figures are of the steps between `from_ns` and `to_ns`."""

    job: Job
    script: Annotated[str, says("the job's script")]
    hosts: Annotated[list[str], says("the hosts of its ranks")]
    work: Annotated[Work, says("what a step does")]
    started_ns: UnixNs
    from_ns: UnixNs
    to_ns: UnixNs
    ended: Annotated[bool, says("the job is over")]
    steps: Annotated[int, says("steps made since the start; of traces, steps in them")]
    step_ns: Annotated[int | None, says("ns, the median step")]
    p99_step_ns: Annotated[int | None, says("ns: 99 of 100 steps were shorter")]
    overlap: Annotated[float | None, says("hidden of all communication, 0 to 1")]
    exposed_ns: Annotated[int | None, says("ns of communication with no compute beside it, mean of a step")]
    exposed_wait_ns: Annotated[int | None, says("ns of it that waited, in the steps that were compared")]
    exposed_transfer_ns: Annotated[int | None, says("ns of it that transferred, likewise")]
    exposed_not_attributed_ns: Annotated[int | None, says("ns of it that is neither, likewise")]
    bound: Annotated[str | None, says("what mostly set the step's length; null: nothing, or not known")]
    late_ranks: Annotated[list[LateRank], says("ranks that others waited for, the longest first")]
    findings: Annotated[list[FindingRecord], says("as in a stream, the last of each")]
    troubles: Annotated[list[TroubleRecord], says("hangs and failures, in their order")]
    changes: Annotated[list[ChangeRecord], says("what was changed")]
    cost_change: Annotated[float | None, says("as `change` in `cost`, of the job")]
    cost_error: Annotated[float | None, says("half of its 95 % interval")]
    figures: Annotated[list[Figure], says("what `compare` compares")]
    compute_exact: Annotated[bool, says("false where compute, and so overlap, is an upper bound")] = True


class DifferenceRecord(Record, tag="difference"):
    """`compare --json`: one figure of two runs."""

    name: Annotated[str, says("as in `report`")]
    unit: Annotated[Literal["ns", "share"], says("of `a` and `b`")]
    a: Annotated[float, says("median of the first run")]
    a_spread: Annotated[float | None, says("as in `report`")]
    b: Annotated[float, says("median of the second")]
    b_spread: Annotated[float | None, says("as in `report`")]
    difference: Annotated[
        float | None, says("b - a for shares, else (b - a) / a; null: a is 0, or no blocks")
    ]
    difference_low: Annotated[float | None, says("the interval's low end; null: a is 0, or too few steps")]
    difference_high: Annotated[float | None, says("the interval's high end")]
    judged: Annotated[bool, says("there are enough steps to tell a difference from noise")]
    differs: Annotated[bool, says("by more than noise, and by 1 % or more, or from 0")]


class DoctorRecord(Record, tag="doctor"):
    """`doctor --json`: what the checks of one host come to, after them."""

    host: Annotated[str, says("as in `check`")]
    works: Annotated[bool, says("whether monitoring will work there")]


def schema() -> dict[str, Any]:
    """Return the JSON schema (2020-12) of a line of `--json`, whichever command prints it."""
    references, definitions = msgspec.json.schema_components(
        Record.__subclasses__(), ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A record of overlaptop --json",
        "anyOf": list(references),
        "$defs": definitions,
    }

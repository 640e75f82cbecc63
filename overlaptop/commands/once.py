"""``--once``: the present state as a text table, or as one record per rank."""

import argparse
from collections.abc import Sequence

from overlaptop import text
from overlaptop.commands.arguments import hosts_of
from overlaptop.commands.findings import TroubleLog, found_in, in_a_line, warnings
from overlaptop.commands.following import settle_waits
from overlaptop.commands.jobs import join
from overlaptop.commands.output import print_data, print_page, table
from overlaptop.findings.first_line import first_line, most_urgent
from overlaptop.fleet.records import device_record, end_records, step_record
from overlaptop.fleet.snapshot import HubState, RankView, Snapshot
from overlaptop.fleet.totals import with_means
from overlaptop.fleet.trouble import Trouble, first_failure, trouble_of
from overlaptop.records import Record
from overlaptop.report import hosts as nodes
from overlaptop.report import troubles
from overlaptop.report.figures import exposed_text, ranks_text, totals_text, window_text
from overlaptop.report.links import nvlink_rate, pcie_rate
from overlaptop.report.order import all_see_gaps, idle_ns, waiting_at_least, waiting_ns
from overlaptop.report.who_is_late import UNTIL_THEN

_HEAD = ["rank", "step", "step time", "overlap", "exposed", "waiting", "stall", "idle", "compute", "comm",
         "collectives", "dropped", "source", "state"]  # fmt: skip
_LINKS_HEAD = ["rank", "NVLink rx", "tx", "of peak", "PCIe rx", "tx", "of peak", "GPU's node", "may run on",
               ""]  # fmt: skip


def run(options: argparse.Namespace) -> int:
    with join(options.job, hosts_of(options), wait=options.wait) as session:
        snapshot = settle_waits(session)
    show(snapshot, as_json=options.json, ascii_only=options.ascii)
    return 0


def show(snapshot: Snapshot, *, as_json: bool, ascii_only: bool) -> None:
    if as_json:
        print_data(*records_of(snapshot))
    else:
        print_page(render(snapshot), ascii_only=ascii_only)


def records_of(snapshot: Snapshot) -> list[Record]:
    assert snapshot.job is not None
    job = snapshot.job.job
    records: list[Record] = [*TroubleLog().due(snapshot)]
    records += [finding.record(job) for finding in found_in(snapshot)]
    for view in snapshot.ranks:
        if (totals := view.measured or view.last) is not None:
            waits = snapshot.waits if snapshot.waits and snapshot.waits.step == totals.step else None
            records.append(step_record(job, view.info, totals, waits))
        if view.sample is not None or view.numa is not None:
            records.append(device_record(job, view, view.sample))
    return [*records, *end_records(snapshot)]


def render(snapshot: Snapshot) -> str:
    """Return a snapshot as text: the job, its totals, a row for each rank over the totals' window. Unknown
    is a dash.
    """
    found = found_in(snapshot)
    snapshot = with_means(snapshot)
    trouble, failure = trouble_of(snapshot), first_failure(snapshot.ranks)
    rows = [_row(view, failure) for view in snapshot.ranks]
    exact, totals = all_see_gaps(snapshot.ranks), figures(snapshot)
    said = first_line(snapshot, found)
    if (urgent := most_urgent(found, said)) is not None:
        found = (urgent, *(each for each in found if each is not urgent))
    wrong = troubles.in_full(trouble) if trouble is not None else ""
    in_short = in_a_line(found) if found and (said is None or said.rule != found[0].rule) else ""
    hint = troubles.no_step_hint(snapshot.ranks)
    before = UNTIL_THEN if wrong else ""
    lines = [
        title(snapshot),
        *([wrong] if wrong else []),
        *([hint] if hint and hint not in wrong else []),
        *warnings(snapshot),
        *([said.words] if said is not None else []),
        *([f"{before}{in_short}"] if in_short else []),
        *([text.printable(f"to do: {found[0].advice}")] if found and not wrong else []),
        (before if snapshot.totals.steps else "")
        + "   ".join(
            [*(f"{name} {figure}" for name, figure in totals.items()), window_text(snapshot.totals)]
        ),
        table(_HEAD, rows, left={"source", "state"}),
        *_hosts(snapshot),
        *_links(snapshot.ranks),
        *_numa_advice(snapshot.ranks),
    ]
    if not exact:
        lines.append(
            "compute is an upper bound (gaps between kernels are not seen): "
            "overlap may be lower, exposed higher"
        )
    return "\n".join(lines)


def figures(snapshot: Snapshot) -> dict[str, str]:
    """Return the totals by name, as text."""
    totals = snapshot.totals
    found = totals_text(totals, exact=all_see_gaps(snapshot.ranks))
    if totals.waits is not None:
        found["exposed"] += f" {exposed_text(totals.waits, totals.exposed_ns)}"
    return found


def _hosts(snapshot: Snapshot) -> list[str]:
    if len(snapshot.nodes) < 2:
        return []
    lines = [""]
    for node in snapshot.nodes:
        facts = nodes.describe(node, snapshot.at_ns)
        if node.ranks:
            facts += f"  {text.named_ranks(node.ranks)}"
        if node.hub_state is HubState.LIVE and node.residual_ns is not None:
            facts += f"  clock {nodes.known_within(node.residual_ns)}"
        lines.append(text.printable(facts))
    return lines


def _links(ranks: Sequence[RankView]) -> list[str]:
    if not any(view.sample is not None or view.numa is not None for view in ranks):
        return []
    return ["", table(_LINKS_HEAD, map(_link_row, ranks), left={"may run on", ""})]


def _link_row(view: RankView) -> list[str]:
    sample, numa = view.sample, view.numa
    return [
        str(view.rank),
        text.rate(sample.nvlink_rx_bytes_per_s if sample else None),
        text.rate(sample.nvlink_tx_bytes_per_s if sample else None),
        text.whole_percent(nvlink_rate(view).share),
        text.rate(sample.pcie_rx_bytes_per_s if sample else None),
        text.rate(sample.pcie_tx_bytes_per_s if sample else None),
        text.whole_percent(pcie_rate(view).share),
        text.count(numa.gpu_node if numa else None),
        f"CPUs {numa.cpu_set}" if numa and numa.cpu_set else text.UNKNOWN,
        numa.state if numa else text.UNKNOWN,
    ]


def _numa_advice(ranks: Sequence[RankView]) -> list[str]:
    ranks_of: dict[tuple[str, str], list[int]] = {}
    for view in ranks:
        if view.numa is not None and view.numa.advice:
            ranks_of.setdefault((view.numa.reason, view.numa.advice), []).append(view.rank)
    return [
        text.printable(f"rank {', '.join(map(str, who))}: {reason}. To mend it: {advice}")
        for (reason, advice), who in ranks_of.items()
    ]


def title(snapshot: Snapshot) -> str:
    job = snapshot.job
    assert job is not None
    infos = [view.info for view in snapshot.ranks if view.info is not None]
    facts = [job.script, ranks_text(snapshot), *filter(None, [job.host])]
    facts += sorted({info.device for info in infos if info.device})
    facts += sorted({info.backend for info in infos if info.backend})
    trouble = trouble_of(snapshot)
    state = f"recorded at {text.clock(snapshot.at_ns)}" if snapshot.recorded else snapshot.hub_state.value
    if trouble is not None and snapshot.hub_state is HubState.LIVE:
        state = troubles.in_brief(trouble, snapshot.at_ns)
    facts += [f"job {job.job}", state]
    return text.printable(" · ".join(facts))


def _row(view: RankView, failure: Trouble | None) -> list[str]:
    row, measured, newest = view.row, view.measured, view.last or view.row
    return [
        str(view.rank),
        text.count(newest.step if newest else None),
        text.duration(row.step_ns if row else None),
        text.percent(row.overlap if row else None),
        text.duration(row.exposed_ns if row else None),
        f"{text.AT_LEAST if waiting_at_least(view) else ''}{text.duration(waiting_ns(view))}",
        text.duration(row.stall_ns if row else None),
        text.duration(idle_ns(view)),
        text.duration(row.compute_ns if row else None),
        text.duration(row.comm_ns if row else None),
        text.count(measured.collectives if measured else None),
        text.count(view.dropped),
        view.info.source if view.info else text.UNKNOWN,
        _state(view, failure),
    ]


def _state(view: RankView, failure: Trouble | None) -> str:
    if view.info is None:
        return "not seen here"
    if view.ended:
        return troubles.endings(view, failure)[0]
    if view.node_lost:
        return "out of reach"
    if view.last is None:
        return troubles.no_step_yet(view)
    if view.silent:
        return "silent"
    return f"no step for {text.age(view.age_s or 0)}" if view.stale else "running"

"""``overlaptop mcp``: running jobs for AI agents, by the Model Context Protocol over stdin and stdout."""

import argparse
import os
import signal
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from overlaptop import __version__
from overlaptop.commands.arguments import Hosts, add_flag, add_hosts, hosts_of
from overlaptop.commands.compare import compared
from overlaptop.commands.findings import found_in
from overlaptop.commands.following import settle_waits
from overlaptop.commands.jobs import join, list_records
from overlaptop.commands.once import records_of, title
from overlaptop.commands.output import CommandError
from overlaptop.commands.report import report_of
from overlaptop.commands.slack import experiment_of as delaying
from overlaptop.commands.trials import Experiment
from overlaptop.commands.tune import experiment_of as tuning
from overlaptop.findings.finding import Finding, why_late
from overlaptop.findings.first_line import first_line
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.jobs.folder import JobFolderError
from overlaptop.records import Record
from overlaptop.wire.commands import HOST

if TYPE_CHECKING:
    from mcp.server import MCPServer

DESCRIPTION = """\
Let an AI agent read jobs: which run, their state, findings with their causes, how past runs went and what
differs between two. It speaks the Model Context Protocol on stdin and stdout. It changes nothing, but with
--control it tries values and delays. Needs: pip install 'overlaptop[mcp]'
"""
EPILOG = """\
For example: claude mcp add overlaptop -- overlaptop mcp
"""
INSTRUCTIONS = """\
Reads training jobs that run with overlaptop's agent. Times are in ns, null is "not known". Start with
`findings`: it says what costs most, why, and what to do. A call waits some seconds for measured steps.
"""
CONTROL = """\
`tune` and `slack` disturb the job for minutes: ask its user before. A trial ends by itself, and the job
then has the value that it had before.
"""
MAX_RANKS = 64  # Maximum ranks whose records an agent gets unasked: more would fill its context


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flag(parser, "--control", "also offer trials of the job's settings, and of delays")
    add_hosts(parser)


def run(options: argparse.Namespace) -> int:
    # Its thread that reads stdin would hold up an exit. A trial ends by itself.
    signal.signal(signal.SIGINT, lambda number, _frame: os._exit(128 + number))
    make_server(hosts_of(options), control=options.control).run("stdio")
    return 0


def make_server(hosts: Hosts | None = None, *, control: bool = False) -> "MCPServer":
    """Return a server with a tool for each question, and with `control` for trials. `hosts`: of the jobs;
    None: this machine.
    """
    from mcp.server import MCPServer
    from mcp.types import ToolAnnotations

    def jobs() -> dict[str, Any]:
        """List the running jobs: key, script, host, ranks."""
        return {"jobs": to_builtins(list_records(hosts))}

    def state(job: str | None = None, ranks: list[int] | None = None) -> dict[str, Any]:
        """Return the newest step, devices, troubles and ends of each rank, as `overlaptop --once --json`
        prints them. `job`: a key as `jobs` lists it; not needed where there is one. `ranks`: only these.
        """
        snapshot = _look(job, hosts)
        if ranks is None and len(snapshot.ranks) > MAX_RANKS:
            raise CommandError(f"the job has {len(snapshot.ranks):,} ranks: name some in `ranks`")
        records = to_builtins(records_of(snapshot))
        wanted = [each for each in records if ranks is None or each.get("rank") in (None, *ranks)]
        return {**_summary(snapshot, found_in(snapshot)), "records": wanted}

    def findings(job: str | None = None) -> dict[str, Any]:
        """Return what costs the job most, which rank is late and why, what mending it saves, what to do.
        `job`: a key as `jobs` lists it; not needed where there is one job.
        """
        snapshot = _look(job, hosts)
        assert snapshot.job is not None
        found = found_in(snapshot)
        records = [each.record(snapshot.job.job) for each in found]
        return {**_summary(snapshot, found), "findings": to_builtins(records)}

    def report(source: str | None = None) -> dict[str, Any]:
        """Return how a run went: its figures, what bounded it, late ranks with causes, findings, hangs.
        `source`: the key of a job that runs or ended on this machine, or the path of a recording, of one's
        part (run.mcap@10:05-10:10), or of torch.profiler traces; not needed for the newest job.
        """
        record = to_builtins(report_of(source))
        for figure in record["figures"]:
            del figure["blocks"]
        return {"report": record}

    def compare(a: str, b: str) -> dict[str, Any]:
        """Return what differs in run `b` from run `a`, each a source as `report` takes it. Where `differs`
        is false, the difference may be noise. `note` says which figures are left out.
        """
        found, note = compared(a, b)
        return {"differences": to_builtins(found), "note": note}

    def tune(
        knob: str, values: list[int] | None = None, job: str | None = None, budget_steps: int | None = None
    ) -> dict[str, Any]:
        """Try values of a setting (such as bucket_cap_mb) on the running job, each against the present one,
        and say which step is shorter. Nothing is changed for good. Takes minutes: 1,000 steps or 90 s a
        value, or `budget_steps` in all. Without `values`: some around the present one.
        """
        with join(job, hosts) as session:
            experiment, _ = tuning(session, knob, values or (), budget_steps=budget_steps)
            *tried, result = _results(experiment)
            return {"values": to_builtins(tried), "result": to_builtins(result)}

    def slack(
        ranks: list[int] | None = None,
        delay_ns: int | None = None,
        job: str | None = None,
        budget_steps: int | None = None,
    ) -> dict[str, Any]:
        """Delay each rank in turn, by 2 % of the step or `delay_ns`, and say how much the step grows: slope
        1 is a rank on the critical path, 0 one with slack. Takes minutes, as `tune`.
        """
        delay = None if delay_ns is None else lambda _: delay_ns
        with join(job, hosts) as session:
            experiment = delaying(session, tuple(ranks or ()), delay, HOST, budget_steps)
            return {"ranks": to_builtins(_results(experiment)), "ended": experiment.trials.state.why}

    instructions = INSTRUCTIONS + (CONTROL if control else "")
    server = MCPServer("overlaptop", version=__version__, instructions=instructions, log_level="ERROR")
    reading: tuple[Callable[..., dict[str, Any]], ...] = (jobs, state, findings, report, compare)
    for tool in (*reading, *((tune, slack) if control else ())):
        hints = ToolAnnotations(read_only_hint=tool in reading, open_world_hint=False)
        server.tool(annotations=hints)(_refusing(tool))
    return server


def _results(experiment: Experiment) -> list[Record]:
    """Run the trials to their end, each logged on stderr. CommandError if they ended before."""
    experiment.run()
    state = experiment.trials.state
    if state.failed:
        raise CommandError(state.why)
    return experiment.records(state)


def _look(job: str | None, hosts: Hosts | None) -> Snapshot:
    with join(job, hosts) as session:
        return settle_waits(session)


def _refusing(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Answer with what the command line would say. Other exceptions are faults; agents do not see them."""
    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(tool)
    def answer(**arguments: Any) -> dict[str, Any]:
        try:
            return tool(**arguments)
        except (CommandError, JobFolderError) as fault:
            raise ToolError(str(fault)) from fault

    return answer


def _summary(snapshot: Snapshot, found: Sequence[Finding]) -> dict[str, Any]:
    said = first_line(snapshot, found)
    late_rank = said.late_rank if said is not None else None
    return {
        "job": title(snapshot),
        "summary": said.words if said is not None else None,
        "late_rank": late_rank,
        "cause": (why_late(found, late_rank) or None) if late_rank is not None else None,
    }

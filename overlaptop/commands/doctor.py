"""``overlaptop doctor``: what will work here and on other hosts, and what to do where it does not."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from overlaptop.commands.arguments import add_hosts, hosts_of
from overlaptop.commands.output import CommandError, print_data
from overlaptop.doctor.findings import Finding, Status, works
from overlaptop.doctor.installed import check_installation
from overlaptop.remote.bootstrap import remote_command
from overlaptop.text import printable

if TYPE_CHECKING:
    pass

DESCRIPTION = """\
Say what will work: the interpreter, torch, NCCL, CUPTI and NVML, what this user may do, the socket
directory, the jobs that run, ssh, the terminal, the clock. With HOST also what will work there, how it is
reached, and how far its clock is from ours; ssh asks nothing meanwhile. One line for each finding, with
what to do. Nothing is changed, nothing needs root, and a check that hangs is given up.

  overlaptop doctor --python ~/venv/bin/python                the interpreter that trains here
  overlaptop doctor me@gpu-a gpu-b                            here and there
"""
EPILOG = """\
A finding is ok, a warning (monitoring works, but shows less), a fault (it does not work) or unknown (it
could not be looked at). --python without HOST is the interpreter here: what it lacks is a fault then, and
else a warning, since jobs may have another one.
A record of --json holds type ("check"), host (as it was named; empty: here), check, status, finding and
remedy (empty: none is needed); one of type "doctor" ends each host, with works (true or false).
exit status: 0 when monitoring will work here and on each host, 1 when not, 2 for a usage error.
"""
_STATUS_WIDTH = max(len(status.value) for status in Status)
_CHECK_WIDTH = len("overlaptop")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.usage = "overlaptop doctor [HOST ...] [--python PATH] [--json]"
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("--json", action="store_true", help="print a record for each finding")
    add_hosts(parser, as_words=True)


def run(options: argparse.Namespace) -> int:
    """Look at this machine, then at the hosts; give 0 where monitoring will work on all of them, else 1."""
    if options.rate:
        raise CommandError("--rate is for watching a host", 2)
    python, as_json = "", options.json
    if not (options.host or options.hosts or options.via):
        python, options.python = options.python, ""
    hosts = hosts_of(options)
    if hosts is not None:
        try:
            remote_command(hosts.python, hosts.remote_dir, doctor=True)
        except ValueError as reason:
            raise CommandError(str(reason), 2) from reason
    whole = check_installation()
    if not works([whole]):
        _tell("", [whole], as_json=as_json)
        return 1
    # These need what may have been missing.
    from overlaptop.doctor import here
    from overlaptop.doctor.facts import Facts

    facts = Facts(python=python or sys.executable, named=bool(python))
    good = _tell("", here.examine(facts), as_json=as_json)
    if hosts is not None:
        from overlaptop.doctor import hosts as others

        for target, findings in others.examine(hosts.targets, facts, hosts.python, hosts.remote_dir):
            good &= _tell(target.name, findings, as_json=as_json)
    return 0 if good else 1


def _tell(host: str, findings: Iterable[Finding], *, as_json: bool) -> bool:
    """Print what was found of a host (empty: here) as it comes; whether monitoring will work there."""
    if not as_json:
        print_data(printable(host) if host else f"here ({os.uname().nodename})")
    seen = []
    for finding in findings:
        seen.append(finding)
        check, status = printable(finding.check), finding.status.value
        line = f"  {status:{_STATUS_WIDTH}}  {check:{_CHECK_WIDTH}}  {printable(finding.line)}"
        print_data(finding.record(host) if as_json else line)
    good, where = works(seen), f"on {printable(host)}" if host else "here"
    verdict = f"monitoring will {'work' if good else 'not work'} {where}"
    print_data({"type": "doctor", "host": host, "works": good} if as_json else verdict)
    return good

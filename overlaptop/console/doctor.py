"""The work of ``overlaptop doctor``: what will work here and on other hosts, and what to do if not."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from overlaptop.console import CommandError, print_data
from overlaptop.doctor.findings import Finding, Status, works
from overlaptop.doctor.installed import check_installation
from overlaptop.remote.bootstrap import remote_command
from overlaptop.text import printable

if TYPE_CHECKING:
    from overlaptop.console.hosts import Hosts

_STATUS_WIDTH = max(len(status.value) for status in Status)
_CHECK_WIDTH = len("overlaptop")


def run(python: str, hosts: Hosts | None, *, as_json: bool) -> int:
    """Look at this machine, then at the hosts; give 0 where monitoring will work on all of them, else 1.

    ``python``: the interpreter here that jobs train with; empty: this one.
    """
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

"""``overlaptop doctor``: check this machine or other hosts, and say how to fix problems."""

import argparse
import os
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from overlaptop.commands.arguments import add_flag, add_hosts, hosts_of
from overlaptop.commands.output import CommandError, print_data, refusing
from overlaptop.doctor import Machine, examine
from overlaptop.records import CheckRecord, DoctorRecord
from overlaptop.remote import failures
from overlaptop.remote.bootstrap import FAIL, WAIT, remote_command
from overlaptop.remote.targets import Target
from overlaptop.text import printable

DESCRIPTION = """\
Say what will work on this machine, or on each HOST: torch, NCCL, CUPTI and NVML, what this user may do, the
socket directory, the jobs that run, ssh, the terminal. One line for each finding, with what to
do. Nothing is changed, and nothing needs root.

  overlaptop doctor                                           here
  overlaptop doctor me@gpu-a gpu-b                            there, by their own overlaptop
  ~/venv/bin/python -m overlaptop doctor                      here, with the interpreter that trains
"""
EPILOG = """\
A finding is ok, a warning (monitoring works, but shows less), a fault (it does not work) or unknown (it
could not be looked at). ssh asks nothing.
exit status: 0 when monitoring will work here or on each host, 1 when not, 2 for a usage error.
"""
HOST_LIMIT_S = 100.0
AT_ONCE = 8
_NOTE = "OVERLAPTOP-NOTE "  # Prefix of a note of the start script: see remote/bootstrap.py


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "overlaptop doctor [HOST ...] [--json]"
    add_flag(parser, "--json", "print a record for each finding")
    add_hosts(parser, as_words=True)


def run(options: argparse.Namespace) -> int:
    if options.rate:
        raise CommandError("--rate is for watching a host", 2)
    hosts = hosts_of(options)
    if hosts is None:
        return 0 if _print("", examine(Machine()), as_json=options.json) else 1
    with refusing(ValueError):
        words = remote_command(hosts.python, hosts.remote_dir, doctor=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda target: _examine_there(target, words), hosts.targets)
        good = [
            _print(target.name, checks, as_json=options.json)
            for target, checks in zip(hosts.targets, found, strict=True)
        ]
    return 0 if all(good) else 1


def _examine_there(target: Target, words: tuple[str, ...]) -> list[CheckRecord]:
    argv, found = target.argv(words), []
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=HOST_LIMIT_S,
            start_new_session=True,  # no terminal for questions
        )
    except subprocess.TimeoutExpired:
        why = f"it had not answered after {HOST_LIMIT_S:.0f} s"
    except OSError as error:
        why = failures.of_start(argv[0], error).reason
    else:
        notes = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith(_NOTE)]
        kind, _, note = notes[-1].partition(" ") if notes else ("", "", "")
        for line in done.stdout.splitlines():
            with suppress(msgspec.DecodeError):  # the host's banners and the start script's notes
                found.append(replace(msgspec.json.decode(line, type=CheckRecord), host=target.name))
        if found and done.returncode in (0, 1):
            return found
        if kind in (FAIL, WAIT):
            why = note
        elif done.returncode == 0:
            why = "it ran something else, such as the command= of its key"
        else:
            ended = target.kind, target.place, done.returncode
            why = failures.of_ending(*ended, done.stderr, done.stdout).reason
    return [*found, CheckRecord(host=target.name, check="host", status="fault", finding=why, remedy="")]


def _print(host: str, checks: Iterable[CheckRecord], *, as_json: bool) -> bool:
    """Print the checks of a host, empty: of this machine. Return whether monitoring will work."""
    if not as_json:
        print_data(printable(host) if host else f"here ({os.uname().nodename})")
    works = True
    for each in checks:
        works &= each.status != "fault"
        said = f"{each.finding}: {each.remedy}" if each.remedy else each.finding
        print_data(each if as_json else printable(f"  {each.status:7}  {each.check:10}  {said}"))
    where = f"on {printable(host)}" if host else "here"
    verdict = f"monitoring will {'work' if works else 'not work'} {where}"
    print_data(DoctorRecord(host=host, works=works) if as_json else verdict)
    return works

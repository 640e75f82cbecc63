"""Other hosts: how each is reached, whether a relay answers there, and what it finds out about itself.

A host's own findings come from `overlaptop doctor --json` there, which the same start script runs by the
same interpreter as the relay. Nothing is asked on the terminal: a lost connection cannot ask either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from overlaptop.doctor.children import Child, Completed
from overlaptop.doctor.facts import Facts
from overlaptop.doctor.findings import Finding, Status, fault, ok, unknown, warning
from overlaptop.doctor.terminal import LOCAL_ONLY
from overlaptop.remote import failures
from overlaptop.remote.bootstrap import remote_command
from overlaptop.remote.connection import Connection, ConnectionState
from overlaptop.remote.pool import AT_ONCE, ConnectionPool
from overlaptop.remote.targets import LOCAL, SSH, VIA, Target, ssh_program
from overlaptop.text import duration
from overlaptop.wire.relaying import MAGIC

CONNECT_S = 35.0
"""For the hosts that are tried at the same time."""
CHECKS_S = 100.0
"""A host's own checks end within some 60 s by themselves."""
CONFIG_S = 10.0
"""ssh -G runs what the user's config has it run to find out which of its parts hold."""
DISTANT_CLOCK_NS = 1_000_000_000
"""A clock that is further from ours deserves a word, though overlaptop reckons with it."""
SLOW_CONNECTION_NS = 20_000_000
"""Hosts whose clocks are known no better are not lined up well enough to compare steps of that length."""
MAX_FINDINGS = 128
"""Taken from another host."""
_MAX_TEXT_CHARS = 600
_MAX_NAME_CHARS = 20
_OLDER = "unrecognized arguments: doctor"


def examine(
    targets: Sequence[Target], facts: Facts, python: str = "", remote_dir: str = ""
) -> Iterator[tuple[Target, list[Finding]]]:
    """Look at these hosts, four at a time. Gives each once all is known of it; in bounded time.

    ``python``, ``remote_dir``: as in bootstrap.remote_command, ValueError as from there.
    """
    for at in range(0, len(targets), AT_ONCE):
        yield from _examine_at_once(targets[at : at + AT_ONCE], facts, python, remote_dir)


def _examine_at_once(
    targets: Sequence[Target], facts: Facts, python: str, remote_dir: str
) -> Iterator[tuple[Target, list[Finding]]]:
    words = remote_command(python, remote_dir, doctor=True)
    pool = ConnectionPool(
        targets, python=python, remote_dir=remote_dir, readonly=True, report=lambda _progress: None
    )
    try:
        pool.connect(interactive=False, patience_s=CONNECT_S)
        found = {each.target: [*_route(each.target, facts), *_relay(each)] for each in pool.connections}
        ready = [
            each.target
            for each in pool.connections
            if each.hello is not None and each.state is ConnectionState.UP
        ]
    finally:
        pool.close()
    children: dict[Target, Child] = {}
    try:
        for target in ready:
            argv = target.argv(words)
            try:
                children[target] = facts.start(argv, None)
            except OSError as error:
                found[target].append(warning("checks", failures.of_start(argv[0], error).reason))
        for target, findings in found.items():
            if target in children:
                findings += _checks(target, children[target].wait(CHECKS_S))
            yield target, findings
    finally:
        for child in children.values():
            child.close()


def _checks(target: Target, ran: Completed) -> list[Finding]:
    """What a host finds out about itself, or why it does not. Monitoring may well work without."""
    findings = [each for each in read_records(ran.output) if each.check not in LOCAL_ONLY]
    if MAGIC.decode() in ran.output:  # sshd's ForceCommand, or a key's command=
        text = "the key that lets us in there may only start the relay"
        return [warning("checks", text, "run overlaptop doctor on the host itself")]
    if ran.status is None:
        findings.append(unknown("checks", f"the host's checks had not ended after {CHECKS_S:.0f} s"))
    if findings:
        return findings
    if _OLDER in ran.errors:
        return [warning("checks", "the overlaptop there is older and has no doctor", "update it")]
    failure = failures.of_ending(target.kind, target.place, ran.status or 0, ran.errors, ran.output)
    return [warning("checks", f"they could not be run there: {failure.reason}")]


class _Record(msgspec.Struct, tag_field="type", tag="check"):
    """A line of another host's, as Finding.record writes it."""

    check: Annotated[str, msgspec.Meta(min_length=1)]
    status: Status
    finding: Annotated[str, msgspec.Meta(min_length=1)]
    remedy: str


def read_records(text: str) -> list[Finding]:
    """The findings among the lines that another host has printed; what is no finding is passed over."""
    found: list[Finding] = []
    for line in text.splitlines():
        if len(found) == MAX_FINDINGS:
            break
        try:
            read = msgspec.json.decode(line, type=_Record)
        except (msgspec.DecodeError, ValueError, RecursionError):
            continue
        name, finding, remedy = read.check[:_MAX_NAME_CHARS], read.finding, read.remedy
        found.append(Finding(name, read.status, finding[:_MAX_TEXT_CHARS], remedy[:_MAX_TEXT_CHARS]))
    return found


def _relay(connection: Connection) -> Iterator[Finding]:
    """Whether a relay answers, and how well its clock is known."""
    hello = connection.hello
    if connection.state is ConnectionState.CONNECTING:
        yield fault("relay", "the host had not answered in time", "is it on, and is the network or VPN up?")
    elif connection.state is not ConnectionState.UP:
        yield fault("relay", failures.one_line(connection.reason))
    elif hello is None:
        yield fault(
            "relay",
            f"reached, but there is {connection.reason}",
            "pip install overlaptop there, name its interpreter with --python, or start the job first",
        )
    else:
        yield ok(
            "relay",
            failures.one_line(f"overlaptop {hello.version}, protocol {hello.protocol}, on {hello.host}"),
        )
        yield _clock(connection)


def _clock(connection: Connection) -> Finding:
    offset_ns, residual_ns = connection.clock.offset_ns, connection.clock.residual_ns
    if offset_ns is None or residual_ns is None:
        return unknown("offset", "no round trip has shown how far its clock is from ours")
    way = "ahead of" if offset_ns > 0 else "behind"
    text = f"its clock is {duration(abs(offset_ns))} {way} ours, known to {duration(residual_ns)}"
    if abs(offset_ns) <= residual_ns:
        text = f"its clock agrees with ours, as far as {duration(residual_ns)} can tell"
    if residual_ns > SLOW_CONNECTION_NS:
        remedy = "steps of different hosts line up no better than that on this connection"
        return warning("offset", text, remedy)
    if abs(offset_ns) > DISTANT_CLOCK_NS:
        return warning("offset", text, "overlaptop reckons with it; have NTP keep both clocks")
    return ok("offset", text)


def _route(target: Target, facts: Facts) -> list[Finding]:
    """The program that reaches the host, and what ssh makes of its name."""
    if target.kind in (VIA, LOCAL):  # the user's own command, and none at all
        return []
    program = ssh_program() if target.kind == SSH else target.argv(())[0]
    path = facts.which(program)
    if target.kind == SSH:
        # Where there is no ssh, the connection's failure reports it.
        return [] if path is None else _ssh_route(program, target, facts)
    if path is None:
        return [warning("way", f"there is no {program} here", "run this on a machine that has it")]
    return [ok("way", path)]


def _ssh_route(program: str, target: Target, facts: Facts) -> list[Finding]:
    """What ``ssh -G`` prints: the user's config as it holds for this host."""
    port = ["-p", target.port] if target.port else []
    try:
        ran = facts.start([program, "-G", *port, "--", target.place], None).wait(CONFIG_S)
    except OSError:
        return []
    if ran.status != 0:
        why = failures.one_line(ran.errors) or "it does not say why"
        how = f"had not ended after {CONFIG_S:.0f} s" if ran.status is None else f"fails: {why}"
        return [unknown("way", f"{program} -G {target.place} {how}")]
    config: dict[str, str] = {}
    for line in ran.output.splitlines():
        name, _, value = line.partition(" ")
        config.setdefault(name.lower(), "" if value == "none" else value.strip())
    way = f"{config.get('user', '')}@{config.get('hostname', '')} port {config.get('port', '')}"
    if jump := config.get("proxyjump"):
        way += f", by {jump}"
    elif config.get("proxycommand"):
        way += ", by a ProxyCommand"
    if config.get("controlmaster", "no") in ("", "no", "false") or not config.get("controlpath"):
        return [ok("way", failures.one_line(way))]
    way = failures.one_line(f"{way}, shared by all connections (ControlMaster)")
    folder = Path(config["controlpath"]).parent
    # ssh -G has filled in the home directory, but not what is different for each connection.
    if "%" in str(folder) or folder.is_dir():
        return [ok("way", way)]
    return [warning("way", f"{way}; ControlPath is in {folder}, which is not there", f"mkdir -p {folder}")]

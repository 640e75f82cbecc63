"""Other hosts: how each is reached, whether a relay answers there, and what it finds out about itself.

A host's own findings come from `overlaptop doctor --json` there, which the same start script runs by the
same interpreter as the relay. Nothing is asked on the terminal: a lost connection cannot ask either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from overlaptop.doctor.facts import Facts, Running
from overlaptop.doctor.findings import Finding, fault, ok, read_records, unknown, warning
from overlaptop.doctor.ssh_config import SshConfig
from overlaptop.doctor.terminal import LOCAL_ONLY
from overlaptop.remote import failures
from overlaptop.remote.bootstrap import remote_command
from overlaptop.remote.connection import Connection, ConnectionState
from overlaptop.remote.frames import RelayStream
from overlaptop.remote.pool import AT_ONCE, ConnectionPool
from overlaptop.remote.targets import LOCAL, SSH, VIA, Target, ssh_program
from overlaptop.wire.codec import WireError

CONNECT_S = 35.0
"""For each four hosts that are tried at the same time."""
CHECKS_S = 100.0
"""A host's own checks end within some 60 s by themselves."""
CONFIG_S = 10.0
"""ssh -G runs what the user's config has it run to find out which of its parts hold."""
DISTANT_CLOCK_NS = 1_000_000_000
"""A clock that is further from ours deserves a word, though overlaptop reckons with it."""
SLOW_CONNECTION_NS = 20_000_000
"""Hosts whose clocks are known no better are not lined up well enough to compare steps of that length."""
_OLDER = "unrecognized arguments: doctor"


def examine(
    targets: Sequence[Target], facts: Facts, python: str = "", remote_dir: str = ""
) -> Iterator[tuple[Target, list[Finding]]]:
    """Look at these hosts, four at a time. Gives each once all is known of it; in bounded time.

    ``python``, ``remote_dir``: as in bootstrap.remote_command, ValueError as from there.
    """
    words = remote_command(python, remote_dir, doctor=True)
    pool = ConnectionPool(targets, python=python, remote_dir=remote_dir, readonly=True, report=_silent)
    try:
        rounds = -(-len(targets) // AT_ONCE)
        pool.connect(interactive=False, patience_s=CONNECT_S * rounds)
        connections = pool.connections
        found = [[*_route(connection.target, facts), *_relay(connection)] for connection in connections]
        ready = [
            connection.hello is not None and connection.state is ConnectionState.UP
            for connection in connections
        ]
    finally:
        pool.close()
    yield from _with_checks(targets, found, ready, words, facts)


def _with_checks(
    targets: Sequence[Target],
    found: list[list[Finding]],
    ready: list[bool],
    words: tuple[str, ...],
    facts: Facts,
) -> Iterator[tuple[Target, list[Finding]]]:
    """Each host, with what it finds out about itself where a relay has answered."""
    waiting = iter([target for target, answers in zip(targets, ready, strict=True) if answers])
    running: dict[Target, Running | str] = {}
    try:
        for target, findings, answers in zip(targets, found, ready, strict=True):
            for each in islice(waiting, AT_ONCE - len(running)):
                running[each] = _start(each, words, facts)
            if answers:
                child = running.pop(target)
                findings += _checks(target, child)
            yield target, findings
    finally:
        for child in running.values():
            if not isinstance(child, str):
                child.close()


def _start(target: Target, words: tuple[str, ...], facts: Facts) -> Running | str:
    argv = target.argv(words)
    try:
        return facts.start(argv)
    except OSError as error:
        return failures.of_start(argv[0], error).reason


def _checks(target: Target, child: Running | str) -> Iterable[Finding]:
    """What a host finds out about itself, or why it does not. Monitoring may well work without."""
    if isinstance(child, str):
        return [warning("checks", child)]
    ran = child.wait(CHECKS_S)
    findings = [each for each in read_records(ran.output) if each.check not in LOCAL_ONLY]
    if findings:
        if ran.status is None:
            findings.append(unknown("checks", f"the host's checks had not ended after {CHECKS_S:.0f} s"))
        return findings
    if _is_relay(ran.output):
        return [
            warning(
                "checks",
                "the key that lets us in there may only start the relay",
                "run overlaptop doctor on the host itself",
            )
        ]
    if ran.status is None:
        return [unknown("checks", f"the host's checks reported nothing within {CHECKS_S:.0f} s")]
    if _OLDER in ran.errors:
        return [warning("checks", "the overlaptop there is older and has no doctor", "update it")]
    failure = failures.of_ending(target.kind, target.place, ran.status, ran.errors, ran.output)
    return [warning("checks", f"they could not be run there: {failure.reason}")]


def _is_relay(output: str) -> bool:
    """Whether a relay has answered, whatever was asked for: sshd's ForceCommand, or a key's command=."""
    stream = RelayStream()
    try:
        stream.feed(output.encode(errors="replace"))
    except WireError:
        return stream.begun
    return stream.begun


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
        yield from _clock(connection)


def _clock(connection: Connection) -> Iterator[Finding]:
    offset_ns, residual_ns = connection.clock.offset_ns, connection.clock.residual_ns
    if offset_ns is None or residual_ns is None:
        yield unknown("offset", "no round trip has shown how far its clock is from ours")
        return
    way = "ahead of" if offset_ns > 0 else "behind"
    text = f"its clock is {_ms(abs(offset_ns))} {way} ours, known to {_ms(residual_ns)}"
    if abs(offset_ns) <= residual_ns:
        text = f"its clock agrees with ours, as far as {_ms(residual_ns)} can tell"
    if residual_ns > SLOW_CONNECTION_NS:
        yield warning(
            "offset", text, "steps of different hosts line up no better than that on this connection"
        )
    elif abs(offset_ns) > DISTANT_CLOCK_NS:
        yield warning("offset", text, "overlaptop reckons with it; have NTP keep both clocks")
    else:
        yield ok("offset", text)


def _route(target: Target, facts: Facts) -> Iterator[Finding]:
    """The program that reaches the host, and what ssh makes of its name."""
    if target.kind == SSH:
        yield from _ssh(target, facts)
    elif target.kind not in (VIA, LOCAL):  # the user's own command, and none at all
        program = target.argv(())[0]
        path = facts.which(program)
        if path is None:
            yield warning("way", f"there is no {program} here", "run this on a machine that has it")
        else:
            yield ok("way", path)


def _ssh(target: Target, facts: Facts) -> Iterator[Finding]:
    program = ssh_program()
    if facts.which(program) is None:
        return  # the connection's failure reports it
    port = [] if target.port is None else ["-p", str(target.port)]
    try:
        ran = facts.start([program, "-G", *port, "--", target.place]).wait(CONFIG_S)
    except OSError:
        return
    if ran.status != 0:
        why = failures.one_line(ran.errors) or "it does not say why"
        how = f"had not ended after {CONFIG_S:.0f} s" if ran.status is None else f"fails: {why}"
        yield unknown("way", f"{program} -G {target.place} {how}")
        return
    config = SshConfig.parse(ran.output)
    folder = config.missing_control_folder
    if folder is not None:
        yield warning(
            "way", f"{config}; ControlPath is in {folder}, which is not there", f"mkdir -p {folder}"
        )
    else:
        yield ok("way", str(config))


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms" if ns < 1_000_000_000 else f"{ns / 1e9:.1f} s"


def _silent(_text: str) -> None:
    """What the connections report while they connect is in the findings."""

"""Why a connection failed or was lost: one line for a person, with what to do where that is known."""

from __future__ import annotations

import re
from dataclasses import dataclass

from overlaptop.remote.targets import KINDS

_MOST_CHARS = 240


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed."""

    reason: str
    lasting: bool = False
    """Trying again changes nothing, or does harm (a ban): a person has to do something first."""
    needs_terminal: bool = False
    """ssh would ask: it may be tried with the terminal."""


RETRY, PERSON, TERMINAL = "", "lasting", "lasting, needs a terminal"
"""What may help: another attempt; a person; ssh asking a person."""

# The first that fits is taken: what causes another's text stands before it.
# What begins with any text is bound to the beginning of a line or a word: else one long line of a host's
# would be searched from each of its characters, for seconds.
_RULES: dict[tuple[str, ...], tuple[tuple[str, str, str], ...]] = {
    ("ssh", "via"): (
        (
            # Debian's ssh says how; the name in known_hosts may be another than the one that was typed.
            r"REMOTE HOST IDENTIFICATION HAS CHANGED(?s:.*?)(?P<command>ssh-keygen -f [^\r\n]+)",
            "its host key is another than before: if that is as it should be, {command}",
            PERSON,
        ),
        (
            r"REMOTE HOST IDENTIFICATION HAS CHANGED",
            "its host key is another than before: if that is as it should be, ssh-keygen -R {place}",
            PERSON,
        ),
        (
            r"Host key verification failed|No \S+ host key is known for",
            "its host key is not known here: connect once with ssh {place} and confirm it",
            TERMINAL,
        ),
        (
            r"UNPROTECTED PRIVATE KEY FILE",
            "others can read the private key, so ssh does not use it: chmod 600 the key",
            TERMINAL,
        ),
        (
            r"Too many authentication failures",
            "ssh offered too many keys: name one with IdentityFile and IdentitiesOnly in ~/.ssh/config",
            TERMINAL,
        ),
        (
            r"Permission denied \((?P<methods>[\w,.@ -]+)\)",
            "permission denied ({methods}): ssh-add the key, or put it there with ssh-copy-id {place}",
            TERMINAL,
        ),
        (
            r"Could not resolve hostname (?P<host>\S+?):",
            "no address is known for {host}: look at its spelling, the VPN, or ~/.ssh/config",
            RETRY,
        ),
        (
            r"port (?P<port>\d+): Connection refused",
            "the host refuses port {port}: no sshd runs there, or it listens on another port",
            RETRY,
        ),
        (
            r"port \d+: (?P<what>Connection timed out|Operation timed out|No route to host"
            r"|Network is unreachable|Host is down)",
            "the host does not answer ({what}): is it on, and is the network or the VPN up?",
            RETRY,
        ),
        (
            r"banner exchange|kex_exchange_identification|ssh_exchange_identification"
            r"|Connection (?:closed|reset) by \S+ port",
            "its sshd closed the connection before a login: too many are under way, "
            "or it does not let this machine in",
            RETRY,
        ),
        (r"Timeout, server \S+ not responding", "the connection was silent for too long", RETRY),
        (
            r"client_loop: send disconnect|Connection to \S+ closed|Broken pipe",
            "the connection broke",
            RETRY,
        ),
        (
            r"(?m:^)(?P<line>.*(?:Bad owner or permissions on|Bad configuration option"
            r"|terminating, \d+ bad config).*)",
            "ssh does not start: {line}",
            PERSON,
        ),
        (
            r"This service allows sftp connections only|administratively prohibited|no shell|nologin|"
            r"account is currently not available",
            "the host lets this user run no commands",
            PERSON,
        ),
    ),
    ("via",): (
        (
            r"(?m:^)sudo: .*(?:password is required|terminal is required|no tty present)",
            "sudo asks for a password: allow the command without one (NOPASSWD)",
            TERMINAL,
        ),
    ),
    ("docker",): (
        (r"No such container: (?P<name>\S+)", "there is no container {name}: look at docker ps", RETRY),
        (r"container \S+ is (?:not running|paused)", "the container does not run", RETRY),
        (
            r"permission denied while trying to connect",
            "this user may not use docker: add them to its group, or use --via 'sudo docker exec -i NAME'",
            PERSON,
        ),
        (r"Cannot connect to the Docker daemon", "the docker daemon does not run here", RETRY),
    ),
    ("kubectl",): (
        (
            r"pods? \"(?P<name>[^\"]+)\" not found",
            "there is no pod {name} in that namespace: look at kubectl get pods -A",
            RETRY,
        ),
        (r"namespaces? \"(?P<name>[^\"]+)\" not found", "there is no namespace {name}", RETRY),
        (
            r"\(?(?P<what>Forbidden|Unauthorized)\)?",
            "kubectl may not do that ({what}): exec into the pod has to be allowed",
            PERSON,
        ),
        (
            r"connection to the server (?P<host>\S+) was refused",
            "the cluster does not answer at {host}",
            RETRY,
        ),
    ),
    ("srun",): (
        (
            r"Invalid job id|Job/step already completing or completed|Unable to confirm allocation",
            "Slurm has no such job of yours running",
            RETRY,
        ),
    ),
    KINDS: (
        (
            r"(?<!\S)(?P<python>\S+): No module named overlaptop(?:\.__main__)?\b",
            "{python} there has no overlaptop: pip install it there, or name another one with --python",
            RETRY,
        ),
        (
            r"invalid choice: '?relay|unrecognized arguments:.*--stdio|No module named overlaptop\.\S+",
            "the overlaptop there is older and has no relay: update it",
            RETRY,
        ),
        (
            r"[Uu]nknown option:? -P|no such option: -P",
            "the Python there is older than 3.11: name another one with --python",
            RETRY,
        ),
        (
            r"exec: \"sh\"|\bsh: (?:command )?not found|executable file not found",
            "there is no sh in it, and nothing can be run without",
            PERSON,
        ),
    ),
}
"""Kinds of targets -> patterns, each with its reason and what may help.

``{...}`` in a reason: the pattern's groups, and ``place``, the host as the user named it."""


def one_line(text: str) -> str:
    """Foreign text as one line that a terminal can show, cut where it is too long."""
    flat = " ".join(text.split())
    shown = flat if flat.isprintable() else "".join(c if c.isprintable() else "?" for c in flat)
    return shown if len(shown) <= _MOST_CHARS else shown[: _MOST_CHARS - 1] + "…"


def of_ending(kind: str, place: str, status: int, errors: str, preamble: str) -> Failure:
    """Why a connection's process ended.

    ``status``: as subprocess has it, negative: a signal's number. ``errors``, ``preamble``: the last of
    what it wrote to its standard error, and to its standard output before there was a relay.
    """
    rules = (rule for kinds, rules in _RULES.items() if kind in kinds for rule in rules)
    for pattern, reason, remedy in rules:
        search = re.compile(pattern, re.IGNORECASE).search
        if match := search(errors) or search(preamble):
            found = {name: value or "" for name, value in match.groupdict().items()}
            return Failure(one_line(reason.format(place=place, **found)), bool(remedy), remedy == TERMINAL)
    how = f"a signal ({-status}) ended it" if status < 0 else f"it ended with status {status}"
    written = [line for line in (errors if errors.strip() else preamble).splitlines() if line.strip()]
    return Failure(one_line(f"{how}: {written[-1]}" if written else how))


def of_start(program: str, error: OSError) -> Failure:
    """Why a connection's process could not even be started."""
    if isinstance(error, FileNotFoundError):
        return Failure(one_line(f"there is no {program} on this machine"), lasting=True)
    if isinstance(error, PermissionError):
        return Failure(one_line(f"{program} may not be run on this machine"), lasting=True)
    return Failure(one_line(f"{program} does not start: {error.strerror or error}"))


def of_protocol(theirs: int, ours: int, version: str) -> Failure:
    """The relay there cannot be understood."""
    older = "this one" if theirs > ours else "that one"
    return Failure(
        one_line(
            f"overlaptop {version} there speaks protocol {theirs}, this one {ours}: "
            f"{older} is older, update it"
        )
    )

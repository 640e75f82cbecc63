"""Why a connection failed or was lost: one line for a person, with a remedy if one is known."""

import re
from dataclasses import dataclass

from overlaptop.remote.targets import KINDS
from overlaptop.text import printable, shortened

_MOST_CHARS = 240


def one_line(text: str) -> str:
    """Return foreign text as one line that is safe for a terminal, cut if it is too long."""
    return shortened(printable(" ".join(text.split())), _MOST_CHARS)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed."""

    reason: str  # One line, from any text
    lasting: bool = False  # A retry is useless, or does harm (a ban). A person has to act first.
    needs_terminal: bool = False  # ssh has a question, so a retry needs the terminal

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", one_line(self.reason))


RETRY, PERSON, TERMINAL = "", "lasting", "lasting, needs a terminal"
"""The remedy: another attempt; a person; ssh asking a person."""

# The first match counts, so the pattern of a cause precedes those of its effects. Patterns that begin with
# any text are anchored: one long line of a host would be searched from each of its characters, for seconds.
# fmt: off
_RULES: tuple[tuple[tuple[str, ...], str, dict[str, str]], ...] = (
    (("ssh", "via"), PERSON, {
        r"REMOTE HOST IDENTIFICATION HAS CHANGED":
            "its host key is another than before: if that is as it should be, ssh-keygen -R {place}",
    }),
    (("ssh", "via"), TERMINAL, {
        r"Host key verification failed|No \S+ host key is known for":
            "its host key is not known here: connect once with ssh {place} and confirm it",
        r"UNPROTECTED PRIVATE KEY FILE":
            "others can read the private key, so ssh does not use it: chmod 600 the key",
        r"Too many authentication failures":
            "ssh offered too many keys: name one with IdentityFile and IdentitiesOnly in ~/.ssh/config",
        r"Permission denied \((?P<methods>[\w,.@ -]+)\)":
            "permission denied ({methods}): ssh-add the key, or put it there with ssh-copy-id {place}",
    }),
    (("ssh", "via"), RETRY, {
        r"Could not resolve hostname (?P<host>\S+?):":
            "no address is known for {host}: look at its spelling, the VPN, or ~/.ssh/config",
        r"port (?P<port>\d+): Connection refused":
            "the host refuses port {port}: no sshd runs there, or it listens on another port",
        r"port \d+: (?P<what>Connection timed out|Operation timed out|No route to host"
        r"|Network is unreachable|Host is down)":
            "the host does not answer ({what}): is it on, and is the network or the VPN up?",
        r"banner exchange|kex_exchange_identification|ssh_exchange_identification"
        r"|Connection (?:closed|reset) by \S+ port":
            "its sshd closed the connection before a login: too many are under way, "
            "or it does not let this machine in",
        r"Timeout, server \S+ not responding":
            "the connection was silent for too long",
    }),
    (("ssh", "via"), PERSON, {
        r"(?m:^)(?P<line>.*(?:Bad owner or permissions on|Bad configuration option"
        r"|terminating, \d+ bad config).*)":
            "ssh does not start: {line}",
    }),
    (("via",), TERMINAL, {
        r"(?m:^)sudo: .*(?:password is required|terminal is required|no tty present)":
            "sudo asks for a password: allow the command without one (NOPASSWD)",
    }),
    (KINDS, RETRY, {
        r"(?<!\S)(?P<python>\S+): No module named overlaptop(?:\.__main__)?\b":
            "{python} there has no overlaptop: pip install it there, or name another one with --python",
        r"[Uu]nknown option:? -P|no such option: -P":
            "the Python there is older than 3.11: name another one with --python",
    }),
    (KINDS, PERSON, {
        r"exec: \"sh\"|\bsh: (?:command )?not found|executable file not found":
            "there is no sh in it, and nothing can be run without",
    }),
)
# fmt: on
"""Kinds of targets, remedy, and a reason for each pattern, with its groups and the host as ``{place}``."""


def of_ending(kind: str, place: str, status: int, errors: str, preamble: str) -> Failure:
    """Return why a connection's process ended.

    ``status``: as in subprocess. ``errors``, ``preamble``: ends of its standard error, and of its standard
    output before there was a relay.
    """
    for kinds, remedy, reasons in _RULES:
        for pattern, reason in reasons.items() if kind in kinds else ():
            search = re.compile(pattern, re.IGNORECASE).search
            if match := search(errors) or search(preamble):
                found = match.groupdict("")
                return Failure(reason.format(place=place, **found), bool(remedy), remedy == TERMINAL)
    how = f"a signal ({-status}) ended it" if status < 0 else f"it ended with status {status}"
    written = (errors.strip() or preamble.strip()).splitlines()
    return Failure(f"{how}: {written[-1]}" if written else how)


def of_start(program: str, error: OSError) -> Failure:
    if isinstance(error, FileNotFoundError):
        return Failure(f"there is no {program} on this machine", lasting=True)
    if isinstance(error, PermissionError):
        return Failure(f"{program} may not be run on this machine", lasting=True)
    return Failure(f"{program} does not start: {error.strerror or error}")


def of_protocol(theirs: int, ours: int, version: str) -> Failure:
    older = "this one" if theirs > ours else "that one"
    return Failure(
        f"overlaptop {version} there speaks protocol {theirs}, this one {ours}: {older} is older, update it"
    )

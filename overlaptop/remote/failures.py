"""Why a connection failed or was lost: one line for a person, with a remedy if one is known."""

import re
from dataclasses import dataclass

from overlaptop.remote.targets import KINDS, SSH, VIA
from overlaptop.text import printable, shortened

_MOST_CHARS = 240
_SSH_FAILED = 255  # Status of ssh itself, which then says why. Otherwise it has that of the command.


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
_RULES: tuple[tuple[tuple[str, ...], str, str, str], ...] = (
    ((SSH, VIA), PERSON, r"REMOTE HOST IDENTIFICATION HAS CHANGED",
     "its host key is another than before: if that is as it should be, ssh-keygen -R {place}"),
    ((SSH, VIA), TERMINAL, r"Host key verification failed|No \S+ host key is known for",
     "its host key is not known here: connect once with ssh {place} and confirm it"),
    ((SSH, VIA), TERMINAL, r"UNPROTECTED PRIVATE KEY FILE",
     "others can read the private key, so ssh does not use it: chmod 600 the key"),
    ((SSH, VIA), TERMINAL, r"Too many authentication failures|Permission denied \([\w,.@ -]+\)",
     "{match}: ssh-add the key, or put it there with ssh-copy-id {place}"),
    ((SSH, VIA), PERSON, r"(?m:^).*(?:Bad owner or permissions on|Bad configuration option).*",
     "ssh does not start: {match}"),
    ((VIA,), TERMINAL, r"(?m:^)sudo: .*(?:password is required|terminal is required|no tty present)",
     "sudo asks for a password: allow the command without one (NOPASSWD)"),
    (KINDS, RETRY, r"(?<!\S)\S+: No module named overlaptop\b",
     "{match}: pip install it there, or name another Python with --python"),
    (KINDS, RETRY, r"[Uu]nknown option:? -P|no such option: -P",
     "the Python there is older than 3.11: name another one with --python"),
)
# fmt: on
"""Kinds of targets, remedy, pattern, and the reason, with the matched text and the host."""


def of_ending(kind: str, place: str, status: int, errors: str, preamble: str) -> Failure:
    """Return why a connection's process ended.

    ``status``: as in subprocess. ``errors``, ``preamble``: ends of its standard error, and of its standard
    output before there was a relay.
    """
    for kinds, remedy, pattern, reason in _RULES:
        search = re.compile(pattern, re.IGNORECASE).search
        if kind in kinds and (match := search(errors) or search(preamble)):
            why = reason.format(place=place, match=match[0])
            return Failure(why, bool(remedy), remedy == TERMINAL)
    how = f"a signal ({-status}) ended it" if status < 0 else f"it ended with status {status}"
    written = (errors.strip() or preamble.strip()).splitlines()
    if kind == SSH and status == _SSH_FAILED and written:
        return Failure(written[-1])
    return Failure(": ".join([how, *written[-1:]]))


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

"""Why connections fail, by what their processes wrote."""

from __future__ import annotations

import time

import pytest

from overlaptop.remote import failures
from overlaptop.remote.targets import KINDS

WRITTEN_CHARS = 8192


@pytest.mark.parametrize(
    ("kind", "written", "reason"),
    [
        (
            "ssh",
            "hello\n/home/me/.ssh/config: line 3: Bad configuration option: foo\r\nmore\n",
            "ssh does not start: /home/me/.ssh/config: line 3: Bad configuration option: foo",
        ),
        (
            "via",
            "hello\nsudo: a password is required\n",
            "sudo asks for a password: allow the command without one (NOPASSWD)",
        ),
        (
            "docker",
            "hello\n/opt/venv/bin/python: No module named overlaptop.__main__; 'overlaptop' is a package\n",
            "/opt/venv/bin/python there has no overlaptop: pip install it there, or name another one with "
            "--python",
        ),
    ],
)
def test_the_line_that_says_why_is_found_among_others(kind: str, written: str, reason: str) -> None:
    assert failures.of_ending(kind, "far", 1, written, "").reason == reason


@pytest.mark.parametrize("piece", ["x", ":", "sudo: ", "Bad owner ", "Permission denied (a"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_long_line_takes_about_as_long_as_many_short_ones(kind: str, piece: str) -> None:
    long = (piece * WRITTEN_CHARS)[:WRITTEN_CHARS]
    short = "\n".join(long[at : at + 40] for at in range(0, WRITTEN_CHARS, 40))

    def took_s(written: str) -> float:
        began_s = time.thread_time()
        failures.of_ending(kind, "far", 1, written, written)
        return time.thread_time() - began_s

    # Searched from each character it was some hundred times as long.
    assert min(took_s(long) for _ in range(3)) < 30 * min(took_s(short) for _ in range(3)) + 0.01


SSH = [
    (
        "Host key verification failed.",
        True,
        True,
        "its host key is not known here: connect once with ssh gpu-a and confirm it",
    ),
    (
        "@@@@@@@@@@@@@@@@@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
        "IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\nHost key verification failed.",
        True,
        False,
        "its host key is another than before: if that is as it should be, ssh-keygen -R gpu-a",
    ),
    (
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n  remove with:\r\n"
        "  ssh-keygen -f '/home/me/.ssh/known_hosts' -R '[gpu-a]:2222'\r\nHost key verification failed.",
        True,
        False,
        "as it should be, ssh-keygen -f '/home/me/.ssh/known_hosts' -R '[gpu-a]:2222'",
    ),
    (
        "me@gpu-a: Permission denied (publickey,password).",
        True,
        True,
        "permission denied (publickey,password): ssh-add the key, or put it there with ssh-copy-id gpu-a",
    ),
    (
        "@ WARNING: UNPROTECTED PRIVATE KEY FILE! @\nLoad key: bad permissions\n"
        "me@gpu-a: Permission denied (publickey).",
        True,
        True,
        "others can read the private key, so ssh does not use it: chmod 600 the key",
    ),
    (
        "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures",
        True,
        True,
        "IdentitiesOnly",
    ),
    (
        "ssh: Could not resolve hostname gpu-a: Name or service not known",
        False,
        False,
        "no address is known for gpu-a: look at its spelling, the VPN, or ~/.ssh/config",
    ),
    (
        "ssh: connect to host gpu-a port 2222: Connection refused",
        False,
        False,
        "the host refuses port 2222: no sshd runs there, or it listens on another port",
    ),
    (
        "ssh: connect to host gpu-a port 22: No route to host",
        False,
        False,
        "the host does not answer (No route to host)",
    ),
    (
        "kex_exchange_identification: read: Connection reset by peer\nConnection reset by 10.0.0.1 port 22",
        False,
        False,
        "its sshd closed the connection before a login",
    ),
    (
        "Timeout, server gpu-a not responding.",
        False,
        False,
        "the connection was silent for too long",
    ),
    ("client_loop: send disconnect: Broken pipe", False, False, "the connection broke"),
    (
        "/home/me/.ssh/config: connection 3: Bad configuration option: prot\n"
        "/home/me/.ssh/config: terminating, 1 bad configuration options",
        True,
        False,
        "ssh does not start: /home/me/.ssh/config: connection 3: Bad configuration option: prot",
    ),
    (
        "This account is currently not available.",
        True,
        False,
        "lets this user run no commands",
    ),
    (
        "/usr/bin/python3: No module named overlaptop",
        False,
        False,
        "/usr/bin/python3 there has no overlaptop: pip install it there, or name another one with --python",
    ),
    (
        "overlaptop: error: argument command: invalid choice: 'relay' (choose from demo)",
        False,
        False,
        "the overlaptop there is older and has no relay: update it",
    ),
    ("\x1b[2Jsomething\nnew\x07", False, False, "it ended with status 255: new?"),
    ("", False, False, "it ended with status 255"),
]


@pytest.mark.parametrize(
    ("written", "lasting", "needs_terminal", "reason"), SSH, ids=lambda it: str(it)[:30]
)
def test_what_ssh_writes_becomes_one_line_with_a_remedy(
    written: str, lasting: bool, needs_terminal: bool, reason: str
) -> None:
    failure = failures.of_ending("ssh", "gpu-a", 255, written, "")
    assert reason in failure.reason
    assert (failure.lasting, failure.needs_terminal) == (lasting, needs_terminal)
    assert failure.reason.isprintable()

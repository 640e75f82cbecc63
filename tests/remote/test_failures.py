"""Why connections fail, by what their processes wrote."""

import pytest

from overlaptop.remote import failures
from overlaptop.remote.failures import PERSON, RETRY, TERMINAL

CHANGED = "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n"
UNKNOWN = "Host key verification failed."


# What was written, what may help, a part of the reason.
@pytest.mark.parametrize(("kind", "written", "remedy", "reason"), [
    ("ssh", UNKNOWN, TERMINAL, "its host key is not known here: connect once with ssh gpu-a and confirm"),
    ("ssh", CHANGED + UNKNOWN, PERSON, "if that is as it should be, ssh-keygen -R gpu-a"),
    ("ssh", f"{CHANGED}  ssh-keygen -f '/home/me/.ssh/known_hosts' -R '[gpu-a]:2222'\r\n{UNKNOWN}", PERSON,
     "as it should be, ssh-keygen -f '/home/me/.ssh/known_hosts' -R '[gpu-a]:2222'"),
    ("ssh", "me@gpu-a: Permission denied (publickey,password).", TERMINAL,
     "permission denied (publickey,password): ssh-add the key, or put it there with ssh-copy-id gpu-a"),
    ("ssh", "@ WARNING: UNPROTECTED PRIVATE KEY FILE!\nPermission denied (publickey).", TERMINAL,
     "others can read the private key, so ssh does not use it: chmod 600 the key"),
    ("ssh", "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures", TERMINAL,
     "IdentitiesOnly"),
    ("ssh", "ssh: Could not resolve hostname gpu-a: Name or service not known", RETRY,
     "no address is known for gpu-a: look at its spelling, the VPN, or ~/.ssh/config"),
    ("ssh", "ssh: connect to host gpu-a port 2222: Connection refused", RETRY, "refuses port 2222"),
    ("ssh", "ssh: connect to host gpu-a port 22: No route to host", RETRY, "not answer (No route to host)"),
    ("ssh", "kex_exchange_identification: read: Connection reset by peer", RETRY, "before a login"),
    ("ssh", "Timeout, server gpu-a not responding.", RETRY, "the connection was silent for too long"),
    ("ssh", "client_loop: send disconnect: Broken pipe", RETRY, "the connection broke"),
    ("ssh", "hello\n/home/me/.ssh/config: line 3: Bad configuration option: foo\r\n"
     "/home/me/.ssh/config: terminating, 1 bad configuration options", PERSON,
     "ssh does not start: /home/me/.ssh/config: line 3: Bad configuration option: foo"),
    ("ssh", "This account is currently not available.", PERSON, "lets this user run no commands"),
    ("via", "hello\nsudo: a password is required\n", TERMINAL, "sudo asks for a password"),
    ("docker", "hello\n/opt/venv/bin/python: No module named overlaptop.__main__\n", RETRY,
     "/opt/venv/bin/python there has no overlaptop: pip install it there, or name another one with"),
    ("ssh", "overlaptop: error: argument command: invalid choice: 'relay' (choose from demo)", RETRY,
     "the overlaptop there is older and has no relay: update it"),
    ("ssh", "\x1b[2Jsomething\nnew\x07", RETRY, "it ended with status 255: new?"),
    ("ssh", "", RETRY, "it ended with status 255"),
])  # fmt: skip
def test_what_was_written_becomes_one_line_with_a_remedy(kind, written, remedy, reason):
    failure = failures.of_ending(kind, "gpu-a", 255, written, "")
    assert reason in failure.reason
    assert (failure.lasting, failure.needs_terminal) == (remedy != RETRY, remedy == TERMINAL)
    assert failure.reason.isprintable()

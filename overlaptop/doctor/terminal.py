"""What only this machine has: the terminal that the dashboard would be drawn on, and ssh."""

from __future__ import annotations

from overlaptop.doctor.facts import Facts
from overlaptop.doctor.findings import Finding, ok, unknown, warning
from overlaptop.remote.failures import one_line
from overlaptop.remote.targets import ssh_program

TERMINAL, UNICODE, SSH = LOCAL_ONLY = ("terminal", "unicode", "ssh")
"""The names of these checks: on another host their findings mean nothing."""
FEW_COLUMNS, FEW_ROWS = 60, 15
_SSH_TIMEOUT_S = 5.0
_LOCALE = ("LC_ALL", "LC_CTYPE", "LANG")


def check_terminal(facts: Facts) -> Finding:
    """What the dashboard would have to draw on."""
    size, term = facts.terminal, facts.environ.get("TERM", "")
    if size is None:
        return unknown(TERMINAL, "there is none here: the dashboard needs one, --json and --once do not")
    if term in ("", "dumb", "unknown"):
        return warning(TERMINAL, f"TERM is {term!r}", "set it to what the terminal is, as xterm-256color")
    text = f"{term}, {size.columns}x{size.lines}, {_colours(facts, term)}"
    if size.columns < FEW_COLUMNS or size.lines < FEW_ROWS:
        return warning(TERMINAL, text, f"widen it to {FEW_COLUMNS}x{FEW_ROWS} or more to see all")
    return ok(TERMINAL, text)


def _colours(facts: Facts, term: str) -> str:
    if facts.environ.get("NO_COLOR"):
        return "no colours, since NO_COLOR is set"
    if facts.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") or "direct" in term:
        return "16 million colours"
    return "256 colours" if "256color" in term else "16 colours (COLORTERM=truecolor, if it has more)"


def check_unicode(facts: Facts) -> Finding:
    """Whether bars can be drawn with Unicode's blocks."""
    if facts.environ.get("TERM") == "linux":
        return warning(UNICODE, "the kernel's console has few of the characters", "use --ascii")
    name = next((name for name in _LOCALE if facts.environ.get(name)), None)
    if name is None:
        return warning(
            UNICODE, "no locale is set", "set LANG=C.UTF-8 if the terminal has UTF-8, or use --ascii"
        )
    locale = facts.environ[name]
    if "utf8" in locale.lower().replace("-", ""):
        return ok(UNICODE, f"{name} is {locale}")
    return warning(UNICODE, f"{name} is {locale}, which is not UTF-8", "set LANG=C.UTF-8, or use --ascii")


def check_ssh(facts: Facts) -> Finding:
    """Whether other hosts could be reached by ssh."""
    program = ssh_program()
    if facts.which(program) is None:
        text = f"there is no {program} here, so no host is reached by its name"
        return warning(SSH, text, "install OpenSSH's client")
    try:
        ran = facts.start([program, "-V"], None).wait(_SSH_TIMEOUT_S)
    except OSError as error:
        text = f"{program} does not start ({error.strerror})"
        return warning(SSH, text, "look at $OVERLAPTOP_SSH and PATH")
    version = one_line(ran.errors or ran.output)
    if ran.status == 0:
        return ok(SSH, version or program)
    return unknown(SSH, f"{program} -V does not say what it is ({version or 'no output'})")

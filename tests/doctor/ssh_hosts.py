"""An ssh whose hosts are this machine, reached or not by their names, and interpreters there."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from overlaptop.doctor.findings import Finding

_SSH = """#!/bin/sh
case " $* " in
*" -V "*) echo Ssh_1.0 >&2; exit 0 ;;
*" -G "*) printf 'user me\\nhostname 10.0.0.5\\nport 22\\n%s' "$CONFIG"; exit 0 ;;
esac
while [ $# -gt 2 ]; do shift; done
case $1 in
good*) exec sh -c "$2" ;;
banner) echo '{"a banner'; echo Welcome >&2; exec sh -c "$2" ;;
wrong) echo "me@wrong: Permission denied (publickey)." >&2; exit 255 ;;
strange) echo "Host key verification failed." >&2; exit 255 ;;
refused) echo "ssh: connect to host refused port 22: Connection refused" >&2; exit 255 ;;
nobody) echo "ssh: Could not resolve hostname nobody: Name or service not known" >&2; exit 255 ;;
restricted) exec PYTHON -m overlaptop relay --stdio --readonly ;;
silent) exec sleep 1000 ;;
esac
"""


def make_ssh(folder: Path) -> Path:
    """Its hosts behave as they are called."""
    return _program(folder / "ssh", _SSH.replace("PYTHON", shlex.quote(sys.executable)))


def make_python(folder: Path, findings: Iterable[Finding]) -> Path:
    """An interpreter that relays as it should, and prints these as records where it is the doctor."""
    records = folder / "records"
    records.write_text("".join(json.dumps(finding.record("")) + "\n" for finding in findings))
    real, printed = shlex.quote(sys.executable), shlex.quote(str(records))
    text = f'#!/bin/sh\ncase "$*" in\n*doctor*) cat {printed} ;;\n*) exec {real} "$@" ;;\nesac\n'
    return _program(folder / "python", text)


def _program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path

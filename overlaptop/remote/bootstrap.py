"""The script that finds a relay on another host and becomes it. It works in any POSIX shell.

It takes the interpreter from a job's record only if nobody but this user can have written that. Before the
relay runs, the script prints notes (attempt.StartNote) of these kinds:

    here           the host was reached
    wait TEXT      nothing to run was found; the script looks again for each line it reads, until EOF
    fail TEXT      it cannot go on, and has ended
    start PYTHON   the relay begins with this interpreter
"""

import re

WAIT, FAIL = "wait", "fail"

_UNQUOTABLE = re.compile(r"['\\!\x00-\x1f\x7f]")

# $1: the socket directory, $2: the interpreter, both empty if none was named. $3: overlaptop's task there,
# in plain words; empty: to relay.
#
# The script travels as one word in single quotes through the login shell of the host, which may be a csh or
# fish. So its lines contain no single quote, no exclamation mark and no two consecutive backslashes, and it
# is sent as one line. Without -r, read undoes the escapes of a quote and a backslash in a record.
_SOURCE = r"""
say() { printf "\nOVERLAPTOP-NOTE %s\n" "$*"; }
fail() { say fail "$*"; exit 1; }
start() { say start "$1"; exec "$1" -P -m overlaptop $command; }
command=${3:-relay --stdio}
say here
dir=${1:-${OVERLAPTOP_DIR:-${TMPDIR:-/tmp}/overlaptop-$(id -u)}}
case $dir in /*) ;; "~/"*) dir=$HOME/${dir#??} ;; *) dir=$PWD/$dir ;; esac
named=$2
case $named in "~/"*) named=$HOME/${named#??} ;; esac
export OVERLAPTOP_DIR="$dir"
look() {
[ -e "$dir" ] || [ -L "$dir" ] || return 0
set -- $(ls -ldn "$dir" 2>/dev/null)
case $1 in
l*) fail "$dir is a symbolic link: remove it, or name another directory with --remote-dir" ;;
drwx--[-S]--[-T]*) ;;
d*) fail "$dir has mode $1, others can get in: run chmod 700 there, or use --remote-dir" ;;
*) fail "$dir cannot be used as the socket directory: name another with --remote-dir" ;;
esac
[ "$3" = "$(id -u)" ] || fail "$dir belongs to uid $3, not to you: name another with --remote-dir"
[ -z "$named" ] || return 0
for record in $(cd "$dir" && ls -t ./*/job.json 2>/dev/null); do
python= folders= inside=
while read line; do
case $line in
"\"python\": \""*) python=${line#*": \""}; python=${python%\"*} ;;
"\"import_path\": [") inside=1 ;;
"]"*) inside= ;;
*) [ -z "$inside" ] || { line=${line#\"}; folders=$folders${folders:+:}${line%\"*}; } ;;
esac
done <"$dir/$record"
case $python in /*) [ -x "$python" ] && return 0 ;; esac
done
python=
}
asked=
while :; do
python= folders=
look
if [ -n "$named" ]; then
command -v "$named" >/dev/null || fail "there is no $named to be run: look at --python"
start "$named"
fi
if [ -n "$python" ]; then
[ -z "$folders" ] || export PYTHONPATH="$folders"
start "$python"
fi
if [ -z "$asked" ] && python3 -P -c "import overlaptop.remote" 2>/dev/null; then
start python3
fi
asked=1
say wait "no job in $dir, and no overlaptop for the python3 on the PATH there"
read -r line || exit 0
done
"""

_JOINED = re.compile(r"(?:[{]|;;|\bdo|\bthen|\bin)$")


def _one_line(source: str) -> str:
    lines = source.strip().splitlines()
    return "".join(line + (" " if _JOINED.search(line) else "; ") for line in lines[:-1]) + lines[-1]


SCRIPT = _one_line(_SOURCE)


def remote_command(
    python: str = "", remote_dir: str = "", *, readonly: bool = False, doctor: bool = False
) -> tuple[str, ...]:
    """Return the command to run on the host, as words.

    ``python``, ``remote_dir``: interpreter and socket directory there. ``readonly``: the relay refuses
    changes. ``doctor``: records of what works there, instead of a relay. Raises ValueError with one line
    for a name that some shell would change.
    """
    for option, value in (("--python", python), ("--remote-dir", remote_dir)):
        if _UNQUOTABLE.search(value):
            raise ValueError(
                f"{option} {value!r}: a quote, a backslash, ! or a control character cannot travel"
            )
        if value.startswith("-"):
            raise ValueError(f"{option} {value!r}: it cannot begin with a dash")
    command = "doctor --json" if doctor else "relay --stdio --readonly" if readonly else ""
    return ("sh", "-c", SCRIPT, "overlaptop", remote_dir, python, command)

"""What the user names another host by, and the command that reaches it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from overlaptop.remote.bootstrap import shell_line

SSH, DOCKER, KUBECTL, SRUN, LOCAL, VIA = KINDS = ("ssh", "docker", "kubectl", "srun", "local", "via")
SLURM_PREFIX = "slurm:"
COMMAND_PLACE = "{}"
"""In a word of --via's prefix: where the command goes, as one line for a shell."""
MAX_TARGETS = 256
_MAX_WORD_CHARS = 512
_MAX_HOSTS_FILE_BYTES = 1 << 20
_SLURM_PATIENCE_S = 30.0

# ssh hands the host's name to the user's own ProxyCommand, a shell's line: nothing that a shell would read.
_USER = r"[\w.+@\\-]+"
_HOST = r"[\w.-]+|(?=.*:.*:)[0-9A-Fa-f:.]+(?:%[\w.-]+)?"
_PLAIN = re.compile(rf"(?:(?P<user>{_USER})@)?(?P<host>{_HOST})", re.ASCII)
_URL = re.compile(
    rf"(?:(?P<user>{_USER})@)?(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[\w.-]+))(?::(?P<port>\d{{1,5}}))?/?",
    re.ASCII,
)
_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_JOB_ID = re.compile(r"\d+(?:[_+]\d+)?", re.ASCII)

_SSH_OPTIONS = (
    "-T",
    *("-e", "none"),
    # Nobody's agent, screen or ports are needed there, whatever the user's config gives to a shell there.
    "-a",
    "-x",
    *("-o", "ClearAllForwardings=yes"),
    *("-o", "RemoteCommand=none"),
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=3"),
    *("-o", "ServerAliveCountMax=2"),
)

_EXAMPLES = "HOST, USER@HOST, ssh://HOST:PORT, docker://CONTAINER, kubectl://NAMESPACE/POD, srun://JOBID"

Run = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class Target:
    """One host, as the user named it."""

    word: str
    """What they typed."""
    kind: str
    """One of KINDS."""
    place: str = ""
    """ssh: [USER@]HOST; docker: the container; kubectl: the pod; srun: the job's id; else empty."""
    port: int | None = None
    """ssh: where it is not the one that ssh takes by itself."""
    within: str = ""
    """kubectl: the container in the pod; srun: the node; empty: the only one, or the first."""
    namespace: str = ""
    """kubectl: empty: the one that kubectl takes by itself."""
    prefix: tuple[str, ...] = ()
    """via: the words of the command prefix."""

    @property
    def name(self) -> str:
        """Short, for a screen; the host reports its own name once it is reached."""
        return self.word

    @classmethod
    def parse(cls, word: str) -> Target:
        """The host that a word of a command line names. Raises ValueError, one line, if it names none."""
        if not word or len(word) > _MAX_WORD_CHARS or not word.isprintable():
            raise ValueError(f"{word[:80]!r} names no host: write {_EXAMPLES}")
        if word.startswith("-"):
            raise ValueError(
                f"{word!r} begins with a dash: it is taken neither for a host nor for an option"
            )
        scheme, separator, rest = word.partition("://")
        if not separator:
            return _plain_ssh(word)
        parse = _SCHEMES.get(scheme)
        if parse is None:
            raise ValueError(f"{word}: there is no {scheme}://; there is: {'://, '.join(_SCHEMES)}://")
        return parse(word, rest)

    @classmethod
    def via(cls, prefix: str) -> Target:
        """The host that a command prefix reaches (``--via``). Raises ValueError with one line.

        The command comes after the prefix's words as words of its own; where one of them has ``{}`` in it,
        and after ``ssh``, it comes as one word for a shell.
        """
        try:
            words = tuple(shlex.split(prefix))
        except ValueError as error:
            raise ValueError(f"--via {prefix!r}: {str(error).lower()}") from None
        if not words or not words[0] or "\0" in prefix:
            raise ValueError("--via needs a command, such as 'sudo -u trainer' or 'ip netns exec blue'")
        return cls(f"via {prefix.strip()}", VIA, prefix=words)

    def argv(self, words: tuple[str, ...], *, interactive: bool = False) -> list[str]:
        """The command line that runs ``words`` there. ``interactive``: it may ask on the terminal."""
        match self.kind:
            case "ssh":
                batch = f"BatchMode={'no' if interactive else 'yes'}"
                port = [] if self.port is None else ["-p", str(self.port)]
                return [
                    ssh_program(),
                    *_SSH_OPTIONS,
                    "-o",
                    batch,
                    *port,
                    "--",
                    self.place,
                    shell_line(words),
                ]
            case "docker":
                return ["docker", "exec", "-i", self.place, *words]
            case "kubectl":
                namespace = ["-n", self.namespace] if self.namespace else []
                container = ["-c", self.within] if self.within else []
                return ["kubectl", "exec", "-i", *namespace, self.place, *container, "--", *words]
            case "srun":
                node = [f"--nodelist={self.within}"] if self.within else []
                # It passes output on line by line unless told otherwise, and frames have no lines.
                step = ["--quiet", "--unbuffered", "--overlap", "--nodes=1", "--ntasks=1", *node]
                return ["srun", f"--jobid={self.place}", *step, *words]
            case "via":
                return _after(self.prefix, words)
            case _:
                return list(words)


def ssh_program() -> str:
    """The ssh to run: $OVERLAPTOP_SSH, else the one on the PATH."""
    return os.environ.get("OVERLAPTOP_SSH") or "ssh"


def named(
    words: Iterable[str], hosts_file: Path | None = None, via: Iterable[str] = (), run: Run | None = None
) -> tuple[Target, ...]:
    """All hosts that the command line names, in its order, none twice.

    ``words``: those of Target.parse, and ``slurm:JOBID`` for all nodes of a job. ``hosts_file``: more of
    them, one a line, ``#`` begins a comment. ``via``: command prefixes. ``run`` answers with what a command
    prints. Raises ValueError with one line, OSError where the file cannot be read.
    """
    found = dict.fromkeys(each for word in words for each in _of_word(word, run or _output))
    if hosts_file is not None:
        found |= dict.fromkeys(_of_file(hosts_file, run or _output))
    found |= dict.fromkeys(Target.via(prefix) for prefix in via)
    if len(found) > MAX_TARGETS:
        raise ValueError(f"{len(found)} hosts are named, at most {MAX_TARGETS} can be watched at once")
    return tuple(found)


def _of_word(word: str, run: Run) -> list[Target]:
    if not word.startswith(SLURM_PREFIX):
        return [Target.parse(word)]
    job = word.removeprefix(SLURM_PREFIX)
    if not _JOB_ID.fullmatch(job):
        raise ValueError(f"{word}: a job of Slurm is named by its number: slurm:1234")
    nodes = run(["squeue", "--noheader", f"--jobs={job}", "--format=%N"]).split()
    if not nodes:
        raise ValueError(f"{word}: Slurm gives this job no nodes: it waits, has ended, or is not yours")
    hosts = run(["scontrol", "show", "hostnames", ",".join(dict.fromkeys(nodes))]).split()
    return [Target.parse(f"srun://{job}/{host}") for host in hosts]


def _of_file(path: Path, run: Run) -> list[Target]:
    with path.open("rb") as file:
        data = file.read(_MAX_HOSTS_FILE_BYTES + 1)
    if len(data) > _MAX_HOSTS_FILE_BYTES:
        raise ValueError(f"{path} is longer than {_MAX_HOSTS_FILE_BYTES} bytes: it is not a list of hosts")
    found = []
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        if word := line.partition("#")[0].strip():
            try:
                found += _of_word(word, run)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    if not found:
        raise ValueError(f"{path} names no host: one a line, # begins a comment")
    return found


def _output(argv: Sequence[str]) -> str:
    """What a command prints. Raises ValueError with one line where it fails."""
    try:
        done = subprocess.run(  # the caller wrote its words, but for a job's number
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SLURM_PATIENCE_S, check=False
        )
    except FileNotFoundError:
        raise ValueError(f"there is no {argv[0]} here: run this on a machine of the cluster") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"{argv[0]}: {error}") from None
    if done.returncode != 0:
        written = done.stderr.decode(errors="replace").strip().splitlines()
        why = "".join(
            each if each.isprintable() else "?" for each in (written or ["no reason given"])[-1][:300]
        )
        raise ValueError(f"{argv[0]} ended with status {done.returncode}: {why}")
    return done.stdout.decode(errors="replace")


def _after(prefix: tuple[str, ...], words: tuple[str, ...]) -> list[str]:
    if any(COMMAND_PLACE in word for word in prefix):
        return [word.replace(COMMAND_PLACE, shell_line(words)) for word in prefix]
    # ssh joins its words with blanks for a shell, which would take them apart in other places.
    return [*prefix, shell_line(words)] if Path(prefix[0]).name == SSH else [*prefix, *words]


def _plain_ssh(word: str) -> Target:
    if re.fullmatch(r"[^:]+:\d{1,5}", word) and word.count(":") == 1:
        raise ValueError(f"{word}: a port is named as in ssh://{word}")
    match = _PLAIN.fullmatch(word)
    if match is None or match["host"].startswith("-"):
        raise ValueError(f"{word} names no host: write {_EXAMPLES}")
    return Target(word, SSH, word)


def _ssh_url(word: str, rest: str) -> Target:
    match = _URL.fullmatch(rest)
    if match is None or rest.startswith("-") or (match["host"] or "").startswith("-"):
        raise ValueError(f"{word}: write ssh://[USER@]HOST[:PORT]")
    port = None if match["port"] is None else int(match["port"])
    if port is not None and not 0 < port < 1 << 16:
        raise ValueError(f"{word}: a port is from 1 to 65535")
    user = f"{match['user']}@" if match["user"] else ""
    return Target(word, SSH, user + (match["six"] or match["host"]), port)


def _docker(word: str, rest: str) -> Target:
    return Target(word, DOCKER, _names(word, rest, "docker://CONTAINER", 1, 1)[0])


def _kubectl(word: str, rest: str) -> Target:
    parts = _names(word, rest, "kubectl://[NAMESPACE/]POD[/CONTAINER]", 1, 3)
    if len(parts) == 1:
        return Target(word, KUBECTL, parts[0])
    return Target(word, KUBECTL, parts[1], namespace=parts[0], within="".join(parts[2:]))


def _srun(word: str, rest: str) -> Target:
    job, *node = _names(word, rest, "srun://JOBID[/NODE]", 1, 2)
    if not _JOB_ID.fullmatch(job):
        raise ValueError(f"{word}: write srun://JOBID[/NODE]: a job is named by its number")
    return Target(word, SRUN, job, within="".join(node))


def _local(word: str, rest: str) -> Target:
    if rest:
        raise ValueError(f"{word}: this machine is local:// and nothing after it")
    return Target(word, LOCAL)


def _names(word: str, rest: str, form: str, least: int, most: int) -> list[str]:
    parts = rest.split("/")
    if not least <= len(parts) <= most or not all(map(_NAME.fullmatch, parts)):
        raise ValueError(f"{word}: write {form}, in letters, digits, '.', '_' and '-'")
    return parts


_SCHEMES: dict[str, Callable[[str, str], Target]] = {
    SSH: _ssh_url,
    DOCKER: _docker,
    KUBECTL: _kubectl,
    SRUN: _srun,
    LOCAL: _local,
}

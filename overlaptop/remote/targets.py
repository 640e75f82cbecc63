"""The user's names for other hosts, and the commands that reach them."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from overlaptop.text import printable

SSH, DOCKER, KUBECTL, SRUN, LOCAL, VIA = KINDS = ("ssh", "docker", "kubectl", "srun", "local", "via")
SLURM_PREFIX = "slurm:"
COMMAND_PLACE = "{}"  # Placeholder in --via's prefix for the command, as one line for a shell
MAX_TARGETS = 256
_MAX_WORD_CHARS = 512
_SLURM_PATIENCE_S = 30.0

# ssh inserts the host's name into the user's ProxyCommand, a shell line, so no shell syntax is allowed.
_USER = r"(?:(?!-)[\w.+@\\-]+@)?"
_SSH_WORD = re.compile(
    rf"{_USER}(?:(?!-)[\w.-]+|(?=.*:.*:)[0-9A-Fa-f:.]+(?:%[\w.-]+)?)",
    re.ASCII,
)
_NAME, _JOB_ID = r"\w[\w.-]*", r"\d+(?:[_+]\d+)?"
_SCHEMES = {
    SSH: (
        rf"(?P<place>{_USER}(?:\[[0-9A-Fa-f:.%\w]+\]|(?!-)[\w.-]+))(?::(?P<port>\d{{1,5}}))?/?",
        "ssh://[USER@]HOST[:PORT]",
    ),
    DOCKER: (rf"(?P<place>{_NAME})", "docker://CONTAINER"),
    KUBECTL: (
        rf"(?:(?P<namespace>{_NAME})/)?(?P<place>{_NAME})(?(namespace)(?:/(?P<within>{_NAME}))?)",
        "kubectl://[NAMESPACE/]POD[/CONTAINER]",
    ),
    SRUN: (rf"(?P<place>{_JOB_ID})(?:/(?P<within>{_NAME}))?", "srun://JOBID[/NODE]"),
    LOCAL: ("", "local://"),
}
"""Scheme -> pattern of the rest, by the fields of Target, and its notation for messages."""

_SSH_OPTIONS = (
    "-T",
    *("-e", "none"),
    # No agent, X11 display or port forwarding, whatever the user's config sets for shells there.
    "-a",
    "-x",
    *("-o", "ClearAllForwardings=yes"),
    *("-o", "RemoteCommand=none"),
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=3"),
    *("-o", "ServerAliveCountMax=2"),
)

_EXAMPLES = "HOST, USER@HOST, ssh://HOST:PORT, docker://CONTAINER, kubectl://NAMESPACE/POD, srun://JOBID"


@dataclass(frozen=True, slots=True)
class Target:
    """One host, as the user named it."""

    name: str  # As typed. The host reports its own name once it is reached.
    kind: str
    place: str = ""
    """ssh: [USER@]HOST; docker: the container; kubectl: the pod; srun: the job's id; else empty."""
    port: str = ""  # ssh: a port other than ssh's default
    within: str = ""
    """kubectl: the container in the pod; srun: the node. Empty for the only one, or the first."""
    namespace: str = ""
    prefix: tuple[str, ...] = ()

    @classmethod
    def parse(cls, word: str) -> "Target":
        """Return the host that a command-line word names. Raises ValueError, one line, if it names none."""
        if not word or len(word) > _MAX_WORD_CHARS or not word.isprintable():
            raise ValueError(f"{word[:80]!r} names no host: write {_EXAMPLES}")
        if word.startswith("-"):
            raise ValueError(
                f"{word!r} begins with a dash: it is taken neither for a host nor for an option"
            )
        scheme, separator, rest = word.partition("://")
        if not separator:
            if re.fullmatch(r"[^:]+:\d{1,5}", word):
                raise ValueError(f"{word}: a port is named as in ssh://{word}")
            if not _SSH_WORD.fullmatch(word):
                raise ValueError(f"{word} names no host: write {_EXAMPLES}")
            return cls(word, SSH, word)
        if scheme not in _SCHEMES:
            raise ValueError(f"{word}: there is no {scheme}://; there is: {'://, '.join(_SCHEMES)}://")
        pattern, form = _SCHEMES[scheme]
        match = re.fullmatch(pattern, rest, re.ASCII)
        if match is None or not 0 < int(match.groupdict().get("port") or 1) < 1 << 16:
            raise ValueError(f"{word}: write {form}")
        found = match.groupdict("")
        place = found.get("place", "").translate({ord("["): None, ord("]"): None})  # of an IPv6 address
        return cls(
            word, scheme, place, found.get("port", ""), found.get("within", ""), found.get("namespace", "")
        )

    @classmethod
    def via(cls, prefix: str) -> "Target":
        """Return the host that a command prefix reaches (``--via``). Raises ValueError with one line."""
        try:
            words = tuple(shlex.split(prefix))
        except ValueError as error:
            raise ValueError(f"--via {prefix!r}: {str(error).lower()}") from None
        if not words or not words[0] or "\0" in prefix:
            raise ValueError("--via needs a command, such as 'sudo -u trainer' or 'ip netns exec blue'")
        return cls(f"via {prefix.strip()}", VIA, prefix=words)

    def argv(self, words: tuple[str, ...], *, interactive: bool = False) -> list[str]:
        """Return the command that runs ``words`` there. ``interactive``: it may ask on the terminal."""
        match self.kind:
            case "ssh":
                batch = f"BatchMode={'no' if interactive else 'yes'}"
                port = ["-p", self.port] if self.port else []
                line = shlex.join(words)
                return [ssh_program(), *_SSH_OPTIONS, "-o", batch, *port, "--", self.place, line]
            case "docker":
                return ["docker", "exec", "-i", self.place, *words]
            case "kubectl":
                namespace = ["-n", self.namespace] if self.namespace else []
                container = ["-c", self.within] if self.within else []
                return ["kubectl", "exec", "-i", *namespace, self.place, *container, "--", *words]
            case "srun":
                node = [f"--nodelist={self.within}"] if self.within else []
                # By default it passes output on line by line, and frames have no lines.
                step = ["--quiet", "--unbuffered", "--overlap", "--nodes=1", "--ntasks=1", *node]
                return ["srun", f"--jobid={self.place}", *step, *words]
        if any(COMMAND_PLACE in word for word in self.prefix):
            return [word.replace(COMMAND_PLACE, shlex.join(words)) for word in self.prefix]
        if self.prefix and Path(self.prefix[0]).name == SSH:
            # ssh joins its words with blanks for a shell, which would split them at other places.
            return [*self.prefix, shlex.join(words)]
        return [*self.prefix, *words]


def ssh_program() -> str:
    """Return the ssh to run: $OVERLAPTOP_SSH, else the one on the PATH."""
    return os.environ.get("OVERLAPTOP_SSH") or "ssh"


def named(
    words: Iterable[str], hosts_file: Path | None = None, via: Iterable[str] = ()
) -> tuple[Target, ...]:
    """Return all hosts on the command line, in order, without duplicates.

    ``words``: as in Target.parse, or ``slurm:JOBID``. ``hosts_file``: more of them, one a line. ``via``:
    command prefixes. Raises ValueError with one line, and OSError if the file cannot be read.
    """
    found = dict.fromkeys(each for word in words for each in _of_word(word))
    if hosts_file is not None:
        found |= dict.fromkeys(_of_file(hosts_file))
    found |= dict.fromkeys(Target.via(prefix) for prefix in via)
    if len(found) > MAX_TARGETS:
        raise ValueError(f"{len(found)} hosts are named, at most {MAX_TARGETS} can be watched at once")
    return tuple(found)


def _of_word(word: str) -> list[Target]:
    if not word.startswith(SLURM_PREFIX):
        return [Target.parse(word)]
    job = word.removeprefix(SLURM_PREFIX)
    if not re.fullmatch(_JOB_ID, job, re.ASCII):
        raise ValueError(f"{word}: a job of Slurm is named by its number: slurm:1234")
    nodes = _output(["squeue", "--noheader", f"--jobs={job}", "--format=%N"]).split()
    if not nodes:
        raise ValueError(f"{word}: Slurm gives this job no nodes: it waits, has ended, or is not yours")
    hosts = _output(["scontrol", "show", "hostnames", ",".join(dict.fromkeys(nodes))]).split()
    return [Target.parse(f"srun://{job}/{host}") for host in hosts]


def _of_file(path: Path) -> list[Target]:
    found = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if word := line.partition("#")[0].strip():
            try:
                found += _of_word(word)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    if not found:
        raise ValueError(f"{path} names no host: one a line, # begins a comment")
    return found


def _output(argv: Sequence[str]) -> str:
    """Return a command's output. Raises ValueError with one line if it fails."""
    try:
        done = subprocess.run(  # the words are ours, except for a job's number
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SLURM_PATIENCE_S, check=False
        )
    except FileNotFoundError:
        raise ValueError(f"there is no {argv[0]} here: run this on a machine of the cluster") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"{argv[0]}: {error}") from None
    if done.returncode != 0:
        written = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        why = printable(written[-1][:300])
        raise ValueError(f"{argv[0]} ended with status {done.returncode}: {why}")
    return done.stdout.decode(errors="replace")

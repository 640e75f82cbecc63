"""Hosts of the tests' own: namespaces for network, processes, name and mounts, each with a real sshd.

A host ends with all its processes when its first process does, and that one ends with the test's. Network
namespaces have no name and cables hang from them, so nothing is left of a host that is gone.

    laptop ──cable── host-a        the lines; `Cable.cut` pulls one
    laptop ──cable── host-b
             host-a ──cable── host-b    what jobs meet over
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

from tests.processes import eventually
from tests.warm import LAUNCHER_VARIABLES, Warm, WarmProcess, place

SSHD = Path("/usr/sbin/sshd")
AGENT = ("-m", "overlaptop.agent", "--control")
MARK = "OVERLAPTOP_TEST_JOB"
"""In the environment of a job's processes: its folder."""
TRAINING = """
import os, sys, time, torch, torch.distributed as dist
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))  # 1 MiB of gradients each
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    model(torch.ones(2, 512)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.1)
"""
NSENTER = shutil.which("nsenter") or "nsenter"
NODES = ("host-a", "host-b")
JOB_ADDRESSES = ("10.99.0.1", "10.99.0.2")
JOB_LINK = "jobs0"
JOB_PORT = 29_400
"""Where ranks meet."""
FIRST_PORT = 22
PATIENCE_S = 60.0
_START_S = 60.0
_CLONES = ("--net", "--uts", "--ipc", "--pid", "--mount")

_FIRST_PROCESS = """
import os, signal, socket, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that lost their parent are buried by the kernel
socket.sethostname(sys.argv[1])
print("up", flush=True)
sys.stdin.read()
"""

_PREPARE = "mount -t tmpfs -o mode=755 none /run && mkdir /run/sshd && ip link set lo up"
_CABLE = "ip link add one type veth peer name other"


@cache
def why_not(*programs: str) -> str:
    """Why there can be no such hosts on this machine; empty: there can. ``programs``: that they need."""
    if os.geteuid() != 0:
        return "making hosts of namespaces needs root"
    programs = ("unshare", "nsenter", "ip", "mount", *(programs or ("ssh", "ssh-keygen", str(SSHD))))
    if missing := [name for name in programs if shutil.which(name) is None]:
        return f"there is no {', '.join(missing)}"
    tried = subprocess.run(
        ["unshare", *_CLONES, "--fork", "--mount-proc", "sh", "-c", f"{_PREPARE} && {_CABLE}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return f"namespaces cannot be made: {tried.stderr.strip()}" if tried.returncode else ""


class Machine:
    """A set of namespaces under a name, with nothing in it but its first process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = 0
        """Of its first process, as this machine counts."""
        self._children: list[subprocess.Popen[bytes]] = []
        self._holder = subprocess.Popen(
            ["unshare", *_CLONES, "--fork", "--kill-child", "--mount-proc",
             sys.executable, "-S", "-c", _FIRST_PROCESS, name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it tells how its child ended
            start_new_session=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        try:
            assert self._holder.stdout.readline() == b"up\n", f"{name} does not begin"
            holder = self._holder.pid
            self.pid = int(Path(f"/proc/{holder}/task/{holder}/children").read_text())
            self.do("sh", "-c", _PREPARE)
        except BaseException:
            self.close()
            raise

    def argv(self, *words: str) -> list[str]:
        """The command that runs these words there."""
        return [NSENTER, "-t", str(self.pid), *_CLONES, "--wd=.", "--", *words]

    def do(self, *words: str) -> None:
        """Runs a command there. It must succeed."""
        run(*self.argv(*words))

    def start(self, *words: str, **options: object) -> subprocess.Popen[bytes]:
        """Starts a command there, which ends with this machine at the latest."""
        child = subprocess.Popen(self.argv(*words), stdin=subprocess.DEVNULL, **options)
        self._children.append(child)
        return child

    def kill(self, word: str = "", *, environment: str = "") -> None:
        """Kills all processes but the first with this word in their command line, and this in their
        environment.
        """
        if not self.pid:
            return
        inside = Path(f"/proc/{self.pid}/ns/pid").readlink()
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (
                    int(entry.name) != self.pid
                    and (entry / "ns/pid").readlink() == inside
                    and word.encode() in (entry / "cmdline").read_bytes()
                    and environment.encode() in (entry / "environ").read_bytes()
                ):
                    os.kill(int(entry.name), signal.SIGKILL)

    def close(self) -> None:
        """Ends it, and all that runs there, as if its plug were pulled."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.pid = 0
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.stdout.close()
        self._wake()  # the last process of a host is not gone before its parent has buried it
        for child in (self._holder, *self._children):
            child.wait(_START_S)

    def _wake(self) -> None:
        """nsenter stops when the process that it has started there does, and does not see it go on."""
        for child in self._children:
            if child.poll() is None:
                child.send_signal(signal.SIGCONT)


class Sshd:
    """An OpenSSH server of a host, with a host key and a home of its own."""

    def __init__(
        self, host: Machine, folder: Path, address: str, port: int, client_key: Path, jobs_dir: Path | None,
        *lines: str,
    ) -> None:  # fmt: skip
        """``jobs_dir``: of those who come in through it; None: one of its own.

        ``lines``: of its configuration, besides.
        """
        self.host, self.folder, self.address, self.port = host, folder, address, port
        self.jobs_dir, self.home = jobs_dir or folder / "jobs", folder / "home"
        self.home.mkdir(parents=True)
        self.jobs_dir.mkdir(mode=0o700, exist_ok=jobs_dir is not None)
        self.key = make_key(folder / "host_key")
        configuration = [
            f"ListenAddress {address}", f"Port {port}", f"HostKey {self.key}", f"PidFile {folder / 'pid'}",
            f"AuthorizedKeysFile {client_key}.pub", "UsePAM no", "StrictModes no", "PrintMotd no",
            "PasswordAuthentication no", "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            f"SetEnv HOME={self.home} OVERLAPTOP_DIR={self.jobs_dir}", *lines,
        ]  # fmt: skip
        (folder / "sshd_config").write_text("\n".join(configuration) + "\n")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Has it listen."""
        if self._process is not None:
            self._process.wait(_START_S)  # one that was killed with another has its port until it has ended
        (self.folder / "pid").unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            config = str(self.folder / "sshd_config")
            self._process = self.host.start(str(SSHD), "-D", "-e", "-f", config, stderr=log)
        eventually(lambda: (self.folder / "pid").exists(), _START_S)

    def kill(self) -> None:
        """Ends it at once, and with it all sessions of all servers of this host."""
        self.host.kill("sshd")
        assert self._process is not None
        self._process.wait(_START_S)
        (self.folder / "pid").unlink(missing_ok=True)


class Cable:
    """Between two machines; each end has a name and an address of its own."""

    def __init__(self, *ends: tuple[Machine, str, str]) -> None:
        """``ends``: machine, the name of the interface there, its address; of two machines."""
        (first, name, _), (self._host, self._end, _) = ends
        run("ip", "link", "add", name, "netns", str(first.pid), "type", "veth",
            "peer", "name", self._end, "netns", str(self._host.pid))  # fmt: skip
        for machine, end, address in ends:
            machine.do("ip", "address", "add", f"{address}/24", "dev", end)
            machine.do("ip", "link", "set", end, "up")

    def cut(self) -> None:
        """Nothing arrives any more, at either end, and nobody is told."""
        self._host.do("ip", "link", "set", self._end, "down")

    def mend(self) -> None:
        self._host.do("ip", "link", "set", self._end, "up")


class Node(NamedTuple):
    """A host on which a job runs, and the folder of its sockets there."""

    host: Machine
    jobs_dir: Path


class Cluster:
    """Hosts on one switch, over which jobs meet."""

    def __init__(self, hosts: int, folder: Path) -> None:
        self._stack = ExitStack()
        self.nodes: list[Node] = []
        try:
            switch = self._machine("switch")
            switch.do("sh", "-c", "ip link add bridge0 type bridge && ip link set bridge0 up")
            for number in range(hosts):
                host, port = self._machine(f"node-{number}"), f"port{number}"
                run("ip", "link", "add", JOB_LINK, "netns", str(host.pid), "type", "veth",
                    "peer", "name", port, "netns", str(switch.pid))  # fmt: skip
                switch.do("ip", "link", "set", port, "master", "bridge0", "up")
                host.do("ip", "address", "add", f"10.99.0.{number + 1}/24", "dev", JOB_LINK)
                host.do("ip", "link", "set", JOB_LINK, "up")
                self.nodes.append(Node(host, folder / host.name))
                self.nodes[-1].jobs_dir.mkdir(mode=0o700)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _machine(self, name: str) -> Machine:
        machine = Machine(name)
        self._stack.callback(machine.close)
        return machine


class RemoteJob:
    """A training job with an agent, whose ranks are forked from the process that has torch."""

    def __init__(
        self,
        servers: Sequence[Sshd | Node],
        folder: Path,
        warm: Warm,
        *options: str,
        script: str = TRAINING,
    ) -> None:
        """``servers``: through which it can be found; a rank on the host of each.

        ``options``: of the agent, besides.
        """
        folder.mkdir(exist_ok=True)
        self.log = folder / "log"
        self._folder, self._servers = folder, servers
        script = folder / "train.py"
        script.write_text(TRAINING)
        self._ranks: list[WarmProcess] = []
        for rank, server in enumerate(servers):
            environment = {
                **{name: word for name, word in os.environ.items() if name not in LAUNCHER_VARIABLES},
                "OVERLAPTOP_DIR": str(server.jobs_dir),
                "CUDA_VISIBLE_DEVICES": "",
                "GLOO_SOCKET_IFNAME": JOB_LINK,
                MARK: str(folder),
            }
            if len(servers) > 1:
                environment |= place(rank, len(servers)) | {
                    "LOCAL_RANK": "0",
                    "LOCAL_WORLD_SIZE": "1",
                    "MASTER_ADDR": JOB_ADDRESSES[0],
                    "MASTER_PORT": str(JOB_PORT),
                }
            with self.log.open("ab") as log:
                words, out = [*AGENT, *options, str(script)], log.fileno()
                self._ranks.append(
                    warm.start(words, environment, folder, out, out, machine=server.host.pid)
                )

    @property
    def runs(self) -> bool:
        """Whether no rank of it is over."""
        return all(rank.poll() is None for rank in self._ranks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it at once, and its hubs."""
        for server in self._servers:
            server.host.kill(environment=f"{MARK}={self._folder}")
        for rank in self._ranks:
            rank.kill()  # its environment in /proc is that of the process which it was forked from
            rank.wait(_START_S)


class Lab:
    """A laptop and two hosts. Its ssh is named by `ssh`, for $OVERLAPTOP_SSH."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ot-lab-"))
        """Short: the names of sockets lie below it."""
        self.ssh = self.folder / "ssh"
        """A program that is the laptop's ssh."""
        self.hosts: dict[str, Machine] = {}
        self.cables: dict[str, Cable] = {}
        self.servers: dict[str, Sshd] = {}
        """By the name in the ssh's configuration."""
        self._stack = ExitStack()
        self._stack.callback(shutil.rmtree, self.folder)
        try:
            self.key = make_key(self.folder / "key")
            laptop = self._machine("laptop")
            on_laptop = f"{NSENTER} -t {laptop.pid} --net --"
            self.ssh.write_text(f'#!/bin/sh\nexec {on_laptop} ssh -F {self.folder}/ssh_config "$@"\n')
            self.ssh.chmod(0o755)
            for number, name in enumerate(NODES, 1):
                host = self.hosts[name] = self._machine(name)
                here, there = f"10.99.{number}.1", f"10.99.{number}.2"
                self.cables[name] = Cable((laptop, f"line{number}", here), (host, "line0", there))
                self.add_server(name, name)
            Cable(
                *((self.hosts[name], JOB_LINK, at) for name, at in zip(NODES, JOB_ADDRESSES, strict=True))
            )
        except BaseException:
            self._stack.close()
            raise

    def add_server(self, name: str, host: str, jobs_dir: Path | None = None, *lines: str) -> Sshd:
        """One more sshd on this host, which ssh knows by the name. The rest: as Sshd has it."""
        address, port = f"10.99.{NODES.index(host) + 1}.2", FIRST_PORT + len(self.servers)
        folder = self.folder / name
        server = Sshd(self.hosts[host], folder, address, port, self.key, jobs_dir, *lines)
        self.servers[name] = server
        self.configure(name, server)
        return server

    def configure(self, name: str, server: Sshd, *, key: Path | None = None, known_by: str = "") -> None:
        """Has ssh know the server by this name. ``known_by``: in known_hosts; the true line if empty."""
        known = self.folder / f"known-{name}"
        known.write_text(known_by or f"{name} {public_part(server.key)}\n")
        with (self.folder / "ssh_config").open("a") as config:
            config.write(
                f"Host {name}\n"
                f"  HostName {server.address}\n"
                f"  Port {server.port}\n"
                f"  HostKeyAlias {name}\n"
                f"  User {getpass.getuser()}\n"
                f"  IdentityFile {key or self.key}\n"
                f"  UserKnownHostsFile {known}\n"
                "  IdentitiesOnly yes\n  IdentityAgent none\n  StrictHostKeyChecking yes\n"
                "  GlobalKnownHostsFile none\n"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends all that runs there; the folder goes, too."""
        self._stack.close()

    def _machine(self, name: str) -> Machine:
        machine = Machine(name)
        self._stack.callback(machine.close)
        return machine


def run(*words: str) -> None:
    """Runs a command. It must succeed."""
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_START_S, check=False
    )
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


def make_key(path: Path) -> Path:
    """A key pair; the private one is at this path."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "overlaptop", "-f", str(path))
    return path


def public_part(key: Path) -> str:
    return key.with_name(f"{key.name}.pub").read_text().strip()

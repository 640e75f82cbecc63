"""Hosts of the tests' own: real sshds of this machine, each with a home and a socket directory."""

import getpass
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Self

from overlaptop.launch.supervisor import descendants
from tests.processes import eventually
from tests.warm import hold_port

PATIENCE_S = 60.0


def sshd_program() -> str:
    """The path of the sshd; it wants to be called by that."""
    return shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin") or ""


@cache
def why_not() -> str:
    """Why no sshd can be started here; empty: it can."""
    if missing := [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]:
        return f"there is no {', '.join(missing)}"
    if not sshd_program():
        return "there is no sshd"
    with tempfile.TemporaryDirectory() as folder:
        key = make_key(Path(folder) / "key")
        words = [sshd_program(), "-t", "-f", "/dev/null", "-h", str(key)]
        return subprocess.run(words, capture_output=True, text=True, check=False).stderr.strip()


class Sshd:
    """An OpenSSH server with a host key of its own."""

    def __init__(self, folder: Path, client_key: Path, jobs_dir: Path | None) -> None:
        self.folder, self.jobs_dir, self.home = folder, jobs_dir or folder / "jobs", folder / "home"
        self.home.mkdir(parents=True)
        self.jobs_dir.mkdir(mode=0o700, exist_ok=jobs_dir is not None)
        self.key = make_key(folder / "host_key")
        with hold_port() as held:
            self.port = held.getsockname()[1]
        configuration = [
            "ListenAddress 127.0.0.1", f"Port {self.port}", f"HostKey {self.key}",
            f"PidFile {folder / 'pid'}", f"AuthorizedKeysFile {client_key}.pub", "UsePAM no",
            "StrictModes no", "PrintMotd no", "PasswordAuthentication no",
            "KbdInteractiveAuthentication no", "PermitRootLogin prohibit-password",
            f"SetEnv HOME={self.home} OVERLAPTOP_DIR={self.jobs_dir}",
        ]  # fmt: skip
        (folder / "sshd_config").write_text("\n".join(configuration) + "\n")
        with (folder / "log").open("ab") as log:
            command = [sshd_program(), "-D", "-e", "-f", str(folder / "sshd_config")]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        eventually((folder / "pid").exists, PATIENCE_S)

    def signal(self, number: signal.Signals) -> None:
        for pid in (self._process.pid, *descendants(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self._process.wait(PATIENCE_S)


class Lab:
    """Hosts for the ssh at `ssh`, for $OVERLAPTOP_SSH."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ot-lab-"))
        self.ssh = self.folder / "ssh"
        self.ssh.write_text(f'#!/bin/sh\nexec ssh -F {self.folder}/ssh_config "$@"\n')
        self.ssh.chmod(0o755)
        self.key = make_key(self.folder / "key")
        self.servers: dict[str, Sshd] = {}

    def add_server(self, name: str, jobs_dir: Path | None = None) -> Sshd:
        self.servers[name] = server = Sshd(self.folder / name, self.key, jobs_dir)
        self.configure(name, server)
        return server

    def configure(self, name: str, server: Sshd, *, key: Path | None = None) -> None:
        known = self.folder / f"known-{name}"
        known.write_text(f"{name} {server.key.with_name('host_key.pub').read_text()}")
        lines = (
            f"Host {name}", "HostName 127.0.0.1", f"Port {server.port}", f"HostKeyAlias {name}",
            f"User {getpass.getuser()}", f"IdentityFile {key or self.key}", f"UserKnownHostsFile {known}",
            "IdentitiesOnly yes", "IdentityAgent none", "StrictHostKeyChecking yes",
            "GlobalKnownHostsFile none",
        )  # fmt: skip
        with (self.folder / "ssh_config").open("a") as config:
            config.write("\n".join(lines) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers.values():
            server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)  # a hub may still be ending in it


def make_key(path: Path) -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "overlaptop", "-f", str(path)]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=PATIENCE_S)
    return path

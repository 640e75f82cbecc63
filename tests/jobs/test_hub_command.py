"""How a hub is started, and what it needs for that."""

import os
import subprocess
import sys
from pathlib import Path

import overlaptop
from overlaptop.jobs.hub_command import hub_command


def test_hub_gets_a_clean_environment_and_the_same_directory(monkeypatch, socket_dir):
    monkeypatch.chdir(socket_dir)
    for name, value in {"OVERLAPTOP_DIR": "here", "LD_PRELOAD": "", "PYTHONINSPECT": "1"}.items():
        monkeypatch.setenv(name, value)
    argv, environment = hub_command("a", "--odd name", 8, 42, "/work")
    assert argv[:2] == [sys.executable, "-P"]
    assert "--script=--odd name" in argv
    assert environment["OVERLAPTOP_DIR"] == str(socket_dir / "here")
    assert not {"LD_PRELOAD", "PYTHONINSPECT"} & environment.keys()


def test_the_hub_finds_its_packages_where_this_process_did(hubs, monkeypatch, socket_dir):
    """As in a job whose sys.path was changed, in a folder full of modules with the library's names."""
    for name in ("queue", "select", "json", "zmq", "socket"):
        (socket_dir / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(socket_dir)
    monkeypatch.setenv("PYTHONPATH", str(socket_dir))
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    code = (
        "import os, sys\n"
        "from overlaptop.jobs.hub_command import hub_command\n"
        "argv, environment = hub_command('job-1', 'x', 1, os.getppid(), '/')\n"
        # A bare interpreter: what it has, it has from the environment.
        "os.execve(argv[0], [argv[0], '-S', *argv[1:]], environment)\n"
    )
    path = [entry for entry in sys.path if entry.endswith("site-packages")]
    source = str(Path(overlaptop.__file__).parents[1])
    setup = f"import site, sys; site.getsitepackages = lambda: []; sys.path[:0] = {[source, *path]!r}\n"
    subprocess.run([sys.executable, "-S", "-P", "-E", "-c", setup + code], check=True, timeout=60)
    command = [sys.executable, "-S", "-P", "-c", "import overlaptop.hub.loop"]
    environment = {"PYTHONPATH": os.pathsep.join(hubs.record().import_path)}
    subprocess.run(command, cwd="/", env=environment, check=True, timeout=60)

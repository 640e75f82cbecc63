"""How a hub is started, and what it needs for that."""

import os
import subprocess
import sys
from pathlib import Path

import overlaptop
from overlaptop.jobs.hub_command import hub_command, import_path


def test_wire_in_a_rank_needs_neither_zmq_nor_numpy_nor_torch():
    code = (
        "import sys, overlaptop.wire, overlaptop.wire.messages\n"
        "import overlaptop.wire.codec, overlaptop.jobs.hub_command\n"
        "print([name for name in ('zmq', 'numpy', 'torch', 'secrets', 'hmac') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_a_relative_directory_means_the_same_to_the_hub(monkeypatch, socket_dir):
    monkeypatch.chdir(socket_dir)
    monkeypatch.setenv("OVERLAPTOP_DIR", "here")
    _, environment = hub_command("a", "train.py", 1, 1, "/")
    assert environment["OVERLAPTOP_DIR"] == str(socket_dir / "here")


def test_hub_gets_this_interpreter_and_a_clean_environment(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("PYTHONPATH", "/somewhere/with/a/queue.py")
    monkeypatch.setenv("PYTHONINSPECT", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    argv, environment = hub_command("a", "--odd name", 8, 42, "/work")
    assert argv[:2] == [sys.executable, "-P"]
    assert "--script=--odd name" in argv
    assert "LD_PRELOAD" not in environment
    assert "PYTHONINSPECT" not in environment
    assert "/somewhere/with/a/queue.py" not in environment.get("PYTHONPATH", "")
    assert environment["CUDA_VISIBLE_DEVICES"] == "3"


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
    assert hubs.record().hub_alive


def test_record_has_the_folders_that_the_hub_imports_from(hubs, folder):
    record = hubs.start()
    assert record.import_path == tuple(import_path())
    command = [record.python, "-P", "-c", "import overlaptop.hub.loop"]
    environment = {"PYTHONPATH": os.pathsep.join(record.import_path)}
    subprocess.run(command, cwd="/", env=environment, check=True, timeout=60)

"""A script under the agent behaves and imports as under Python alone, also if the agent cannot start."""

import functools
import json
import os
import py_compile
import signal
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

from overlaptop.agent.knobs.prefetch import STATE_MODULE
from overlaptop.agent.script.runner import is_bundled
from overlaptop.wire.messages import RankEnd
from overlaptop.workloads.catalog import DDP

AGENT = ("-m", "overlaptop.agent")

Completed = subprocess.CompletedProcess[str]


def both(*words: str, folder: Path, **environment: str) -> tuple[Completed, Completed]:
    """What Python did with these words, and with the agent before them. A first word ``-P`` is Python's."""
    flags, rest = (words[:1], words[1:]) if words[0] == "-P" else ((), words)
    options = {"capture_output": True, "text": True, "cwd": folder, "env": os.environ | environment}
    plain, with_agent = (
        subprocess.run([sys.executable, *flags, *agent, *rest], timeout=200, **options)
        for agent in ((), AGENT)
    )
    return plain, with_agent


def same(plain: Completed, with_agent: Completed, status: int = 0) -> None:
    assert plain.returncode == status, plain.stderr
    ends = [(each.returncode, each.stdout, each.stderr) for each in (plain, with_agent)]
    assert ends[1] == ends[0]


@pytest.fixture
def script(tmp_path: Path, sockets: Path):
    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


HOOK = """
import sys
def hook(kind, value, at):
    while at:
        print(at.tb_frame.f_code.co_name, at.tb_lineno)
        at = at.tb_next
    sys.exit(7)
sys.excepthook = hook
raise ValueError("x")
"""


@pytest.mark.parametrize(
    ("text", "status"),
    [
        # Nothing of a frozen dataclass can be set; what holds tensors cannot be compared.
        ("class Own(Exception):\n    __setattr__ = __eq__ = __hash__ = None\n"
         "try:\n    raise Own('first')\nexcept Own:\n    raise Own('second')\n", 1),
        ("x = (\n", 1),
        (HOOK, 7),
    ],
    ids=["unlike", "syntax", "the script's hook"],
)  # fmt: skip
def test_traceback_shows_no_frame_of_ours(script, text, status):
    path = script(text)
    same(*both(str(path), folder=path.parent), status)


# On one line, and columns are left out below: the traceback is the same wherever the signal strikes.
SLEEPS = "import time\nprint('ready', flush=True) or time.sleep(60)\n"


def test_ctrl_c_ends_the_script_as_without_the_agent(script):
    path = script(SLEEPS)
    ends = []
    for agent in ((), AGENT):
        process = subprocess.Popen(
            [sys.executable, *agent, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONNODEBUGRANGES": "1"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=200)
        ends.append((process.returncode, err))
    assert ends[1] == ends[0]
    assert ends[0][0] == -signal.SIGINT


def test_torch_is_seen_once_imported_with_its_environment(run_ranks, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('not this one')\n")
    job = run_ranks(
        """
        import importlib.util, os, sys
        assert not {"torch", "numpy"} & set(sys.modules)
        os.environ["OMP_NUM_THREADS"] = "1"
        try:
            import torch
        except ImportError:
            del sys.path[0]
        for _ in range(2):
            assert importlib.util.find_spec("torch").origin.endswith("__init__.py")
        assert "torch" not in sys.modules
        import torch
        import overlaptop.agent
        print(torch.get_num_threads(), overlaptop.agent._agent is not None)
        for _ in range(3):
            overlaptop.agent.step()
        assert type(torch.__spec__.loader).__dict__.get("exec_module") is None
        print("exec_module" in torch.__spec__.loader.__dict__)
        ours = [finder for finder in sys.meta_path if "overlaptop.agent" in repr(finder)]
        print([finder._name for finder in ours if finder._then is not None])
        """,
        nproc=1,
        prefix=("env", "-u", "OMP_NUM_THREADS"),
    )
    assert job.codes == [0], job.errs
    # torch is there; FSDP2 may still come.
    assert job.outs == [f"1 True\nFalse\n[{STATE_MODULE!r}]\n"]
    assert [step.step for step in job.steps()] == [0, 1]
    assert isinstance(job.messages[-1], RankEnd)  # what Python's end has it say
    assert job.messages[-1].clean


TELLS_ALL = """
import multiprocessing, os, pickle, sys, work
import __main__
class Thing: pass
def told(queue): queue.put((__name__, sys.argv))
if __name__ == "__main__":
    print(sys.argv, __name__, __file__, __package__, __cached__, type(__loader__).__name__)
    print(__spec__ and (__spec__.name, __spec__.origin, __spec__.parent), sys.path[:2])
    assert __main__.Thing is type(pickle.loads(pickle.dumps(Thing())))
    print(sorted(globals()))
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    by_name = getattr(__spec__, "name", "") == "__main__"  # such a child does not import
    child = context.Process(target=work.told if by_name else told, args=(queue,))
    child.start()
    print(queue.get())
    child.join()
    raise ValueError("shows its line")
"""
WORK = "import sys\ndef told(queue): queue.put((__name__, sys.argv))\n"


@pytest.fixture
def program(script, tmp_path):
    """The same program in each form in which Python takes one; what the command line calls it."""

    def write(form: str) -> tuple[str, ...]:
        source = script(TELLS_ALL, "program/__main__.py")
        script(WORK, "program/work.py")
        if form == "folder":
            return ("program",)
        if form == "archive":
            zipapp.create_archive(source.parent, tmp_path / "app.pyz", interpreter="/usr/bin/env python3")
            return ("./app.pyz",)
        script(WORK, "work.py")
        if form == "compiled":
            py_compile.compile(str(source), str(tmp_path / "told.pyc"), doraise=True)
            return ("told.pyc",)
        path = script(TELLS_ALL, "told.py")
        return ("-m", "told") if form == "module" else (f"../{path.parent.name}/told.py",)

    return write


@pytest.mark.parametrize("form", ["script", "module", "folder", "archive", "compiled"])
def test_whatever_python_runs_is_run_as_python_runs_it(program, tmp_path, form):
    plain, with_agent = both(*program(form), "--lr", "3", "-m", "--", "x", folder=tmp_path)
    assert "__main__" in plain.stdout
    same(plain, with_agent, 1)


@pytest.mark.parametrize(("named", "status"), [("absent.py", 2), ("-m absent", 1)])
def test_what_python_cannot_run_is_python_s_own_error(tmp_path, sockets, named, status):
    told = tmp_path / "error.json"  # for torchrun's report of the failure
    plain, with_agent = both(*named.split(), folder=tmp_path, TORCHELASTIC_ERROR_FILE=str(told))
    same(plain, with_agent, status)
    assert list(tmp_path.glob("error*")) == [told] * (status == 2)
    assert status == 1 or json.loads(told.read_text())["message"] == plain.stderr.strip()


def test_bundled_workloads_are_known_by_their_folder(tmp_path, monkeypatch):
    mine = tmp_path / "mine.py"
    mine.symlink_to(DDP.path)
    copy = tmp_path / "workloads" / "ddp.py"
    copy.parent.mkdir()
    copy.write_text("")
    monkeypatch.chdir(Path(__file__).parents[3])
    for target in (str(DDP.path), str(mine), "overlaptop/workloads/../workloads/ddp.py"):
        assert is_bundled(target, module=False)
    assert is_bundled("overlaptop.workloads.ddp", module=True)
    for target, module in ((str(copy), False), ("ddp.py", False), ("overlaptop.workloadsx", True)):
        assert not is_bundled(target, module=module)


IMPORTED = """
import importlib.machinery, runpy, sys
before = set(sys.modules)
import overlaptop.agent.script.runner
for name in sorted(set(sys.modules) - before):
    if name in sys.stdlib_module_names and not (
        importlib.machinery.BuiltinImporter.find_spec(name)
        or importlib.machinery.FrozenImporter.find_spec(name)
    ):
        print(name)
"""


@functools.cache
def names() -> tuple[str, ...]:
    """What the agent imports of the standard library that a folder could have modules in the place of."""
    words = [sys.executable, "-P", "-c", IMPORTED]
    said = subprocess.run(words, capture_output=True, text=True, check=True)
    found = tuple(said.stdout.split())
    assert {"token", "random", "logging", "signal"} <= set(found)
    return found


SHOWS_PATH = "import sys; print(sys.argv, sys.path[:2], __name__)\n"


@pytest.mark.parametrize(
    "words", [("../job/train.py",), ("-m", "train"), ("-P", "../job/train.py")], ids=" ".join
)
def test_agent_imports_no_module_of_the_start_folder(tmp_path, sockets, words):
    here = tmp_path / "here"
    for folder in (here, tmp_path / "job"):
        folder.mkdir()
        (folder / "train.py").write_text(SHOWS_PATH)
    for name in names():
        (here / f"{name}.py").write_text(f"raise SystemExit('imported {name}')\n")
    plain, with_agent = both(*words, folder=here)
    assert plain.stderr == ""
    same(plain, with_agent)


def test_script_finds_the_modules_beside_it(script, tmp_path):
    for name in names():
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "token.py").unlink()
    (tmp_path / "token").mkdir()  # no module where the standard library has one
    script("".join(f"import {name}; print({name}.__file__)\n" for name in names()))
    plain, with_agent = both("train.py", folder=tmp_path)
    assert plain.stdout.count(f"{tmp_path}/") >= len(names()) - 5  # some are there before any script
    same(plain, with_agent)


ATTACHES = "import overlaptop.agent\noverlaptop.agent.attach()\noverlaptop.agent.step()\n"
TRAINS = "print('trained')\n"

PLACE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
BROKEN = {
    # By name of a module that is found before the agent's own: its text.
    "msgspec": "raise ImportError('its C extension was built for another Python')",
    "sitecustomize": "import hashlib\ndef refuse(_): raise MemoryError\nhashlib.sha256 = refuse",
}


@pytest.mark.parametrize("module", BROKEN)
@pytest.mark.parametrize("attaches", [False, True], ids=["by -m", "by attach"])
def test_a_fault_at_the_agents_start_is_one_line(script, module, attaches):
    script(BROKEN[module] + "\n", f"broken/{module}.py")
    path = script(ATTACHES * attaches + TRAINS)
    broken = str(path.parent / "broken")
    plain, with_agent = both(str(path), folder=path.parent, PYTHONPATH=broken, **PLACE)
    told = plain if attaches else with_agent
    assert (told.returncode, told.stdout) == (0, "trained\n")
    (line,) = told.stderr.splitlines()
    assert line.startswith("overlaptop: agent disabled itself: ")
    assert line.endswith("; the job goes on unmeasured")
    assert (with_agent.returncode, with_agent.stdout) == (0, "trained\n")


BYTES = "caf\udce9"


@pytest.mark.parametrize(
    "environment", [{"TORCHELASTIC_RUN_ID": BYTES}, {"RANK": "9" * 5000}], ids=["bytes", "rank"]
)
def test_launchers_variables_end_no_job_and_start_no_thread_before_torch(script, environment):
    """Python warns of a fork beside threads, and no process with two enters a user namespace."""
    path = script("import os\nprint(len(os.listdir('/proc/self/task')))\n")
    plain, with_agent = both(str(path), folder=path.parent, **{**PLACE, **environment})
    assert plain.stdout == "1\n"
    same(plain, with_agent)

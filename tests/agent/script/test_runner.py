"""A script under the agent behaves as it does under Python alone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from overlaptop.agent.knobs.prefetch import STATE_MODULE
from overlaptop.agent.script.runner import is_bundled
from overlaptop.wire.messages import RankEnd
from overlaptop.workloads.catalog import WORKLOADS
from tests.agent.script.conftest import AGENT, both, same


def test_script_named_by_a_relative_path_is_that_script(script):
    path = script(
        "import os, sys\n"
        "print(__file__, sys.argv, sys.path[0], globals().get('__cached__', 'absent'))\n"
        "os.chdir('/')\n"
        "print(open(__file__).readline())\n"
        "raise ValueError('shows its line')\n",
        "job/train.py",
    )
    plain, with_agent = both("../job/train.py", "--lr", "3", "-m", "--", "x", folder=path.parent)
    assert plain.stdout.startswith(f"{path.parent}/")
    same(plain, with_agent, 1)


@pytest.mark.parametrize(
    "text",
    [
        # Nothing of a frozen dataclass can be set; what holds tensors cannot be compared.
        "class Own(Exception):\n    __setattr__ = __eq__ = __hash__ = None\n"
        "try:\n    raise Own('first')\nexcept Own:\n    raise Own('second')\n",
        "x = (\n",
    ],
    ids=["unlike", "syntax"],
)
def test_traceback_shows_no_frame_of_ours(script, text):
    path = script(text)
    same(*both(str(path), folder=path.parent), 1)


HOOK = """
import sys
def hook(kind, value, at):
    while at:
        print(at.tb_frame.f_code.co_name, at.tb_lineno)
        at = at.tb_next
    exec(sys.argv[1])
sys.excepthook = hook
raise ValueError("x")
"""


def test_a_scripts_excepthook_sees_its_frames_only(script):
    path = script(HOOK)
    same(*both(str(path), "sys.exit(7)", folder=path.parent), 7)


# On one line, and columns are left out below: the traceback is the same wherever the signal strikes.
SLEEPS = "import time\nprint('ready', flush=True) or time.sleep(60)\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_script_as_without_the_agent(script, number):
    path = script(SLEEPS)
    ends = []
    for agent in ((), AGENT):
        process = subprocess.Popen(
            [sys.executable, *agent, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONNODEBUGRANGES": "1"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=200)
        ends.append((process.returncode, err))
    assert ends[1] == ends[0]
    assert ends[0][0] == -number


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
import multiprocessing, os, pickle, sys
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
    child = context.Process(target=told, args=(queue,))
    child.start()
    print(queue.get())
    child.join()
    raise ValueError("shows its line")
"""


@pytest.mark.parametrize("form", ["script", "module"])
def test_whatever_python_runs_is_run_as_python_runs_it(script, tmp_path, form):
    path = script(TELLS_ALL, "told.py")
    words = ("-m", "told") if form == "module" else (str(path),)
    plain, with_agent = both(*words, "fails", folder=tmp_path)
    assert "__main__" in plain.stdout
    same(plain, with_agent, 1)


@pytest.mark.parametrize(("named", "status"), [("absent.py", 2), ("-m absent", 1)])
def test_what_python_cannot_run_is_python_s_own_error(tmp_path, sockets, named, status):
    same(*both(*named.split(), folder=tmp_path), status)


def test_bundled_workloads_are_known_by_their_folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").symlink_to(WORKLOADS[0].path)
    for path in (*(str(workload.path) for workload in WORKLOADS), str(tmp_path / "mine.py")):
        assert is_bundled(path, module=False)
    assert is_bundled("overlaptop.workloads.ddp", module=True)
    copy = tmp_path / "workloads" / "ddp.py"
    copy.parent.mkdir()
    copy.write_text("")
    for target, module in ((str(copy), False), ("ddp.py", False), ("overlaptop.workloadsx", True)):
        assert not is_bundled(target, module=module)
    monkeypatch.chdir(Path(__file__).parents[3])
    assert is_bundled("overlaptop/workloads/../workloads/ddp.py", module=False)

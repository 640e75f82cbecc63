"""Runs small jobs on the CPU in processes that have torch already: importing it takes longer than they do.

Reads one order after the other from stdin, as JSON: ``script``, ``arguments``, ``cwd`` and ``ranks``; 0 is
a process that no launcher started. Answers each with ``returncode``, ``stdout`` and ``stderr``. A rank is
forked before torch has a thread, and is told its place as torchrun tells it.
"""

import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

LIMIT_S = 100.0


def main():
    # All that a job would import: nothing of it keeps threads, which a fork would lose.
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.nn
    import torch.profiler  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


def run(script, arguments, cwd, ranks):
    """All ranks to the end; the first that fails ends the others, as under torchrun."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        places = [environment(rank, ranks) for rank in range(ranks)] if ranks else [{}]
        port = str(free_port())
        running = {
            start(script, arguments, cwd, {**place, "MASTER_PORT": port}, out, err) for place in places
        }
        status = finish(running, time.monotonic() + LIMIT_S)
        return {"returncode": status, "stdout": text_of(out), "stderr": text_of(err)}


def environment(rank, ranks):
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "localhost",
    }


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def start(script, arguments, cwd, place, out, err):
    """The pid of a new process that runs the script as its main program."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        for target, source in ((1, out), (2, err)):
            os.dup2(source.fileno(), target)
        os.environ.update(place)
        os.chdir(cwd)
        sys.argv = [script, *arguments]
        sys.path[0] = str(Path(script).parent)
        runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - this is the end of the process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def finish(running, deadline_s):
    """The exit status of the first that failed, or 0; whatever is left by then is killed."""
    status = 0
    while running:
        pid, ended = os.waitpid(-1, os.WNOHANG)
        if pid:
            running.discard(pid)
            status = status or os.waitstatus_to_exitcode(ended)
        elif time.monotonic() > deadline_s:
            status = status or 124
        else:
            time.sleep(0.005)
        if status:
            for left in running:
                os.kill(left, signal.SIGKILL)
    return status


def text_of(file):
    file.seek(0)
    return file.read().decode(errors="replace")


if __name__ == "__main__":
    main()

"""The agent on another node: run as ``-m tests.remote.inside`` instead of ``-m overlaptop.agent``."""

import ctypes
import os
import runpy

PROCESS = "OVERLAPTOP_TEST_NAMESPACES"
"""Variable: the process in whose network, and under whose host name, the agent is to be."""

if __name__ == "__main__":
    for name in ("net", "uts"):
        space = os.open(f"/proc/{os.environ[PROCESS]}/ns/{name}", os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(space, 0):
            raise OSError(ctypes.get_errno(), "cannot enter the namespace")
        os.close(space)
    runpy._run_module_as_main("overlaptop.agent")

"""What multiprocessing's forkserver imports for `tests.warm`, before it forks.

What DDP, FSDP2, optimizers, Dynamo and the tests' jobs import, some of it in their first step only. And the
agent is patient there, at the job's end and with a job that stands still: on a machine that does so for a
moment it would else end without its last words, or report a hang.
"""

import gc
from pathlib import Path

import torch._dynamo.backends.debugging
import torch.distributed.fsdp
import torch.distributed.nn
import torch.profiler  # noqa: F401

import overlaptop.agent.agent
import overlaptop.agent.hang_watch
import tests.warm  # noqa: F401

overlaptop.agent.agent.EXIT_FLUSH_S = 60.0
overlaptop.agent.hang_watch.HUNG_AFTER_S = 1000.0
gc.collect()
gc.freeze()  # else each process would write to, and so copy, all of it
threads = len(list(Path("/proc/self/task").iterdir()))
assert threads == 1, f"{threads} threads: a fork loses all but one"

"""Trains, and in the middle of it registers itself with CUPTI, as a second tool in the process would.

With --alone it does not.
"""

import sys
import time

import torch

from overlaptop.agent.sources.cupti import library
from overlaptop.agent.sources.cupti.callbacks import CallbackLog

REQUEST_AFTER_S, SECONDS = 3.0, 24.0

model = torch.nn.Linear(2048, 2048, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
batch = torch.randn(2048, 2048, device="cuda")
began_s, registered = time.monotonic(), "--alone" in sys.argv
while time.monotonic() - began_s < (SECONDS if "--alone" not in sys.argv else REQUEST_AFTER_S):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    if not registered and time.monotonic() - began_s > REQUEST_AFTER_S:
        log = CallbackLog()
        library.load().register(log.request, log.complete)
        registered = True

"""Steps of known overlap: an all-reduce, and as many matrix products as fill a share of it.

    constructed.py SHARE PRODUCTS

With a share of 0 the products come before the all-reduce, otherwise beside it. PRODUCTS 0: as many as fill
that share, by CUDA events; their number is the first line that is printed.
"""

import os
import sys

import torch
import torch.distributed as dist

STEPS = 30

share, products = float(sys.argv[1]), int(sys.argv[2])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
tensor = torch.ones(512 << 20, device="cuda", dtype=torch.bfloat16)
optimizer = torch.optim.SGD([torch.ones(1, device="cuda", requires_grad=True)])  # it ends the steps


def time_ms(call, times):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        call()
    begin.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / times


if not products:
    comm_ms, product_ms = time_ms(lambda: dist.all_reduce(tensor), 5), time_ms(lambda: a @ a, 50)
    fitting = torch.tensor(max(1, round((share or 1.0) * comm_ms / product_ms)), device="cuda")
    dist.broadcast(fitting, 0)
    products = int(fitting)
print(products, flush=True)
for _ in range(STEPS):
    work = dist.all_reduce(tensor, async_op=True) if share else None
    for _ in range(products):
        a @ a
    if work is not None:
        work.wait()
    else:
        dist.all_reduce(tensor)
    optimizer.step()
torch.cuda.synchronize()
optimizer.step()
optimizer.step()
dist.destroy_process_group()

"""What ``--help`` says of each command, above and below its options."""

from __future__ import annotations

from overlaptop.wire.lease import LEASE_S

DESCRIPTION = """\
Show, while a multi-GPU training job runs, whether its communication hides behind compute.

  torchrun --nproc-per-node=8 -m overlaptop.agent train.py    the job, an agent in each rank
  overlaptop                                                  the dashboard, in another terminal
  overlaptop me@gpu-a gpu-b                                   the same for a job on other hosts, over ssh
  overlaptop demo                                             both at once, with a bundled job
  overlaptop capture                                          torch.profiler on all ranks, for 5 steps
  overlaptop set bucket_cap_mb=50                             another bucket size for its DDP model
  overlaptop tune                                             the best bucket size, found by measurement
  overlaptop changes                                          what was changed of your jobs, and by whom
  overlaptop analyze PATH                                     the same for torch.profiler traces
  overlaptop doctor                                           what will work here, or on a HOST, and why not
  overlaptop estimate --help                                  pen and paper: overlap, bucket size, prefetch
"""

EPILOG = """\
exit status: 0, or 1 when there is no job or it failed, 2 for a usage error or when --job is needed,
130 after Ctrl-C. stdout carries data, stderr talk.
environment: OVERLAPTOP_DIR, the folder of the jobs' sockets (mode 0700); OVERLAPTOP_SSH, the ssh to run;
NO_COLOR.
"""

HOSTS = """\
HOST is whatever ssh takes (me@gpu-a, or a name of ~/.ssh/config), ssh://me@gpu-a:2222,
docker://CONTAINER, kubectl://[NAMESPACE/]POD[/CONTAINER], srun://JOBID[/NODE], local://, or
slurm:JOBID for all nodes of a Slurm job. A host that is called like one of the commands above is
ssh://demo. Nothing has to be installed there but what the job itself uses, and no port is opened.
ssh asks for passwords and host keys before the screen opens.
"""

HOSTS_BRIEF = """\
The job runs on these hosts; what HOST may be `overlaptop --help` says.
"""

DEMO_DESCRIPTION = """\
Start a bundled training job under torchrun, watch it, and end it: NCCL on the GPUs that are there,
else gloo on two processes. `python -m overlaptop.workloads` lists the workloads. What follows -- goes
to the workload: overlaptop demo ddp -- --bucket-cap-mb 100
"""

CAPTURE_DESCRIPTION = """\
Have all ranks of a running job run torch.profiler for N steps, from the same step on, and write a Chrome
trace each (rank0.json.gz, ...) to a new folder below overlaptop-captures, where the job was started. A
bundled workload obeys; a job of your own does when it was started with --control:

  torchrun --nproc-per-node=8 -m overlaptop.agent --control train.py
"""

CAPTURE_EPILOG = """\
stdout gets a line for each rank whose trace is written, stderr the progress. A record holds type
("capture"), job, id, rank, state, step (that on which the ranks agreed: the profiler warms up in it), path,
reason, live_overlap (a fraction: measured by the agent in the steps just before; null: not known) and host
(the one on which the path is, as --host names it; null: this machine). Without --json it is host:path.
exit status: 0 when all ranks have written, 1 when not, 2 for a usage error, 130 after Ctrl-C (the job and
a capture under way go on).
"""

SET_DESCRIPTION = """\
Change a setting of a running job, on all its ranks in the same step, or on none. Without NAME=VALUE: show
what can be changed of the job, to what, and what cannot just now and why. A bundled workload obeys; a job
of your own does when it was started with --control:

  torchrun --nproc-per-node=8 -m overlaptop.agent --control train.py

NAME=script gives back the value that the script gave. Among others there is:
  bucket_cap_mb  MiB a bucket of its DistributedDataParallel model, 1 to 10000. Its buckets are made anew
                 between two steps; gradients stay what they were, but for the order of sums with more than
                 two ranks. The model must be the only one, and not compiled
"""

SET_EPILOG = """\
stdout gets a line when all ranks have changed it (bucket_cap_mb 25 -> 50 at step 1234), stderr progress. A
record of --json holds type ("knob"), job, knob, value (null: no whole number, or not known), value_text,
original_text (the script's own), least, most, choices (null: all between), unit, owner, about, code (the
line that makes a value permanent), differs (true while ranks have different values) and refusal (null: it
can be changed). overlaptop changes lists what was changed, from what to what, and by whom.
The agreed step and the one or two after it, until the new buckets are in use, are left out of the figures.
exit status: 0 when all ranks have changed it, 1 when none has and when one failed, 2 for a usage error, 130
after Ctrl-C (the job and a change under way go on).
"""

CHANGES_DESCRIPTION = """\
Show the last 200 changes of the settings of your jobs on this machine, oldest first: when, from what to
what, who asked (or which search), and where one was not made, why.
"""

CHANGES_EPILOG = """\
A record of --json holds type ("change"), at_ns (Unix time), job, script, host, by, search (id; empty: a
person asked), knob, was, becomes (what was asked for where it was not made), step, outcome (changed,
refused, busy, failed, unknown) and reason. They come from changes.jsonl in the folder of the jobs' sockets,
whose older part is changes.jsonl.1, some 2 MB in all. exit status: 0; 2 for a usage error.
"""

ANALYZE_DESCRIPTION = """\
Show what torch.profiler traces say of overlap: in the dashboard, or as a table where stdout is no terminal.
PATH is one trace (.json or .json.gz), or a folder with one for each rank. ProfilerStep annotations make the
steps; without them, the whole trace is one.
"""

ANALYZE_EPILOG = """\
--json prints a line for each rank and step, as overlaptop --json does, and then one for each rank over the
whole trace, from its first GPU activity to its last: {"type": "rank", "rank", "overlap", "comm_ns",
"hidden_ns", "exposed_ns", "compute_ns", "copy_only_ns", "idle_ns"}.

--hta takes these rank lines by the rules of HolisticTraceAnalysis 0.5.0 (get_comm_comp_overlap), which
defines overlap in the same way. Four things differ:
  window         where the traces have two ProfilerSteps or more, it leaves out what was launched before the
                 trace began, and what was launched after the last ProfilerStep had begun on the GPU
  rounding       it rounds starts up and ends down to whole microseconds
  communication  only kernels called nccl*Kernel*: peer-to-peer copies are memory, and other libraries'
                 kernels (NVSHMEM, symmetric memory, DeepEP, ...) computation
  computation    not kernels with Sync or Memcpy in their names; synchronisation events with a stream are

A folder is refused as a whole when one of its traces cannot be used, or when two are of the same rank.
exit status: 0; 2 for a usage error and for a file that is no trace, is cut off or cannot be read.
"""

TUNE_DESCRIPTION = f"""\
Find the best value of a setting by measurement: on a running job, or on SCRIPT, which is started under
torchrun, with an agent that allows it, and ended afterwards. SCRIPT is a bundled workload's name, or the
path of a script of your own; what follows -- goes to it:

  overlaptop tune --range 1:400                               bucket_cap_mb of the job that runs here
  overlaptop tune train.py --nproc 2 --range 1:400 -- --epochs 3

Windows of steps with one value each are measured in turns, round by round. A value that takes longer beyond
doubt is left out from then on (after one window only where it takes far longer, for the machine may have
changed meanwhile), and more values are tried around the best. It ends when none can be better
than the best by more than 1 %, with 95 % confidence, or when the budget is spent: unless --budget says
otherwise, a third of the steps that nine values, each measured so well, would take, and at most 2,000.

The running job goes on with the value that it had before, unless --keep is given; so it does after Ctrl-C,
SIGTERM, and when this command dies: then its hub goes back after {LEASE_S:.0f} seconds of silence. A change
by somebody else meanwhile ends the search, and stays.
"""

TUNE_EPILOG = """\
stdout gets a table of the values (their step time, in what interval it lies with 95 % confidence, what the
model of the job's buckets predicts of it, and how far that is off) and at last one line: the best setting,
what it saves, how sure, which one the job has now, and the line of code that makes the best one permanent.
So it does after Ctrl-C, with what was measured until then. stderr gets the progress. With --json, a record
for each window ("window"), then one for each value ("point") and one for the result ("result"); times are
ns, shares fractions, null is unknown.
exit status: 0 when a best value is told (known: false in the result's record where the budget was spent
first), 1 when it was ended before (the job ended or refused, somebody else changed it: what was found so
far is told), 2 for a usage error, 130 after Ctrl-C and 143 after SIGTERM, once the value is what it was.
"""

DOCTOR_DESCRIPTION = """\
Say what will work: the interpreter, torch, NCCL, CUPTI and NVML, what this user may do, the socket
directory, the jobs that run, ssh, the terminal, the clock. With HOST also what will work there, how it is
reached, and how far its clock is from ours; ssh asks nothing meanwhile. One line for each finding, with
what to do. Nothing is changed, nothing needs root, and a check that hangs is given up.

  overlaptop doctor --python ~/venv/bin/python                the interpreter that trains here
  overlaptop doctor me@gpu-a gpu-b                            here and there
"""

DOCTOR_EPILOG = """\
A finding is ok, a warning (monitoring works, but shows less), a fault (it does not work) or unknown (it
could not be looked at). --python without HOST is the interpreter here: what it lacks is a fault then, and
else a warning, since jobs may have another one.
A record of --json holds type ("check"), host (as it was named; empty: here), check, status, finding and
remedy (empty: none is needed); one of type "doctor" ends each host, with works (true or false).
exit status: 0 when monitoring will work here and on each host, 1 when not, 2 for a usage error.
"""

RELAY_DESCRIPTION = """\
The far end of `overlaptop HOST`, which starts it on that host: it joins this user's jobs there, and sends
what they measure over its standard output. It opens no port, and ends when its standard input does, or
when nothing has come from there for 15 seconds. Where a key should only show the jobs of its user, its line
in ~/.ssh/authorized_keys may begin with

  restrict,command="/path/to/python -m overlaptop relay --stdio --readonly"
"""

RELAY_EPILOG = """\
stdout carries at most 512 KiB a second, and less where the line is narrow or the near end wants it so. A
workload that was started through it is ended 60 seconds after the line, if that has not come back by then.
exit status: 0, or 2 for a usage error. environment: OVERLAPTOP_DIR.
"""

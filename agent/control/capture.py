"""Captures: torch.profiler on all ranks over the same steps, one Chrome trace for each rank.

The agreed step warms the profiler up, so that its start (a second, if CUPTI has to be loaded) falls into no
recorded step. Ranks begin to record at different times and then wait for each other, so the trace contains
two unnamed steps first. The requested steps follow.
"""

import contextlib
import gzip
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overlaptop.agent.control.action import CAPTURED, Action, Outcome
from overlaptop.agent.hooks.profilers import ProfilerWatch
from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.agent.isolation.threads import signals_blocked
from overlaptop.jobs.files import check_private, temporary_folder

FOLDER = "overlaptop-captures"
SETTLING_STEPS = 3  # Steps before the first requested one: the agreed step and two unnamed ones
COMPRESSION = 6
"""gzip level: files shrink to a twentieth. A faster level saves little: saving JSON takes longer."""
CHUNK_BYTES = 1 << 20
JOB_PROFILES = "the job's own torch.profiler is running"


class Capture(Action):
    """One rank's trace of ``steps`` steps, whatever position the other ranks are at."""

    acts = "recording"
    finishes = "writing"
    done = "written"
    mark = CAPTURED

    def __init__(
        self, steps: int, watch: ProfilerWatch, write: Callable[[Callable[[str], None]], Path]
    ) -> None:
        self._steps = steps
        self._watch = watch
        self._write = write
        self._profiler: Any = None
        self._started = False
        self._annotation: Any = None
        self._warm_up_step: int | None = None
        self._results: Any = None
        self._why_none = "nothing was recorded"

    def refusal(self) -> str:
        return JOB_PROFILES if self._watch.job_profiles else ""

    def boundary(self, step: int) -> bool:
        """Warm up at the first call, record from the second on, name steps after `SETTLING_STEPS`, and stop
        after the requested ones.

        Raises RuntimeError if it fails, or has to yield to the job's own profiler.
        """
        import torch

        if self._warm_up_step is None:
            self._warm_up(step)
            return True
        if self._profiler is None:
            raise RuntimeError(self._why_none)
        if not self._started:
            self._start()
        self._end_annotation()
        settled = step - self._warm_up_step - SETTLING_STEPS
        if settled < 0:
            return True
        if settled < self._steps:
            # All tools recognize a step by this name; its number is the dashboard's.
            self._annotation = torch.profiler.record_function(f"ProfilerStep#{step}")
            self._annotation.__enter__()
            return True
        self._stop()
        return False

    def finish(self) -> Outcome:
        results, self._results = self._results, None
        if results is None:
            raise RuntimeError(self._why_none)
        return Outcome(str(self._write(results.save)))

    def abandon(self) -> None:
        """Stop without a trace: if the process ended while the profiler runs, it would crash."""
        self._stop()
        self._results = None

    def _warm_up(self, step: int) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        if threading.current_thread() is not threading.main_thread():
            # No thread could stop it at the job's end.
            raise RuntimeError("its steps run beside the main thread, where no profiler can be stopped")
        if self._watch.job_profiles:
            raise RuntimeError(JOB_PROFILES)
        self._warm_up_step = step
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        # Shapes give collectives their sizes. Stacks cost the most, so none are recorded.
        self._profiler = profile(activities=activities, record_shapes=True)
        self._watch.yield_to_job = self._give_way
        with self._watch.ours():
            signals_blocked(self._profiler.prepare_trace)  # Kineto and CUPTI start threads

    def _give_way(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # ours cannot be stopped from here
        self._why_none = "the job's own torch.profiler began"
        try:
            self.abandon()
        except Exception as fault:  # the job's call must go on even if ours fails
            if raised_by_job(fault):
                raise

    def _start(self) -> None:
        self._started = True
        with self._watch.ours():
            signals_blocked(self._profiler.start_trace)

    def _end_annotation(self) -> None:
        annotation, self._annotation = self._annotation, None
        if annotation is not None:
            annotation.__exit__(None, None, None)

    def _stop(self) -> None:
        self._watch.yield_to_job = None
        if self._profiler is None:
            return
        if not self._started:
            self._start()  # as torch does: a profiler that only warms up cannot be stopped
        self._end_annotation()
        profiler, self._profiler = self._profiler, None
        with self._watch.ours():
            profiler.stop_trace()
        self._results = profiler.profiler.kineto_results


def write_trace(
    save: Callable[[str], None], cwd: Path, key: str, rank: int, notice: Callable[[str, str], None]
) -> Path:
    """Save a trace and compress it. Only a complete file gets the name ``rank<r>.json.gz``.

    The job's ranks share a private folder, ``key``, below ``cwd``. If it cannot be made there, it lies
    below the temporary directory, and ``notice(level, text)`` says so.

    ``save(path)`` writes JSON. torch's version holds the GIL (about 130 MB/s) and writes to ``path.tmp``
    first. It reports no failure: then ``path`` does not exist. Raises OSError.
    """
    folder = cwd / FOLDER / key
    try:
        _make_below_the_job(folder)
    except OSError as fault:
        folder = temporary_folder() / f"{FOLDER}-{os.geteuid()}" / key
        try:
            check_private(folder.parent, create=True)
            check_private(folder, create=True)
        except OSError as second:
            raise OSError(f"{_reason(fault)}; {_reason(second)}") from second
        notice("warning", f"traces are written to {folder.parent}: {_reason(fault)}")
    name = f"rank{rank}.json.gz"
    plain, packed = folder / f".rank{rank}.json.part", folder / f".{name}.part"
    try:
        save(str(plain))
        if not plain.exists() or not _ends_whole(plain):
            free_mib = shutil.disk_usage(folder).free >> 20
            raise OSError(f"torch could not write its trace to {folder} ({free_mib:,} MiB free there)")
        with plain.open("rb") as source, gzip.open(packed, "wb", COMPRESSION) as target:
            shutil.copyfileobj(source, target, CHUNK_BYTES)
        packed.rename(folder / name)
    finally:
        for part in (plain, plain.with_name(f"{plain.name}.tmp"), packed):
            _remove(part)
    return folder / name


def _make_below_the_job(folder: Path) -> None:
    folder.parent.mkdir(0o700, exist_ok=True)
    check_private(folder, create=True)
    with contextlib.suppress(FileExistsError), (folder.parent / ".gitignore").open("xb") as ignore:
        ignore.write(b"*\n")  # keep traces out of commits, as other tools' caches do


def _remove(part: Path) -> None:
    """Truncate and delete: torch keeps a failed file open, which holds its space until the job ends."""
    with contextlib.suppress(FileNotFoundError):
        os.truncate(part, 0)
        part.unlink()


def _reason(fault: OSError) -> str:
    return f"{fault.filename}: {fault.strerror}" if fault.filename and fault.strerror else str(fault)


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 64))
        return file.read().rstrip().endswith(b"}")

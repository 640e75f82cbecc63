"""The hub's black box: its history as a recording, at a hang, a failure, a finding and the job's end."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import groupby

from overlaptop.hub.history import FromRank, JobHistory
from overlaptop.hub.log import log_line
from overlaptop.recording import black_boxes
from overlaptop.recording.black_boxes import ENDED, FAILED, FOUND, HUNG
from overlaptop.wire.codec import encode, frame
from overlaptop.wire.messages import HubStatus, RankEnd, RankStalled, Welcome

SETTLE_S = 5.0  # Wait after the first rank hangs or fails, until the others have reported
AGAIN_S = 120.0  # Minimum time between two recordings of one kind. The later replaces the earlier.
_HUNG_FOR_LONG = "hung for long"
"""A hang's second and last recording: it is long enough to be called a hang."""
MOST_FOUND = 4  # Maximum recordings of findings for one hub, each of another rule
_MOST_STATUSES = 1000
"""Maximum status messages. A job that stalled for longer does not get one for each second."""
_S = 1_000_000_000


class HubBlackBox:
    """Writes the history after a hang, a failure, a finding or the end. Logs a failed write once a hub."""

    def __init__(
        self,
        welcome: Welcome,
        history: JobHistory,
        *,
        commands: Callable[[], Sequence[bytes]],
        status: Callable[[], HubStatus],
    ) -> None:
        self._welcome, self._history = welcome, history
        self._commands, self._status = commands, status
        self._due_s: dict[str, float] = {}
        self._written_s: dict[str, float] = {}
        self._hung: set[int] = set()
        self._found: set[str] = set()  # Rules of the findings whose recording is written or due
        self._refused = False

    def see(self, message: FromRank, now_s: float) -> None:
        if isinstance(message, RankStalled) and message.hung:
            if not self._hung:
                self._due_s |= {HUNG: now_s + SETTLE_S, _HUNG_FOR_LONG: now_s + SETTLE_S + AGAIN_S}
            self._hung.add(message.rank)
        elif isinstance(message, RankStalled | RankEnd):
            self._hung.discard(message.rank)
            if not self._hung:
                self._due_s.pop(HUNG, None)
                self._due_s.pop(_HUNG_FOR_LONG, None)
        if isinstance(message, RankEnd) and message.failed:
            self._due_s.setdefault(FAILED, now_s + SETTLE_S)

    def ask(self, rule: str, now_s: float) -> None:
        """Request a recording for the first finding of this rule, of MOST_FOUND rules."""
        if rule not in self._found and len(self._found) < MOST_FOUND:
            self._found.add(rule)
            self._due_s[FOUND + rule] = now_s

    def tick(self, now_s: float) -> None:
        for occasion in [each for each, due_s in self._due_s.items() if now_s >= due_s]:
            del self._due_s[occasion]
            if now_s - self._written_s.get(occasion, float("-inf")) >= AGAIN_S:
                self._written_s[occasion] = now_s
                self._write(HUNG if occasion == _HUNG_FOR_LONG else occasion, now_s)

    def end(self, now_s: float) -> None:
        self._write(ENDED, now_s)
        black_boxes.forget_old()

    def _write(self, occasion: str, now_s: float) -> None:
        if self._refused:
            return
        try:
            from overlaptop.recording.writer import RecordingWriter

            path = black_boxes.path_of(self._welcome.job, self._welcome.started_ns, occasion)
            new = path.with_name(f"{path.name}.new")
            new.unlink(missing_ok=True)
            try:
                with closing(RecordingWriter(new)) as writer:
                    for at_ns, payloads in self._batches(now_s):
                        writer.add_frames(at_ns, "", b"".join(map(frame, payloads)))
                new.replace(path)
            finally:
                new.unlink(missing_ok=True)
        except Exception as error:  # noqa: BLE001 - the hub goes on after any error
            self._refused = True
            how = " (pip install 'overlaptop[record]')" * isinstance(error, ImportError)
            log_line(f"no black box: {error}{how}")

    def _batches(self, now_s: float) -> list[tuple[int, list[bytes]]]:
        """Return the history as a reader would have received it, by second, with the Unix time of each."""
        now_ns, status = time.time_ns(), self._status()
        running = encode(HubStatus(now_ns, status.ranks_connected, 0, job_ended=False))
        first, timed, last = self._history.timed(now_s)
        seconds = {
            age: [payload for _, payload in of_second]
            for age, of_second in groupby(timed, key=lambda each: int(each[0]))
        }
        oldest = max(seconds, default=0)
        # A hub sends its status each second. A second with nothing else shows a stalled job.
        idle = range(0, oldest + 1, max(1, oldest // _MOST_STATUSES))
        batches = [
            (now_ns - age * _S, [*seconds.get(age, ()), running])
            for age in sorted({*seconds, *idle}, reverse=True)
        ]
        batches[0][1][:0] = [encode(self._welcome), *first]
        batches[-1][1][-1:] = [*last, *self._commands(), encode(status)]
        return batches

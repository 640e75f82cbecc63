"""The recording that the user begins and ends on the screen."""

from overlaptop.fleet.recorder import Recorder, default_path
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.text import reason


class JobRecording:
    """Records the shown job. A failure ends the recording and is kept as news."""

    def __init__(self, recorder: Recorder) -> None:
        """``recorder``: the session's tap."""
        self._recorder = recorder
        self._news = ""

    def begin_or_end(self, job: str | None) -> None:
        if self._recorder.size_bytes is not None:
            self.end()
            return
        path = default_path(job)
        try:
            self._recorder.begin(path)
            self._news = f"recording to {path}"
        except ImportError:
            self._news = "no recording without mcap and zstandard: pip install 'overlaptop[record]'"
        except OSError as fault:
            self._news = f"no recording: {path}: {reason(fault)}"

    def write(self, snapshot: Snapshot) -> None:
        try:
            self._recorder.write(snapshot)
        except OSError as fault:
            self.end(f"the recording ended: {reason(fault)}; ")

    def end(self, why: str = "") -> None:
        if self._recorder.size_bytes is not None:
            try:
                self._recorder.end()
            except OSError as fault:
                why = why or f"the end of the recording is missing: {reason(fault)}; "
            self._news = f"{why}{self._recorder.summary}"

    def take_news(self) -> str:
        """Return one line about the recording, once; empty: there is no news."""
        news, self._news = self._news, ""
        return news

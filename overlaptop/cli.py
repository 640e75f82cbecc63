"""The command line: runs the command, and turns failures into one line and a status."""

import errno
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

_PACKAGES = {"msgpack": "msgpack", "msgspec": "msgspec", "numpy": "numpy", "shtab": "shtab",
             "textual": "textual", "zmq": "pyzmq", "perfetto": "'overlaptop[export]'",
             "prometheus_client": "'overlaptop[metrics]'", "mcp": "'overlaptop[mcp]'",
             "mcap": "'overlaptop[record]'", "zstandard": "'overlaptop[record]'"}  # fmt: skip
"""Modules that we need, and what pip calls them, or the extra that brings them."""
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` asks for and return its exit status. None: the process's own command
    line, and Ctrl-C ends the process at any moment.
    """
    if argv is not None:
        return _run(argv)
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # as nohup sets it
        return _run(sys.argv[1:])
    signal.signal(signal.SIGINT, _interrupt)
    try:
        return _run(sys.argv[1:])
    finally:
        # All is undone, and the interpreter would print an exception.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt. In an import, end at once: msgspec crashes if an exception strikes it."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _run(words: Sequence[str]) -> int:
    from overlaptop.commands.output import CommandError, drop_output, print_message, replace_unencodable
    from overlaptop.commands.parser import parse
    from overlaptop.jobs.folder import JobFolderError
    from overlaptop.jobs.sockets import fill_standard

    try:
        fill_standard()
        replace_unencodable()
        try:
            options = parse(words)
            status: int = options.run(options)
            return status
        finally:
            if sys.stdout is not None:  # it was closed when we started
                sys.stdout.flush()
    except CommandError as failure:
        print_message(str(failure))
        return failure.status
    except JobFolderError as failure:
        print_message(str(failure))
        return 1
    except ModuleNotFoundError as fault:
        missing = (fault.name or "").partition(".")[0]
        if missing not in _PACKAGES:
            raise
        print_message(f"{sys.executable} has no {missing}: pip install {_PACKAGES[missing]}")
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        drop_output()  # the reader has had enough (`| head`)
        return 0
    except OSError as fault:
        if fault.errno not in _UNWRITABLE or fault.filename is not None:
            raise
        drop_output()
        with suppress(OSError):  # stderr may be the same file
            print_message(f"stdout cannot be written: {os.strerror(fault.errno).lower()}")
        return 1

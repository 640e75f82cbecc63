"""The command line: runs the command, and turns failures into one line and a status."""

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from overlaptop.commands.output import CommandError, drop_output, print_message, replace_unencodable
from overlaptop.commands.parser import parse
from overlaptop.jobs.descriptors import fill_standard

_PACKAGES = {"msgpack": "msgpack", "msgspec": "msgspec", "numpy": "numpy", "shtab": "shtab",
             "textual": "textual", "zmq": "pyzmq", "perfetto": "'overlaptop[export]'",
             "prometheus_client": "'overlaptop[metrics]'", "mcp": "'overlaptop[mcp]'",
             "mcap": "'overlaptop[record]'", "zstandard": "'overlaptop[record]'"}  # fmt: skip
"""Modules that we need, and what pip calls them, or the extra that brings them."""
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (None: ours) asks for and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    fill_standard()
    replace_unencodable()
    try:
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
    except ModuleNotFoundError as fault:
        missing = (fault.name or "").partition(".")[0]
        if missing not in _PACKAGES:
            raise
        print_message(f"{sys.executable} has no {missing}: pip install {_PACKAGES[missing]}")
        return 1
    except KeyboardInterrupt:
        return 130
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

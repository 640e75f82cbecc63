"""overlaptop: does communication hide behind compute, live, while the job trains."""

import os
import sys

__version__ = "0.1.0"


def _is_main() -> bool:
    """Whether Python imports this for ``python -m overlaptop...``, and has run nothing of it yet."""
    if sys.argv[:1] != ["-m"]:  # its value until the module is found
        return False
    frame = sys._getframe()  # noqa: SLF001 - the command line could be written in too many ways
    while frame.f_code.co_name != "_run_module_as_main":
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return str(frame.f_locals.get("mod_name")).partition(".")[0] == __name__


def _take_off_the_working_directory() -> None:
    """`python -m` searches it first: a secrets.py or logging.py in it would be the standard library's."""
    if not sys.flags.safe_path:
        try:
            if sys.path[0] == os.getcwd():  # noqa: PTH109 - pathlib could be one of them
                del sys.path[0]
        except OSError:  # it was deleted, and Python has put nothing there
            pass


STARTED_BY_DASH_M = _is_main()
"""Then nothing of the working directory is imported, until there is a script whose path has it."""

if STARTED_BY_DASH_M:
    _take_off_the_working_directory()

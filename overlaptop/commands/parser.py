"""The parser of the whole command line."""

import argparse
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any, NoReturn

from overlaptop import __version__, text
from overlaptop.commands import COMMANDS

USAGE = "overlaptop [HOST ...] [options]\n       overlaptop COMMAND [options]"
DESCRIPTION = """\
Show, while a multi-GPU training job runs, whether its communication hides behind compute.

  torchrun --nproc-per-node=8 -m overlaptop.agent train.py    the job, an agent in each rank
  overlaptop                                                  the dashboard, in another terminal
  overlaptop me@gpu-a gpu-b                                   the same for a job on other hosts, over ssh
  overlaptop demo                                             both at once, with a bundled job
"""
EPILOG = """\
`overlaptop COMMAND --help` explains a command; `overlaptop watch --help` the dashboard's options and HOST.
exit status: 0, or 1 when there is no job or it failed, 2 for a usage error or when --job is needed,
130 after Ctrl-C. stdout carries data, stderr messages. `overlaptop --json-schema` describes the data.
environment: OVERLAPTOP_DIR, the folder of the jobs' sockets (mode 0700); OVERLAPTOP_SSH, the ssh to run;
NO_COLOR.
"""
_OF_NO_COMMAND = ("-h", "--help", "--version")


class Parser(argparse.ArgumentParser):
    """Leaves the lines of its texts as they are, and takes no option by its beginning."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options
        )

    def refuse(self, unknown: Sequence[str], hint: str) -> NoReturn:
        meant = text.did_you_mean(unknown[0], self._option_string_actions)
        self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}{meant}")


def make_parser(complete: Collection[str] = COMMANDS) -> tuple[Parser, dict[str, Parser]]:
    """Return the parser, and those of its commands by name. Imports only the modules in `complete`."""
    parser = Parser(prog="overlaptop", usage=USAGE, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"overlaptop {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", prog="overlaptop")
    made = {
        name: commands.add_parser(name, help=about) if about else commands.add_parser(name)
        for name, about in COMMANDS.items()
    }
    for name in complete:
        module = import_module(f"overlaptop.commands.{name}")
        made[name].description, made[name].epilog = module.DESCRIPTION, getattr(module, "EPILOG", None)
        module.add_arguments(made[name])
        made[name].set_defaults(run=module.run)
    return parser, made


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. `script_words`: those after ``--``, in a command that starts a script."""
    if words and words[0] in _OF_NO_COMMAND:
        make_parser(())[0].parse_args(words[:1])
    name, rest = (words[0], words[1:]) if words and words[0] in COMMANDS else ("watch", words)
    # The command's own parser takes the words: argparse's subparsers allow no option between two HOSTs.
    parser = make_parser((name,))[1][name]
    takes_script = parser.get_default("script_words") is not None
    cut = rest.index("--") if takes_script and "--" in rest else len(rest)
    options, unknown = parser.parse_known_intermixed_args(rest[:cut])
    if unknown:
        parser.refuse(unknown, "; a script's or workload's follow --" if takes_script else "")
    if takes_script:
        options.script_words = list(rest[cut + 1 :])
    return options

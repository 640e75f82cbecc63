"""``overlaptop completion``: a shell script that completes command lines."""

import argparse
from pathlib import Path

DESCRIPTION = """\
Print a script with which SHELL completes overlaptop's commands and options.

  eval "$(overlaptop completion bash)"                       in ~/.bashrc
  eval "$(overlaptop completion zsh)"                        in ~/.zshrc, after compinit
"""
SHELLS = ("bash", "zsh", "tcsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(options: argparse.Namespace) -> int:
    import shtab

    from overlaptop.commands.output import print_data
    from overlaptop.commands.parser import make_parser

    parser, commands = make_parser()
    # argparse has no public list of its actions.
    for command in commands.values():
        for action in command._actions:  # noqa: SLF001
            if action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            if command is commands["watch"] and action.option_strings and action.dest != "help":
                parser._add_action(action)  # noqa: SLF001 - `watch` is implied
    print_data(shtab.complete(parser, options.shell))
    return 0

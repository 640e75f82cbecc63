"""``overlaptop doctor``: what will work here and on other hosts, and what to do where it does not."""

from __future__ import annotations

from overlaptop.console.arguments import add_hosts, hosts_of, make_parser

DESCRIPTION = """\
Say what will work: the interpreter, torch, NCCL, CUPTI and NVML, what this user may do, the socket
directory, the jobs that run, ssh, the terminal, the clock. With HOST also what will work there, how it is
reached, and how far its clock is from ours; ssh asks nothing meanwhile. One line for each finding, with
what to do. Nothing is changed, nothing needs root, and a check that hangs is given up.

  overlaptop doctor --python ~/venv/bin/python                the interpreter that trains here
  overlaptop doctor me@gpu-a gpu-b                            here and there
"""
EPILOG = """\
A finding is ok, a warning (monitoring works, but shows less), a fault (it does not work) or unknown (it
could not be looked at). --python without HOST is the interpreter here: what it lacks is a fault then, and
else a warning, since jobs may have another one.
A record of --json holds type ("check"), host (as it was named; empty: here), check, status, finding and
remedy (empty: none is needed); one of type "doctor" ends each host, with works (true or false).
exit status: 0 when monitoring will work here and on each host, 1 when not, 2 for a usage error.
"""


def run(words: list[str]) -> int:
    """Look, and print the findings."""
    usage = "overlaptop doctor [HOST ...] [--python PATH] [--json]"
    parser = make_parser("overlaptop doctor", DESCRIPTION, EPILOG, usage)
    parser.add_argument("--json", action="store_true", help="print a record for each finding")
    add_hosts(parser, as_words=True)
    options = parser.parse_intermixed_args(words)
    if options.rate:
        parser.error("--rate is for watching a host")
    python = ""
    if not (options.host or options.hosts or options.via):
        python, options.python = options.python, ""
    hosts = hosts_of(options)
    from overlaptop.console import doctor

    return doctor.run(python, hosts, as_json=options.json)

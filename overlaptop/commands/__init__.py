"""The command line: one command a file, with its help, its options (``add_arguments``) and its ``run``.

Nothing here imports torch, and Textual is imported only to open the dashboard.
"""

COMMANDS = {
    "watch": "open the dashboard, the default; also --once, --json and --list",
    "demo": "start a bundled job and watch it",
    "capture": "run torch.profiler on all ranks for 5 steps",
    "set": "change a setting of the running job, such as DDP's bucket size",
    "tune": "find the best value of a setting by trials",
    "slack": "find the ranks that the step depends on",
    "changes": "list the changes of your jobs, and who made them",
    "record": "record a running job into a file",
    "replay": "show a recording in the dashboard",
    "report": "print how a job went: figures, late ranks, findings, changes",
    "compare": "print what differs between two runs, beyond noise",
    "analyze": "show torch.profiler traces of any job",
    "export": "write a job or traces for Perfetto, Chrome, a browser or a spreadsheet",
    "exporter": "serve metrics of running jobs to Prometheus",
    "mcp": "let AI agents read running jobs",
    "key": "make the key for jobs with --gather",
    "doctor": "check what works here, or on a HOST, and why not",
    "completion": "print a script that completes command lines",
    "relay": "",
}
"""Help text by command, the name of its module. Empty: not listed, as only another host starts it."""

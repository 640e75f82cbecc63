"""The command line: one command a file, with its help, its options (``add_arguments``) and its ``run``.

Nothing here imports torch, and Textual is imported only to open the dashboard.
"""

COMMANDS = {
    "watch": "the dashboard, --once, --json and --list; implied where no command is given",
    "demo": "start a bundled job and watch it",
    "capture": "torch.profiler on all ranks, for 5 steps",
    "set": "change a setting, such as the bucket size of its DDP model",
    "tune": "find the best bucket size by trials",
    "slack": "which ranks the step depends on",
    "changes": "list the changes of your jobs, and who made them",
    "record": "write what a job's dashboard would show into a file",
    "replay": "a recording in the dashboard, or as --once and --json",
    "report": "how a job went: figures, late ranks, findings, changes",
    "compare": "what differs between two runs, beyond noise",
    "analyze": "the same for torch.profiler traces",
    "export": "a job or traces as files for Perfetto, Chrome, a browser or a spreadsheet",
    "exporter": "metrics of running jobs for Prometheus",
    "mcp": "running jobs for AI agents, read-only",
    "key": "make the key for jobs with --gather",
    "doctor": "what will work here, or on a HOST, and why not",
    "completion": "print a script that completes command lines",
    "relay": "",
}
"""Help text by command, which is also the name of its module. Empty: not listed, since only a dashboard on
another host starts it."""

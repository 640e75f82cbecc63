"""The rules, one a file. Each has ``look``: Evidence -> Findings.

docs/findings.md says when each finding is raised. A rule about a late rank asks `suspects` of its cause.
"""

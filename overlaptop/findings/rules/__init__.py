"""The rules, one a file. Each has ``look``: Evidence -> Findings."""

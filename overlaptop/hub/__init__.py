"""The hub of a job on one node: ranks on one side, dashboards on the other."""

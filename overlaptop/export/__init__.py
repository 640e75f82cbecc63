"""Exports of a job for other tools: Perfetto, Chrome, HTML, CSV, Prometheus.

Each writer of files takes a `JobTimeline`, so that no two files of one job can disagree.
"""

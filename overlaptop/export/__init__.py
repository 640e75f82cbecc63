"""What a job did, in files and protocols of other tools: Perfetto, Chrome, HTML, CSV, Prometheus.

Each writer takes a `JobTimeline`, so that no two files of one job can disagree.
"""

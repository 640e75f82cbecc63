"""Telemetry of a rank's machine: GPU links and clocks by NVML, and CPU placement of the process."""

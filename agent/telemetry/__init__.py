"""What the machine under a rank does: its GPU's links and clocks by NVML, and where its process may run."""

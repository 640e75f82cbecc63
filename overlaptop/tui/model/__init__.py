"""State of the screens, and what keys do to the job. No widgets."""

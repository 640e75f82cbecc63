"""What is shown and what keys do to the job. No drawing and no widget in it."""

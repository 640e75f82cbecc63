"""What is shown and what keys do to the job. No widget in it."""

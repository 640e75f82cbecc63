"""What to change about a job, and what that would bring: models, advice. No I/O, torch or Textual."""

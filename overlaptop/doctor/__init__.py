"""What will work on a machine, and what to do where something does not. Nothing is changed by looking."""

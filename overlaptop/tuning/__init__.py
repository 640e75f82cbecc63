"""The search for a knob's best value on a running job."""

"""The search for a knob's best value."""

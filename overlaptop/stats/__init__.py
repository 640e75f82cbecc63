"""What noisy figures of steps say: noise, drift, and a change before and after. Pure numpy."""

"""Statistics of noisy steps: noise, drift, and a change before and after. Pure numpy."""

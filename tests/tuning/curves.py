"""Steps of a job whose curve is known: what a search is judged by, as the benchmark of that name has it."""

import importlib.util
import sys
from pathlib import Path

_PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "search_simulated.py"
_SPEC = importlib.util.spec_from_file_location("overlaptop_search_simulated", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
simulated = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = simulated  # its dataclasses look themselves up there
_SPEC.loader.exec_module(simulated)

BEFORE, CURVES, GRID = simulated.BEFORE, simulated.CURVES, simulated.GRID
KINDS, SWITCH_STEPS = simulated.KINDS, simulated.SWITCH_STEPS
Machine, Noise = simulated.Machine, simulated.Noise
regret, searched, u_shaped = simulated.regret, simulated.searched, simulated.u_shaped

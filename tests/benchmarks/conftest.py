import sys
from pathlib import Path

# Scripts import one another by name.
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

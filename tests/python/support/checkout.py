"""The root folder of the repository, or of the test bundle that `make bundle` makes from the repository."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

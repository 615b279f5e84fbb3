"""Where the checkout begins, or the bundle that was made of it: both have these tests in `tests/python`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

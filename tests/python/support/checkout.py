"""The root folder of the checkout, or of the bundle made from it. Both have these tests in `tests/python`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

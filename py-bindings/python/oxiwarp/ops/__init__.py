"""The operators, one file each: schema, fake, public function."""

from .add_rms_norm import add_rms_norm
from .rms_norm import rms_norm

__all__ = ["add_rms_norm", "rms_norm"]

"""The operators, one file each: schema, fake, public function."""

from .add_rms_norm import add_rms_norm
from .cross_entropy import cross_entropy
from .rms_norm import rms_norm
from .softmax import softmax

__all__ = ["add_rms_norm", "cross_entropy", "rms_norm", "softmax"]

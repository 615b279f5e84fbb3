"""The operators, one file each: schema, fake, public function."""

from .add_rms_norm import add_rms_norm
from .qk_norm_rope import qk_norm_rope
from .rms_norm import rms_norm
from .rope import rope, rope_1d, rope_3d

__all__ = ["add_rms_norm", "qk_norm_rope", "rms_norm", "rope", "rope_1d", "rope_3d"]

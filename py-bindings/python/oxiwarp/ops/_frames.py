"""Modulations with one row per frame. The operators `ada_norm`, `modulate`, `gated_residual` and
`gated_residual_ada_norm` take such scales, shifts and gates.

For rows `x` of shape `[..., S, N]`, such a modulation has the shape `[..., F, 1, N]`. F must divide S. A frame
consists of S / F consecutive tokens.
"""

from typing import NamedTuple, TypeVar

from torch import Tensor

T = TypeVar("T", Tensor, Tensor | None)


class Frames(NamedTuple):
    """The division of rows into frames. The rows have `dim` dimensions and `tokens` tokens, in `frames` frames."""

    dim: int
    tokens: int
    frames: int

    def split(self, tensor: T) -> T:
        """Return a view with one dimension for the frames and one for the tokens of a frame.

        `tensor` broadcasts to the rows. A tensor that does not is returned unchanged, so that the operator can
        raise an error.
        """
        if tensor is None or not 1 < tensor.dim() <= self.dim:
            return tensor
        if tensor.shape[-2] == 1:
            return tensor.unsqueeze(-2)
        fits = tensor.shape[-2] == self.tokens
        return tensor.unflatten(-2, (self.frames, self.tokens // self.frames)) if fits else tensor


def frames_of(x: Tensor, *modulations: Tensor | None) -> Frames | None:
    """Return the division of the rows `x` into frames, or None if no modulation has one row per frame."""
    dim = x.dim()
    for modulation in modulations:
        if modulation is not None and modulation.dim() == dim + 1 and dim > 1 and modulation.shape[-2] == 1:
            frames, tokens = modulation.shape[-3], x.shape[-2]
            if frames > 0 and tokens % frames == 0:
                return Frames(dim, tokens, frames)
    return None


__all__ = ["Frames", "frames_of"]

"""A custom node of ComfyUI that makes a diffusion model run on oxiwarp kernels while it samples.

Copy this folder to `ComfyUI/custom_nodes/oxiwarp`, and install the oxiwarp wheel in ComfyUI's Python environment. The
node "oxiwarp patch" takes a MODEL and returns a MODEL. Connect it directly before the sampler.
"""

import logging
from typing import Any

import oxiwarp

KEY = "oxiwarp"


class OxiwarpPatch:
    """Patches the diffusion model for the length of each sampling run.

    Other clones of the model in the workflow share its modules, so the patch ends with the run. The node patches when
    the weights are loaded, because ComfyUI decides then which weights it casts or moves in each call.
    """

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "add"
    CATEGORY = "oxiwarp"
    DESCRIPTION = "Replaces norms, activations and known blocks by GPU kernels of oxiwarp. The log shows a report."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """Return the inputs that ComfyUI shows, with their choices and tooltips."""
        exactness = "exact: agrees with the original modules as closely as the kernels can. fast: fewer roundings."
        return {"required": {"model": ("MODEL",), "mode": (("exact", "fast"), {"tooltip": exactness})}}

    def add(self, model: Any, mode: str) -> tuple[Any]:
        """Return a clone of `model` whose sampling runs are patched."""
        from comfy.patcher_extension import WrappersMP

        clone = model.clone()
        clone.remove_wrappers_with_key(WrappersMP.SAMPLER_SAMPLE, KEY)  # of an earlier node of this kind
        clone.add_wrapper_with_key(WrappersMP.SAMPLER_SAMPLE, KEY, Sampling(mode))
        return (clone,)


class Sampling:
    """The wrapper that ComfyUI calls around the sampler: it patches before the first step and restores afterwards."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.printed = False

    def __call__(self, executor: Any, guider: Any, *args: Any, **kwargs: Any) -> Any:
        model = guider.inner_model.diffusion_model
        # The kernels read weights as they are stored. Modules with one of these functions change them in each
        # call, for example by a LoRA.
        skip = [
            name
            for name, module in model.named_modules()
            if getattr(module, "weight_function", None) or getattr(module, "bias_function", None)
        ]
        with oxiwarp.patched(model, mode=self.mode, skip=skip, allow_empty=True) as report:
            if not self.printed:
                logging.info("%s", report)
                self.printed = True
            return executor(guider, *args, **kwargs)


NODE_CLASS_MAPPINGS = {"OxiwarpPatch": OxiwarpPatch}
NODE_DISPLAY_NAME_MAPPINGS = {"OxiwarpPatch": "oxiwarp patch"}

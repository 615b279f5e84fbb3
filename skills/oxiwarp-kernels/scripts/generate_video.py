"""Generate a video with LTX-Video, unpatched or with oxiwarp's kernels, eager or compiled.

    python generate_video.py --use-optimized-kernels --compile
    python generate_video.py --no-optimized-kernels

If the model's weights are not available (no network, no cache), the same classes run with seeded random weights.
The times are then the same, but the video is noise.
"""

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from common import console, count, default_device, plot, show
from diffusers import AutoencoderKLLTXVideo, FlowMatchEulerDiscreteScheduler, LTXPipeline, LTXVideoTransformer3DModel

import oxiwarp
from oxiwarp.cli.bench.measure import synchronize

MODEL = "Lightricks/LTX-Video"
SMALL_TRANSFORMER = dict(
    num_layers=1, num_attention_heads=2, attention_head_dim=16, cross_attention_dim=32, caption_channels=24
)
SMALL_VAE = dict(
    block_out_channels=(8, 8, 8, 8),
    decoder_block_out_channels=(8, 8, 8, 8),
    layers_per_block=(1, 1, 1, 1, 1),
    decoder_layers_per_block=(1, 1, 1, 1, 1),
)


def load(options: argparse.Namespace, device: torch.device, dtype: torch.dtype) -> tuple[LTXPipeline, dict[str, Any]]:
    """Return the pipeline and the prompt arguments of its call."""
    if not options.small:
        try:
            pipe = LTXPipeline.from_pretrained(options.model, torch_dtype=dtype).to(device)
            return pipe, dict(prompt=[options.prompt] * options.batch_size)
        except OSError as error:
            console.print(f"no weights of {options.model} ({str(error).splitlines()[0]}): random ones")
    torch.manual_seed(0)
    with device:
        transformer = LTXVideoTransformer3DModel(**(SMALL_TRANSFORMER if options.small else {}))
        vae = AutoencoderKLLTXVideo(**(SMALL_VAE if options.small else {}))
    pipe = LTXPipeline(FlowMatchEulerDiscreteScheduler(), vae, None, None, transformer).to(device, dtype)
    shape, generator = (options.batch_size, 128, transformer.config.caption_channels), torch.Generator().manual_seed(1)
    embeds = [torch.randn(shape, generator=generator).to(device, dtype) for _ in range(2)]
    mask = torch.ones(shape[:2], device=device, dtype=torch.bool)
    return pipe, dict(
        prompt_embeds=embeds[0],
        prompt_attention_mask=mask,
        negative_prompt_embeds=embeds[1],
        negative_prompt_attention_mask=mask,
    )


def generate(pipe: LTXPipeline, what: dict[str, Any], options: argparse.Namespace, device: torch.device) -> Any:
    """Return the frames and the seconds of each step."""
    times, started = [], perf_counter()

    def on_step(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        nonlocal started
        synchronize(device)
        times.append(perf_counter() - started)
        started = perf_counter()
        return values

    frames = pipe(
        **what,
        height=options.height,
        width=options.width,
        num_frames=options.num_frames,
        num_inference_steps=options.steps,
        generator=torch.Generator("cpu").manual_seed(options.seed),
        callback_on_step_end=on_step,
    ).frames
    return frames, times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kernels = parser.add_mutually_exclusive_group()
    kernels.add_argument("--use-optimized-kernels", dest="kernels", action="store_true", default=True)
    kernels.add_argument("--no-optimized-kernels", dest="kernels", action="store_false")
    parser.add_argument("--compile", action="store_true", help="torch.compile, with or without the kernels")
    parser.add_argument("--mode", choices=("exact", "fast"), default="exact", help="of oxiwarp.patch")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--prompt", default="A rusty gear turns, close-up, warm light")
    parser.add_argument("--batch-size", type=count, default=1)
    parser.add_argument("--num-frames", type=count, default=49)
    parser.add_argument("--height", type=count, default=512)
    parser.add_argument("--width", type=count, default=768)
    parser.add_argument("--steps", type=count, default=30)
    parser.add_argument("--warmup-iterations", type=int, default=1, help="whole videos made before the timed one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="video.gif")
    parser.add_argument("--plot", default="generate_video.png")
    parser.add_argument("--small", action="store_true", help="a tiny model, for a test")
    options = parser.parse_args()

    device = default_device()
    pipe, what = load(options, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    if options.kernels:
        console.print(oxiwarp.patch(pipe, mode=options.mode, cpu_kernels=device.type == "cpu"))
    if options.compile:
        pipe.transformer.compile(fullgraph=True, backend="inductor" if device.type == "cuda" else "aot_eager")
    for _ in range(options.warmup_iterations):
        generate(pipe, what, options, device)
    started = perf_counter()
    videos, times = generate(pipe, what, options, device)
    total, step = perf_counter() - started, sorted(times)[len(times) // 2]
    images = videos[0]
    Path(options.output).parent.mkdir(parents=True, exist_ok=True)
    images[0].save(options.output, save_all=True, append_images=images[1:], duration=40, loop=0)
    name = " + ".join(filter(None, ["kernels" * options.kernels, "torch.compile" * options.compile])) or "stock"
    rows = [("one step (median)", f"{step * 1e3:.2f} ms"), ("whole video, decoded", f"{total:.2f} s")]
    show(f"{name}: {options.num_frames} frames of {options.width} x {options.height}", ("", ""), rows)
    plot(options.plot, f"LTX-Video, {name}", {f"step {i + 1}": t * 1e3 for i, t in enumerate(times)}, "ms")
    console.print(f"video: {options.output}")


if __name__ == "__main__":
    main()

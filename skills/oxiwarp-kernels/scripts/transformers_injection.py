"""Run a transformers language model with oxiwarp's kernels: compare the tokens, and time prefill and decoding.

The calls of the stock model and of the patched model alternate.

    python transformers_injection.py --model Qwen/Qwen3-8B

If the weights are not available, a model of the same classes runs with random weights.
"""

import argparse
import copy

import torch
from common import alternating, console, count, default_device, plot, show
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

import oxiwarp

SMALL = dict(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)
MEDIUM = dict(hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_key_value_heads=8, head_dim=128)


def load(options: argparse.Namespace, device: torch.device, dtype: torch.dtype) -> torch.nn.Module:
    """Return the model, with random weights if the real ones are not available."""
    if not options.small:
        try:
            return AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype).to(device).eval()
        except OSError as error:
            console.print(f"no weights of {options.model} ({str(error).splitlines()[0]}): random ones")
    torch.manual_seed(0)
    with device:
        model = Qwen3ForCausalLM(Qwen3Config(**(SMALL if options.small else MEDIUM)))
    return model.to(dtype).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen/Qwen3-8B")
    parser.add_argument("--prompt-tokens", type=count, default=512)
    parser.add_argument("--new-tokens", type=count, default=16)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--plot", default="transformers_injection.png")
    parser.add_argument("--small", action="store_true", help="a tiny model, for a test")
    options = parser.parse_args()
    if options.new_tokens < 2:
        parser.error("--new-tokens: 2 or more, of which the first is the prompt's")

    device = default_device()
    model = load(options, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(model.config.vocab_size, (1, options.prompt_tokens), generator=generator).to(device)

    def write(model: torch.nn.Module, count: int) -> torch.Tensor:
        limits = dict(max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
        with torch.inference_mode():
            return model.generate(ids, attention_mask=torch.ones_like(ids), **limits)

    def measure(count: int, title: str) -> tuple[float, float]:
        calls = {"stock": lambda: write(model, count), "patched": lambda: write(patched_model, count)}
        times = alternating(calls, device, options.rounds, 1, title)
        return times["stock"], times["patched"]

    patched_model = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    console.print(oxiwarp.patch(patched_model, cpu_kernels=device.type == "cpu"))
    tokens, ours = write(model, options.new_tokens), write(patched_model, options.new_tokens)
    first, whole = measure(1, "prompt"), measure(options.new_tokens, "prompt and tokens")
    stock, patched = [(one, (total - one) / (options.new_tokens - 1)) for one, total in zip(first, whole, strict=True)]
    same = (tokens == ours).double().mean().item()
    rows = [("prompt", *(f"{t:.2f}" for t in (stock[0], patched[0])), f"{stock[0] / patched[0]:.2f} x")]
    rows.append(("one more token", *(f"{t:.2f}" for t in (stock[1], patched[1])), f"{stock[1] / patched[1]:.2f} x"))
    show(f"{device}: {same:.0%} of the tokens are the same", ("", "stock, ms", "patched, ms", ""), rows)
    bars = {"stock, prompt": stock[0], "patched, prompt": patched[0], "stock, token": stock[1]}
    plot(options.plot, f"{type(model).__name__}", bars | {"patched, token": patched[1]}, "ms")
    oxiwarp.unpatch(patched_model)


if __name__ == "__main__":
    main()

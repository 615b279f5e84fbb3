"""Tests of `python -m oxiwarp bench` with small models."""

import importlib
import io
import json
import math
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from oxiwarp.__main__ import main
from oxiwarp.cli.bench import command
from oxiwarp.cli.bench.graphs import replay
from oxiwarp.cli.bench.profile import category
from oxiwarp.cli.bench.progress import Stages
from oxiwarp.cli.bench.variants import OLD_NAMES, VARIANTS
from oxiwarp.cli.bench.workloads import WORKLOADS


def alike(result):
    """Return True if the outputs of the patched and the unpatched model are equal, or if their PSNR is above
    120 dB."""
    return result["equal"] == 1 if result["psnr"] is None else result["psnr"] > 120


@pytest.mark.filterwarnings("ignore:In CPU autocast")  # diffusers' Mochi model enables autocast
@pytest.mark.parametrize("model", WORKLOADS)
def test_models(model, tmp_path, capsys, monkeypatch):
    """`bench` runs each model unpatched and patched.

    The two outputs agree in float32, and the results file is complete.
    """
    pytest.importorskip("transformers" if model.startswith("qwen3") else "diffusers")
    monkeypatch.setenv("OXIWARP_COMMIT", "0123abc")
    options = ["--small", "--device", "cpu", "--rounds", "2", "--variant", "patched", "--out", str(tmp_path)]
    assert main(["bench", "--model", model, *options]) == 0
    record = json.loads((tmp_path / f"{model}.json").read_text())
    stock, patched = record["results"]
    assert [stock["variant"]["name"], patched["variant"]["name"]] == ["eager", "patched"]
    assert all(len(result["milliseconds"]) == 2 and result["median"] > 0 for result in (stock, patched))
    assert all((result["in_a_row"] is not None) == WORKLOADS[model].denoises for result in (stock, patched))
    assert stock["equal"] == 1 and stock["psnr"] is None and alike(patched)
    assert record["versions"]["torch"] and record["device"] == "CPU executor"
    assert record["commit"] == "0123abc"
    assert "x eager" in capsys.readouterr().out


def test_cuda_graphs(tmp_path, cuda):
    """With `--graphs`, `bench` also times denoising steps as CUDA graphs. It skips a step that synchronizes
    with the GPU, e.g. by `.item()`, because a graph cannot capture it."""
    pytest.importorskip("diffusers")
    options = ["--small", "--device", "cuda", "--rounds", "3", "--variant", "patched", "--out", str(tmp_path)]
    for asked in ([], ["--graphs"]):
        assert main(["bench", "--model", "ltx", *options, *asked]) == 0
        results = json.loads((tmp_path / "ltx.json").read_text())["results"]
        assert [len(result["replayed"] or ()) for result in results] == ([3, 3] if asked else [0, 0])
    x = torch.ones(4, device=cuda)
    timed = replay({0: lambda: x + 1, 1: lambda: x.sum().item()}, 2, lambda call: (call(), 1.0)[1])
    assert timed == {0: [1.0, 1.0]}


def test_stopped(tmp_path, monkeypatch):
    """If `bench` is interrupted, the results file contains the completed measurements."""
    pytest.importorskip("diffusers")
    bench = importlib.import_module("oxiwarp.cli.bench")
    measure = bench.measure

    def stopped(*args):
        yield next(measure(*args))
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "measure", stopped)
    options = ["--small", "--device", "cpu", "--rounds", "2", "--variant", "patched", "--out", str(tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        main(["bench", "--model", "ltx", *options])
    results = json.loads((tmp_path / "ltx.json").read_text())["results"]
    assert [len(result["milliseconds"]) for result in results] == [2, 2]


def test_compile_only(tmp_path, capsys, monkeypatch):
    """With `--compile-only`, `bench` runs only the first step of each compiled variant, e.g. the patched and
    compiled model.

    If a variant fails, the next variants still run.
    """
    pytest.importorskip("transformers")
    options = ["--model", "qwen3", "--small", "--device", "cpu", "--compile-only", "--out", str(tmp_path)]
    assert main(["bench", *options]) == 0
    said = [line.rpartition(": ")[0] for line in capsys.readouterr().out.splitlines()]
    assert said == [f"qwen3, {variant.name}" for variant in VARIANTS if variant.compiled]
    bench = importlib.import_module("oxiwarp.cli.bench")
    compile_stock = bench.compile_one

    def compile_one(workload, variant, *rest):
        if variant.mode is None:
            raise RuntimeError("no compiler [b]")
        return compile_stock(workload, variant, *rest)

    monkeypatch.setattr(bench, "compile_one", compile_one)
    assert main(["bench", *options, "--variant", "compiled", "--variant", "patched-compiled"]) == 1
    failed, compiled = capsys.readouterr().out.splitlines()
    assert failed == "qwen3, compiled: not compiled: RuntimeError: no compiler [b]"
    assert compiled.startswith("qwen3, patched-compiled: ") and not list(tmp_path.iterdir())


def test_one_that_fails_leaves_the_others(monkeypatch, tmp_path, capsys):
    """If a model or a variant (e.g. the compiled model) fails, `bench` still measures all other models and
    variants.

    The exit code is then 1.
    """
    pytest.importorskip("transformers")
    build = WORKLOADS["qwen3"].build

    def too_large(small):
        raise torch.OutOfMemoryError("CUDA out of memory [a]")

    def no_compiler(*_, **__):
        raise RuntimeError("no compiler [b]")

    monkeypatch.setattr(torch, "compile", no_compiler)
    monkeypatch.setitem(WORKLOADS, "qwen3", replace(WORKLOADS["qwen3"], build=too_large))
    monkeypatch.setitem(WORKLOADS, "ltx", replace(WORKLOADS["qwen3"], build=build))
    chosen = ["--model", "qwen3", "--model", "ltx", "--variant", "compiled", "--variant", "patched"]
    assert main(["bench", *chosen, "--small", "--device", "cpu", "--rounds", "2", "--out", str(tmp_path)]) == 1
    eager, compiled, patched = json.loads((tmp_path / "ltx.json").read_text())["results"]
    assert compiled["error"] == "RuntimeError: no compiler [b]" and compiled["median"] is None
    assert not eager["error"] and alike(patched) and len(patched["milliseconds"]) == 2
    out = capsys.readouterr().out
    assert "qwen3: not measured: OutOfMemoryError: CUDA out of memory [a]" in out and "x eager" in out
    assert "compiled: not measured: RuntimeError: no compiler [b]" in out
    assert not (tmp_path / "qwen3.json").exists()


def test_a_token_again():
    """Before each timed decoding step, `restore` resets the KV cache to its original shapes, strides and
    values.

    With different shapes or strides, torch.compile would recompile the model.
    """
    pytest.importorskip("transformers")
    workload, found = WORKLOADS["qwen3-decode"], []
    with torch.no_grad():
        model = workload.build(True).eval()
        arguments = workload.arguments(model, True, torch.device("cpu"), torch.float32)
        for _ in range(3):
            workload.restore(arguments)
            keys = arguments["past_key_values"].layers[0].keys
            found.append((keys.shape, keys.stride(), keys.sum().item(), model(**arguments)[0].sum().item()))
    assert found[0][0][2] == arguments["position_ids"].item() and found == [found[0]] * 3


def test_agreement():
    """`compare` returns two figures for two tensors: the fraction of equal values, and the PSNR. The tensors
    may be equal, or contain infinities or NaN."""
    compare = importlib.import_module("oxiwarp.cli.bench.measure").compare
    reference = torch.tensor([0.0, 1.0, 4.0, 2.0])
    equal, psnr = compare(reference + torch.tensor([0.0, 0.5, 0.0, 0.0]), reference)
    assert equal == 0.75 and math.isclose(psnr, 10 * math.log10(16 / 0.0625))
    assert compare(reference, reference) == (1, math.inf)
    assert compare(reference.clone().fill_(math.inf), reference) == (0, -math.inf)
    assert math.isnan(compare(reference.clone().fill_(math.nan), reference)[1])
    assert compare(torch.ones(4), torch.zeros(4)) == (0, -math.inf)


def test_command():
    """The results file contains the command line without the option `--out`, so that it has no path on this
    machine."""
    arguments = ["bench", "--variant", "patched-fast", "--out", "/home/me/x", "--small", "--out=/home/me"]
    assert command(arguments) == "python -m oxiwarp bench --variant patched-fast --small"


def test_names_of_variants(monkeypatch):
    """The names of variants, e.g. `patched-compiled`, need no quotes in a shell.

    `bench --variant` also accepts the names that old results files have for the variants.
    """
    names = [variant.name for variant in VARIANTS]
    assert all(re.fullmatch("[a-z0-9-]+", name) for name in names) and len(set(names)) == len(names)
    assert set(OLD_NAMES.values()) < set(names) and not set(OLD_NAMES) & set(names)
    asked = []
    monkeypatch.setattr("oxiwarp.cli.bench.bench", lambda models, variants, *_: asked.extend(variants) or 0)
    assert main(["bench", "--variant", "patched, fast + compile", "--variant", "patched-fast"]) == 0
    assert asked == ["patched-fast-compiled", "patched-fast"]
    with pytest.raises(SystemExit):
        main(["bench", "--variant", "patched fast"])


def test_progress_in_a_log(tmp_path, capsys):
    """If stderr is not a terminal, `bench` writes a numbered line to stderr for each stage.

    The first stage builds the model. Each variant (e.g. patched) is a further stage. The last stage runs all
    timed rounds.
    """
    pytest.importorskip("transformers")
    options = ["--small", "--device", "cpu", "--rounds", "2", "--variant", "patched"]
    assert main(["bench", "--model", "qwen3", *options]) == 0
    said = capsys.readouterr()
    lines = [line.partition("s] ")[2] for line in said.err.splitlines()]
    assert lines == [
        "1 of 4: building the model",
        "2 of 4: eager: first step, then 1 more",
        "3 of 4: patched: first step, then 1 more",
        "4 of 4: 2 rounds of 2 variants",
    ]
    assert "of 4" not in said.out


def test_progress_in_a_terminal():
    """In a terminal, `bench` shows two progress bars: one for its stages, and one for the steps of the
    current stage.

    The two progress bars are erased at the end.
    """
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    with Stages(3, console) as progress:
        progress.begin("first")
        progress.begin("patched-fast: first step, then 30 more", 31)
        for _ in range(7):
            progress.step()
        progress._bars.refresh()
    text = console.file.getvalue()
    assert "1/3" in text and "patched-fast: first step, then 30 more" in text and "7/31" in text
    assert text.rstrip("\x1b[?25h\n\r").endswith("\x1b[2K"), repr(text[-40:])


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("ada_norm_rms_bf16", "ours"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "gemm"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128", "attention"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>", "attention"),
        ("triton_poi_fused_add_mul_3", "other"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_clone_4", "other"),
        ("triton_red_fused_convolution_native_group_norm_7", "other"),
        ("triton_tem_fused_flex_attention_2", "attention"),
    ],
)
def test_categories(kernel, kind):
    """`category` derives a kernel's category from its name.

    The categories are oxiwarp, matrix multiplication, attention and other.
    """
    assert category(kernel, {"ada_norm_rms_bf16"}) == kind

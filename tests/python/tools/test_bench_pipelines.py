"""Tests of the command `python -m oxiwarp bench --pipeline`: the table that it prints, the results files that
it writes, and its error messages. The tests use small pipelines."""

import importlib
import json

import pytest
import torch

from oxiwarp.__main__ import main
from oxiwarp.cli.bench.pipelines import PIPELINES, RandomTokens
from oxiwarp.cli.bench.variants import Variant
from oxiwarp.patching.class_swap import is_replaced

pytest.importorskip("diffusers")
pytest.importorskip("transformers")

SMALL = ["--small", "--device", "cpu", "--rounds", "1"]


def run(tmp_path, *options, name="sdxl"):
    """Run `bench --pipeline` with a small pipeline, and return the content of its results file."""
    assert main(["bench", "--pipeline", name, *SMALL, "--out", str(tmp_path), *options]) == 0
    return json.loads((tmp_path / f"pipeline-{name}.json").read_text())


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines(name, tmp_path, capsys):
    """Each pipeline runs from the prompt to the picture, unpatched and patched, and the pictures agree."""
    record = run(tmp_path, "--variant", "patched", name=name)
    stock, patched = record["results"]
    assert [stock["variant"]["name"], patched["variant"]["name"]] == ["eager", "patched"]
    assert stock["equal"] == 1 and (patched["equal"] == 1 or patched["psnr"] > 60)
    assert "modules replaced" in patched["report"] and stock["report"] == ""
    for result in (stock, patched):
        typical = result["typical"]
        parts = [typical[part] for part in ("text", "denoising", "decoding")]
        assert all(part > 0 for part in parts) and sum(parts) == pytest.approx(typical["seconds"])
        assert len(result["calls"]) == 1 and result["first"]["seconds"] > 0 and result["clock_mhz"] is None
        assert result["steps_per_second"] == pytest.approx(record["size"]["steps"] / typical["denoising"])
    assert (
        record["weights"] == "random"
        and record["title"].endswith(", 2 steps")
        and record["size"]["steps"] == 2
        and record["versions"]["torch"]
    )
    said = capsys.readouterr().out
    assert "prompt to result" in said and "denoising, s" in said


def test_other_size(tmp_path):
    """The name of the results file contains each size that differs from the model's published size, e.g. the
    batch size."""
    options = ["bench", "--pipeline", "sdxl", *SMALL, "--variant", "eager", "--out", str(tmp_path)]
    assert main([*options, "--steps", "1", "--batch", "2"]) == 0
    record = json.loads((tmp_path / "pipeline-sdxl-steps1-batch2.json").read_text())
    assert record["title"] == "SDXL, 64 x 64, 1 steps, batch 2" and record["size"]["batch"] == 2


def test_compiled(tmp_path):
    """In compiled variants, only the denoiser is compiled. If a variant is also patched, `patch` runs before
    torch.compile."""
    record = run(tmp_path, "--variant", "compiled", "--variant", "patched-compiled", name="flux")
    names = [result["variant"]["name"] for result in record["results"]]
    assert names == ["eager", "compiled", "patched-compiled"] and not any(r["error"] for r in record["results"])
    assert all(result["equal"] == 1 or result["psnr"] > 60 for result in record["results"])


def test_weights(tmp_path, capsys):
    """With `--weights`, `bench` loads a pipeline from a folder, with its weights and its scheduler. In this
    test, random tokens replace the tokenizer."""
    pipelines = importlib.import_module("oxiwarp.cli.bench.pipelines")
    torch.manual_seed(3)
    pipe = PIPELINES["sdxl"].build(True)
    folder = tmp_path / "weights"
    pipe.tokenizer = pipe.tokenizer_2 = None
    pipe.save_pretrained(folder)
    load = pipelines.from_folder

    def with_tokenizers(*arguments):
        loaded = load(*arguments)
        loaded.tokenizer = loaded.tokenizer_2 = RandomTokens(64, 77)
        return loaded

    report = importlib.import_module("oxiwarp.cli.bench.pipeline_report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "from_folder", with_tokenizers)
        record = run(tmp_path, "--variant", "patched", "--weights", str(folder))
    patched = record["results"][1]
    assert record["weights"] == "of a folder" and (patched["equal"] == 1 or patched["psnr"] > 60)
    index = folder / "model_index.json"
    parts = json.loads(index.read_text())
    index.write_text(json.dumps({**parts, "vae": [None, None]}))
    for given, expected in ((folder, "StableDiffusionXLPipeline has no VAE"), (tmp_path, "no file model_index.json")):
        with pytest.raises(SystemExit):
            main(["bench", "--pipeline", "sdxl", *SMALL, "--weights", str(given)])
        assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["ltx", "--height", "500"], "--height is 500, expected a multiple of 32 for ltx: try 512"),
        (["sdxl", "--width", "4"], "--width is 4, expected a multiple of 8 for sdxl: try 8"),
        (["wan", "--frames", "80"], "--frames is 80, expected a multiple of 4 plus 1 for wan: try 77"),
        (["flux", "--frames", "9"], "--frames is given, and flux makes pictures, not videos"),
        (["flux", "--steps", "0"], "argument --steps: '0', expected a whole number of 1 or more"),
        (["flux", "--pipeline", "sdxl", "--weights", "x"], "--weights has one pipeline, expected one --pipeline"),
    ],
)
def test_bad_arguments(options, expected, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--pipeline", *options, "--device", "cpu", "--small"])
    error = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and error[-1].endswith(expected)


def test_no_memory_left(tmp_path, monkeypatch, capsys):
    """If the GPU memory is too small for a variant, `bench` prints a one-line message instead of its times.

    If the memory is too small for the first variant, all variants are left out.
    """
    module = importlib.import_module("oxiwarp.cli.bench.pipeline_run")
    monkeypatch.setattr(module, "explain", lambda failure: "the GPU has no memory left")
    prepare = module.prepare

    def too_large(pipe, variant, device):
        if variant.mode is not None:
            raise torch.OutOfMemoryError("CUDA out of memory.\nmany lines")
        return prepare(pipe, variant, device)

    monkeypatch.setattr(module, "prepare", too_large)
    options = ["bench", "--pipeline", "sdxl", *SMALL, "--variant", "patched", "--out", str(tmp_path)]
    assert main(options) == 1
    said = capsys.readouterr().out
    assert "patched: not measured: the GPU has no memory left\n" in said and "many lines" not in said
    results = json.loads((tmp_path / "pipeline-sdxl.json").read_text())["results"]
    assert [result["error"] for result in results] == ["", "the GPU has no memory left"]


def test_compare(tmp_path, capsys):
    """With `--compare`, `bench` prints two results files of the same pipeline and sizes next to each other.
    It rejects files whose sizes differ."""
    record = run(tmp_path, "--variant", "patched")
    capsys.readouterr()
    a, b = str(tmp_path / "pipeline-sdxl.json"), str(tmp_path / "b.json")
    record["results"][1]["seconds"] = record["results"][1]["seconds"] / 2
    (tmp_path / "b.json").write_text(json.dumps(record))
    assert main(["bench", "--compare", a, b]) == 0
    said = capsys.readouterr().out
    assert "less time" in said and "50.0%" in said and "torch" in said
    record["size"]["steps"] = 1
    (tmp_path / "c.json").write_text(json.dumps(record))
    (tmp_path / "d.json").write_text("[]")
    for other, expected in (
        (str(tmp_path / "c.json"), "expected the same run"),
        (str(tmp_path / "d.json"), "not a results file of bench --pipeline"),
        (str(tmp_path / "e.json"), "No such file"),
    ):
        with pytest.raises(SystemExit):
            main(["bench", "--compare", a, other])
        assert expected in capsys.readouterr().err


def test_the_copy_shares_weights():
    """The copy of a pipeline for a variant has separate modules and a separate scheduler, but shares the
    weights of the original."""
    module = importlib.import_module("oxiwarp.cli.bench.pipeline_run")
    pipe = PIPELINES["sdxl"].build(True)
    copied = module.copy_pipeline(pipe)
    module.prepare(copied, Variant("patched", "exact"), torch.device("cpu"))
    assert copied.unet is not pipe.unet and copied.scheduler is not pipe.scheduler
    assert next(copied.unet.parameters()) is next(pipe.unet.parameters())
    assert any(map(is_replaced, copied.unet.modules())) and not any(map(is_replaced, pipe.unet.modules()))

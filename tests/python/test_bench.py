"""`python -m oxiwarp bench` on models of two layers."""

import json

import pytest

from oxiwarp.__main__ import main
from oxiwarp.bench.profile import category
from oxiwarp.bench.workloads import WORKLOADS


@pytest.mark.filterwarnings("ignore:In CPU autocast")  # Mochi switches it on itself
@pytest.mark.parametrize("model", WORKLOADS)
def test_models(model, tmp_path, capsys):
    """Every model runs, stock and patched; float32 samples agree to the last bits; figures are kept."""
    pytest.importorskip("transformers" if model.startswith("qwen") else "diffusers")
    options = ["--small", "--device", "cpu", "--rounds", "2", "--variant", "patched", "--out", str(tmp_path)]
    assert main(["bench", "--model", model, *options]) == 0
    record = json.loads((tmp_path / f"{model}.json").read_text())
    stock, patched = record["results"]
    assert [stock["variant"]["name"], patched["variant"]["name"]] == ["eager", "patched"]
    assert all(len(result["milliseconds"]) == 2 and result["median"] > 0 for result in (stock, patched))
    assert stock["equal"] == 1 and patched["psnr"] > 120
    assert record["versions"]["torch"] and record["device"] == "CPU executor"
    assert "x eager" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("ada_norm_rms_bf16", "ours"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "gemm"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128", "attention"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>", "attention"),
        ("triton_poi_fused_add_mul_3", "other"),
    ],
)
def test_categories(kernel, kind):
    """Kernels by name."""
    assert category(kernel, {"ada_norm_rms_bf16"}) == kind

"""Tests of the repository that oxiwarp builds for Hugging Face's package `kernels`: files, functions,
layers, loading."""

import ast
import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers import random
from torch import nn

import oxiwarp
from oxiwarp.hub import build

kernels = pytest.importorskip("kernels")

ACTIVATIONS = {
    "Silu": F.silu,
    "Gelu": F.gelu,
    "GeluTanh": lambda x: F.gelu(x, approximate="tanh"),
    "QuickGELU": lambda x: x * torch.sigmoid(1.702 * x),
    "FastGELU": lambda x: F.gelu(x, approximate="tanh"),
    "NewGELU": lambda x: F.gelu(x, approximate="tanh"),
}
GATED = {
    "SiluAndMul": lambda a, b: F.silu(a) * b,
    "MulAndSilu": lambda a, b: a * F.silu(b),
    "GeluAndMul": lambda a, b: F.gelu(a) * b,
    "GeluTanhAndMul": lambda a, b: F.gelu(a, approximate="tanh") * b,
    "FatreluAndMul": lambda a, b: F.relu(a) * b,
}
LAYERS = (*ACTIVATIONS, *GATED, "RMSNorm", "RMSNormZeroCentered", "RMSNormGated", "apply_rotary_transformers")
FUNCTIONS = {
    "silu": "Silu",
    "gelu": "Gelu",
    "gelu_tanh": "GeluTanh",
    "gelu_quick": "QuickGELU",
    "gelu_fast": "FastGELU",
    "gelu_new": "NewGELU",
    "silu_and_mul": "SiluAndMul",
    "mul_and_silu": "MulAndSilu",
    "gelu_and_mul": "GeluAndMul",
    "gelu_tanh_and_mul": "GeluTanhAndMul",
    "fatrelu_and_mul": "FatreluAndMul",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def module(repository):
    return kernels.get_local_kernel(repository, backend="cuda")


def expected(layer, x):
    """Return the result of a layer, computed with torch functions."""
    return ACTIVATIONS[layer](x) if layer in ACTIVATIONS else GATED[layer](*x.chunk(2, -1))


def close(y, right):
    return torch.allclose(y.float(), right.float(), rtol=1e-5, atol=1e-6)


def test_layout(repository):
    """The built repository follows the rules of Hugging Face's package `kernels`.

    The repository has a metadata file. The Python files of the repository import only torch, the standard
    library and each other.
    """
    folder = repository / "build" / "torch-cuda"
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["id"].isidentifier() and metadata["backend"]["type"] == "cuda"
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            for name in names:
                root = name.split(".")[0]
                assert root == "torch" or root in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_kernels_own_checks(repository):
    """Hugging Face's package `kernels` reads the metadata and accepts the digest of the repository.

    For the backend "cuda", the package selects the build `torch-cuda` of the repository.
    """
    from kernels import _rust, variants

    folder = repository / "build" / "torch-cuda"
    metadata = _rust.Metadata.read_from_file(folder / "metadata.json")
    assert metadata.id == json.loads((folder / "metadata.json").read_text())["id"]
    metadata.digest.validate(_rust.Digest.hash_variant(_rust.DigestAlgorithm.SHA256, folder))
    (folder / "layers.py").write_text((folder / "layers.py").read_text() + "\n")
    with pytest.raises(_rust.DigestValidationError):
        metadata.digest.validate(_rust.Digest.hash_variant(_rust.DigestAlgorithm.SHA256, folder))
    build(repository)
    selected, _ = variants.resolve_variant(variants.get_variants_local(repository / "build"), "cuda")
    assert selected.variant_str == "torch-cuda"


def test_card(tmp_path):
    """The model card and build.toml contain the name of the repository. The card lists every function and
    layer, and has a table of benchmark results."""
    folder = build(tmp_path, "someone/oxiwarp")
    card = (tmp_path / "README.md").read_text()
    assert card == (tmp_path / "CARD.md").read_text() and card.startswith("---\nlibrary_name: kernels\n")
    assert 'get_kernel("someone/oxiwarp", version=1' in card and "{" not in card
    names = ast.literal_eval(
        next(
            node.value
            for node in ast.parse((folder / "__init__.py").read_text()).body
            if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
        )
    )
    listed = re.findall(r"^- `(\w+)`$", card, re.MULTILINE)
    assert sorted(listed) == sorted([*(name for name in names if name not in ("layers", "ops")), *LAYERS])
    assert re.search(r"^\| `rms_norm` \| \d+×\d+ \|", card, re.MULTILINE)
    if sys.version_info < (3, 11):
        return  # this Python's standard library has no TOML parser
    import tomllib

    options = tomllib.loads((tmp_path / "build.toml").read_text())
    assert options["general"]["hub"]["repo-id"] == "someone/oxiwarp" and options["general"]["version"] == 1


def test_old_layout(repository):
    """Versions of the package `kernels` before 0.9 load the folder `oxiwarp` inside the build. It has the
    same public names as the build."""
    folder = repository / "build" / "torch-cuda"
    spec = importlib.util.spec_from_file_location("old_layout", folder / "oxiwarp" / "__init__.py")
    old = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(old)
    x = random((3, 64), torch.float32, "cpu")
    assert {"ops", "layers", "rms_norm"} < set(old.__all__) and torch.equal(old.rms_norm(x), oxiwarp.rms_norm(x))
    assert torch.equal(old.ops.rms_norm(x, None, 1e-6, 0.0, False), oxiwarp.rms_norm(x))


def test_read_only_package(tmp_path, monkeypatch):
    """`build` copies files of the installed package. The copies are writable, even if the files of the
    package are read-only.

    If `build` runs again into the same folder, it removes all files in the folder that do not belong to the
    build.
    """
    package = tmp_path / "oxiwarp"
    shutil.copytree(Path(oxiwarp.__file__).parent, package)
    for path in (package, *package.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    monkeypatch.setattr("oxiwarp.hub.PACKAGE", package)
    folder = build(tmp_path / "hub")
    assert all(path.stat().st_mode & 0o200 for path in (folder, *folder.rglob("*")))
    (folder / "of_before.py").touch()
    assert build(tmp_path / "hub") == folder and not (folder / "of_before.py").exists()
    for path in (package, *package.rglob("*")):
        path.chmod(0o755)


def test_namespace(module):
    """The built repository registers its torch operators in a different namespace than the installed package
    oxiwarp."""
    namespace = module.__name__
    assert namespace.startswith("_oxiwarp_") and hasattr(getattr(torch.ops, namespace), "rms_norm")
    x = random((3, 64), torch.float32, "cpu")
    assert torch.equal(module.rms_norm(x), torch.ops.oxiwarp.rms_norm(x, None, 1e-6, 0.0, False))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(module, name, device):
    """The functions of oxiwarp's repository on the kernel hub take `(out, x)` and return `out`, like the
    functions of kernels-community/activation.
    """
    layer, x = FUNCTIONS[name], random((5, 64), torch.float32, device)
    right = expected(layer, x)
    out = torch.full_like(right, float("nan"))
    assert getattr(module, name)(out, x) is out and close(out, right)


@pytest.mark.parametrize("layer", [*ACTIVATIONS, *GATED])
def test_layers(module, repository, layer, device):
    """`kernels.kernelize` replaces a module's `forward` by the `forward` of a layer class from the
    repository. The module then gives the correct result.

    A layer class follows the rules of `kernels`: it has no `__init__`, and its attributes say that it
    supports torch.compile and gradients.
    """
    cls = getattr(module.layers, layer)
    assert "__init__" not in vars(cls) and cls.can_torch_compile and cls.has_backward

    @kernels.use_kernel_forward_from_hub(layer)
    class Own(nn.Module):
        def forward(self, x):
            raise AssertionError("the own forward ran")

    mapping = {layer: {device.type: kernels.LocalLayerRepository(repository, layer_name=layer)}}
    with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
        model = kernels.kernelize(
            nn.Sequential(Own()), mode=kernels.Mode.INFERENCE | kernels.Mode.TORCH_COMPILE, device=device.type
        )
    x = random((5, 64), torch.float32, device)
    assert close(model(x), expected(layer, x))


def test_norms(module, device):
    """The layers for the RMSNorms of Llama, Gemma and Qwen3-Next read `weight` and epsilon from the module
    that they replace."""
    x, gate = random((4, 64), torch.float32, device), random((4, 64), torch.float32, device, seed=1)
    norm = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    host = nn.Module()
    host.weight, host.variance_epsilon = nn.Parameter(random((64,), torch.float32, device, seed=2)), 1e-5
    layers = module.layers
    assert close(layers.RMSNorm.forward(host, x), norm * host.weight)
    assert close(layers.RMSNormZeroCentered.forward(host, x), norm * (1 + host.weight))
    assert close(layers.RMSNormGated.forward(host, x, gate), norm * host.weight * F.silu(gate))
    assert close(layers.RMSNormGated.forward(host, x), norm * host.weight)


def test_roundings(module, device):
    """In bfloat16, a layer rounds after the same steps as the module that it replaces.

    For example, the layers NewGELU and FastGELU have the same formula, but round after different steps.
    """
    x, layers = random((64, 64), torch.bfloat16, device), module.layers
    for name, layer in FUNCTIONS.items():
        y = getattr(layers, layer)()(x)
        assert torch.equal(y, getattr(oxiwarp, name)(x)), layer
        others = [other for other in FUNCTIONS if other != name and (FUNCTIONS[other] in GATED) == (layer in GATED)]
        assert not any(torch.equal(y, getattr(oxiwarp, other)(x)) for other in others), layer
    host = nn.Module()
    host.weight, host.eps = nn.Parameter(random((64,), torch.bfloat16, device, seed=2)), 1e-5
    once, twice = (oxiwarp.rms_norm(x, host.weight, 1e-5, rounding=how) for how in ("once", "before_weight"))
    assert torch.equal(layers.RMSNorm.forward(host, x), twice) and not torch.equal(once, twice)
    assert torch.equal(layers.RMSNormGated.forward(host, x), twice)


@pytest.mark.parametrize("eps", [None, 1e-3, 0.0])
@pytest.mark.parametrize("name", ["eps", "variance_epsilon"])
def test_epsilon(module, name, eps, device):
    """The RMSNorm layer reads epsilon from the attribute `eps` or `variance_epsilon` of the module that it
    replaces.

    If epsilon is None, the layer uses torch's default.
    """
    host, x = nn.Module(), random((4, 64), torch.float32, device) * 1e-3
    host.weight = nn.Parameter(torch.ones(64, device=device))
    setattr(host, name, eps)
    assert close(module.layers.RMSNorm.forward(host, x), F.rms_norm(x, (64,), eps=eps))


def parts(x, how):
    """Split the last dimension of `x` into two tensors. `how` selects the halves, the even and the odd
    columns, or copies of the halves."""
    if how == "interleaved":
        return x[..., ::2], x[..., 1::2]
    first, second = x.chunk(2, -1)
    return (first, second) if how == "halves" else (first.clone(), second.clone())


@pytest.mark.parametrize("how", ["halves", "interleaved", "copies"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("leading", [(), (2,), (2, 3)], ids=str)
def test_apply_rotary(module, monkeypatch, device, how, dtype, leading):
    """`apply_rotary` computes in float32 and rounds once. It makes one call of oxiwarp's `rope`. It also
    works in place, i.e. with its inputs as outputs."""
    x = random((*leading, 6, 4, 16), dtype, device, seed=1)
    angles = random((6, 1, 8), torch.float32, device, seed=2)
    rotary = sys.modules[module.apply_rotary.__module__]
    calls, rope = [], rotary.rope
    monkeypatch.setattr(rotary, "rope", lambda *args, **kwargs: calls.append(args) or rope(*args, **kwargs))
    for tables in ((angles.cos(), angles.sin()), (angles.cos().to(dtype), angles.sin().to(dtype))):
        cos, sin = (table.double() for table in tables)
        for conj in (False, True):
            first, second = parts(x.clone(), how)
            a, b = first.double(), second.double()
            expected = (a * cos + b * sin, b * cos - a * sin) if conj else (a * cos - b * sin, a * sin + b * cos)
            out = torch.full_like(first, torch.nan), torch.full_like(second, torch.nan)
            module.apply_rotary(first, second, *tables, *out, conj)
            module.apply_rotary(first, second, *tables, first, second, conj)
            for y, in_place, right in zip(out, (first, second), expected, strict=True):
                tolerance = {torch.float32: 1e-6, torch.bfloat16: 2**-8}[dtype]
                assert torch.allclose(y.double(), right, rtol=tolerance, atol=1e-6) and torch.equal(y, in_place)
    assert len(calls) == 8 and all((args[0].data_ptr() == first.data_ptr()) == (how != "copies") for args in calls[-1:])


@pytest.mark.parametrize("how", ["halves", "interleaved", "copies"])
def test_gradient_of_apply_rotary(module, device, how):
    """The inputs of `apply_rotary` have gradients, even if they are views of one tensor."""
    x, dy = (random((2, 6, 4, 16), torch.float32, device, seed) for seed in (1, 2))
    angles = random((6, 1, 8), torch.float32, device, seed=3)

    def gradient(run):
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad((torch.cat(run(*parts(leaf, how)), -1) * dy).sum(), leaf)[0]

    def own(first, second):
        return first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()

    def ours(first, second):
        out = torch.empty_like(first), torch.empty_like(second)
        module.apply_rotary(first, second, angles.cos(), angles.sin(), *out, False)
        return out

    with torch.enable_grad():
        assert close(gradient(ours), gradient(own))


def test_apply_rotary_of_each_head(module, device):
    """The tables of `apply_rotary` may differ between batches and heads."""
    x = random((2, 6, 4, 16), torch.float32, device)
    for shape in ((2, 6, 4, 8), (2, 1, 4, 8), (1, 6, 1, 8), (6, 4, 8), (6, 1, 1)):
        angles = random(shape, torch.float32, device, seed=1)
        first, second = x.chunk(2, -1)
        out = torch.empty_like(first), torch.empty_like(second)
        module.apply_rotary(first, second, angles.cos(), angles.sin(), *out, False)
        assert close(out[0], first * angles.cos() - second * angles.sin()), shape
        assert close(out[1], first * angles.sin() + second * angles.cos()), shape


@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
def test_rotary(module, device, unsqueeze_dim):
    """`apply_rotary_transformers` returns the result of transformers' `apply_rotary_pos_emb`.

    `apply_rotary` also gives this result. It takes the two halves of each head as separate arguments, as in
    kernels-community/rotary, and its last argument inverts the rotation.
    """
    q, k = (
        random((2, 4, 6, 16) if unsqueeze_dim == 1 else (2, 6, 4, 16), torch.float32, device, seed=s) for s in (1, 2)
    )
    angles = random((2, 6, 8), torch.float32, device, seed=3)
    cos, sin = (f(angles).repeat(1, 1, 2) for f in (torch.cos, torch.sin))
    turned = module.apply_rotary_transformers(q, k, cos, sin, unsqueeze_dim)
    c, s = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    for x, y in zip((q, k), turned, strict=True):
        first, second = x.chunk(2, -1)
        assert close(y, x * c + torch.cat((-second, first), -1) * s)
    first, second = q.chunk(2, -1)
    out = torch.empty_like(first), torch.empty_like(second)
    module.apply_rotary(first, second, c[..., :8], s[..., :8], *out, False)
    assert close(torch.cat(out, -1), turned[0])
    module.apply_rotary(*out, c[..., :8], s[..., :8], *out, True)
    assert close(torch.cat(out, -1), q)


def test_rotary_of_a_model(repository, monkeypatch):
    """A Llama model with the RoPE function of the built repository gives the logits of the original model."""
    transformers = pytest.importorskip("transformers")
    # All models share this function.
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as turn

    monkeypatch.setattr(turn, "forward", turn.forward)  # restored after the test
    sizes = dict(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    layer, ids = (
        kernels.LocalLayerRepository(repository, layer_name="apply_rotary_transformers"),
        torch.arange(12)[None],
    )
    with torch.no_grad():
        own = model(ids).logits
        with kernels.use_kernel_mapping({"rotary_pos_emb": {"cpu": layer}}, inherit_mapping=False):
            kernels.kernelize(model, mode=kernels.Mode.INFERENCE | kernels.Mode.TORCH_COMPILE, device="cpu")
        assert "_oxiwarp" in turn.forward.__func__.__globals__["__name__"]
        assert close(model(ids).logits, own)


def test_local_kernels(repository, monkeypatch):
    """With `LOCAL_KERNELS`, `get_kernel("kernels-community/activation")` loads the repository."""
    monkeypatch.setenv("LOCAL_KERNELS", f"kernels-community/activation={repository}")
    assert hasattr(kernels.get_kernel("kernels-community/activation", version=1, backend="cuda"), "silu_and_mul")


def test_transformers(repository, cuda, tmp_path):
    """On a GPU, a transformers model that loads RMSNorm from the repository by `KernelConfig` gives the
    logits of the original model."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    stock = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path).to(cuda).eval()
    how = transformers.KernelConfig({"RMSNorm": f"{repository}:RMSNorm"}, use_local_kernel=True)
    ours = transformers.Qwen3ForCausalLM.from_pretrained(
        tmp_path, use_kernels=True, kernel_config=how, device_map="cuda"
    ).eval()
    assert "_oxiwarp" in ours.model.norm.forward.__func__.__globals__
    ids = torch.arange(12, device=cuda)[None]
    assert torch.allclose(ours(ids).logits, stock(ids).logits, rtol=0, atol=1e-5)

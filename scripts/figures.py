"""Writes the tables of measured figures into README.md and docs: `python scripts/figures.py`.

Every figure comes from a file in benches/results/latest/<gpu>. `tests/python/tools/test_figures.py` fails if
a table on a page differs from the table that this script generates.
"""

import ast
import csv
import json
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from generated import ROOT, table, write

sys.path.append(str(ROOT / "benches" / "python"))
from exactness_cell import cell

from oxiwarp.cli.bench.variants import current_name
from oxiwarp.hub import exported

LATEST = ROOT / "benches" / "results" / "latest"
RUN = LATEST / "nvidia-h200"
REPOSITORY = ROOT / "py-bindings" / "python" / "oxiwarp" / "hub" / "repository"
MODELS = ("flux", "ltx", "ltx161", "wan", "mochi", "sdxl", "qwen3", "qwen3-decode")
README_MODELS = {
    "flux": "FLUX.1, 1024 x 1024",
    "ltx161": "LTX-Video, 161 frames",
    "wan": "Wan 2.1 1.3B, 81 frames of 480p",
    "sdxl": "SDXL UNet, 1024 x 1024, batch 2",
}
NONE = "–"


@cache
def model(name: str, gpu: str = RUN.name) -> dict[str, Any]:
    """Load the results file of `python -m oxiwarp bench --model <name>`. Add the key "variants", which maps the name of
    each variant to its results.
    """
    found: dict[str, Any] = json.loads((LATEST / gpu / f"{name}.json").read_text())
    found["variants"] = {current_name(result["variant"]["name"]): result for result in found["results"]}
    return found


@cache
def rows(name: str, folder: Path = RUN) -> list[dict[str, str]]:
    """Load a CSV file of a benchmark run. `folder` has the results of a GPU."""
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def number(value: float | None, digits: int = 3) -> str:
    """Format a measured value with `digits` significant digits. Return a dash for None (not measured)."""
    if value is None:
        return NONE
    return f"{value:.{max(0, digits - len(str(int(value))))}f}"


def less(ours: float, theirs: float) -> str:
    """Return, as text, by how many percent oxiwarp's time `ours` is shorter than a baseline's time
    `theirs`."""
    return f"{round(100 * (1 - ours / theirs), 1) + 0.0:+.1f} %".replace("-", "−").replace("+", "")


def faster(ours: float, theirs: float) -> str:
    """Return, as text, the speedup of oxiwarp over a baseline: the baseline's time `theirs` divided by
    oxiwarp's time `ours`."""
    return f"{theirs / ours:.2f}"


def step_times() -> Iterator[str]:
    """Yield the README's table of results: for four models, the mean milliseconds of a denoising step."""
    columns = {
        "eager": "eager",
        "compiled": "`torch.compile`",
        "patched": "`patch`",
        "patched-fast": '`patch`, `mode="fast"`',
        "patched-fast-compiled": "fast, then `torch.compile`",
    }

    def times(name: str) -> Iterator[str]:
        variants = model(name)["variants"]
        yield from (f"{variants[key]['in_a_row']:.1f}" if key in variants else NONE for key in columns)

    yield from table(["model", *columns.values()], ([title, *times(name)] for name, title in README_MODELS.items()))


def models() -> Iterator[str]:
    """Yield one table per model. Each row shows a variant such as "patched": its times, and how closely its
    output agrees with eager mode.
    """
    for name in MODELS:
        found = model(name)
        variants = found["variants"]
        compiled = variants["compiled"]
        yield f"\n### {found['model']}\n"
        commit = f", commit {found['commit'][:7]}" if "commit" in found else ""
        yield f"`{found['command']}`{commit}, {found['date'][:10]}, torch {found['versions']['torch']}.\n"

        def cells(key: str, result: dict[str, Any], compiled: dict[str, Any] = compiled) -> list[str]:
            mean, replayed = result.get("in_a_row"), result.get("replayed")
            rival = compiled.get("in_a_row")
            ours, theirs = (mean, rival) if mean and rival else (result["median"], compiled["median"])
            close = "every value equal" if result["equal"] == 1 else f"{result['psnr']:.0f} dB"
            graph = sorted(replayed)[len(replayed) // 2] if replayed else None
            return [
                f"`{key}`",
                number(result["median"], 4),
                number(mean, 4),
                number(graph, 4),
                less(ours, theirs) if key != "compiled" else NONE,
                close if key != "eager" else NONE,
            ]

        head = [
            "variant",
            "from idle, ms",
            "in a row, ms",
            "CUDA graph, ms",
            "less time than `torch.compile`",
            "result",
        ]
        yield from table(head, (cells(key, result) for key, result in variants.items()))
    yield ""


def h100() -> Iterator[str]:
    """Yield the table of models on an H100: the step time of each variant, and how much less time `patch` takes than
    `torch.compile`."""
    columns = ("eager", "compiled", "patched", "patched-fast")

    def cells(name: str) -> Iterator[str]:
        found = model(name, "nvidia-h100")
        times = {key: found["variants"][key].get("in_a_row") or found["variants"][key]["median"] for key in columns}
        yield found["model"]
        yield from (number(times[key], 4) for key in columns)
        yield from (less(times[key], times["compiled"]) for key in columns[2:])

    head = ["model", *(f"`{key}`, ms" for key in columns), *(f"`{key}`: less time" for key in columns[2:])]
    names = [name for name in MODELS if (LATEST / "nvidia-h100" / f"{name}.json").exists()]
    yield from table(head, (list(cells(name)) for name in names))


def newer_models() -> Iterator[str]:
    """Yield the table of newer image models on an H100. It has one row for each variant, such as "patched",
    of each model."""
    found = json.loads((LATEST / "nvidia-h100" / "recent_models.json").read_text())["models"]
    head = ["model", "variant", "from idle, ms", "in a row, ms", "less time", "agreement with eager", "commit"]

    def cells() -> Iterator[list[str]]:
        for one in found:
            results = {current_name(result["variant"]["name"]): result for result in one["results"]}
            rival = results["compiled"]["in_a_row"]
            for name, result in results.items():
                if result["error"]:
                    yield [one["model"], f"`{name}`", *[NONE] * 3, "did not compile", one["commit"][:7]]
                    continue
                close = "every value equal" if result["equal"] == 1 else f"{result['psnr']:.0f} dB"
                in_a_row = result["in_a_row"]
                yield [
                    one["model"],
                    f"`{name}`",
                    number(result["median"], 4),
                    number(in_a_row, 4) if in_a_row else NONE,
                    less(in_a_row, rival) if name.startswith("patched") and rival else NONE,
                    close if name != "eager" else NONE,
                    one["commit"][:7],
                ]

    yield from table(head, cells())


@cache
def pipeline_records(gpu: str) -> list[dict[str, Any]]:
    """Load the results of `bench --pipeline` on a GPU."""
    found: list[dict[str, Any]] = json.loads((LATEST / gpu / "pipelines.json").read_text())["pipelines"]
    return found


PIPELINE_COLUMNS = {
    "eager": "eager",
    "compiled": "`torch.compile`",
    "patched": "`patch`",
    "patched-compiled": "`patch`, then `torch.compile`",
}


def pipeline_seconds() -> Iterator[str]:
    """Yield the README's table of pipelines: seconds from the prompt to the picture or video, on an H200."""

    def lines() -> Iterator[list[str]]:
        for record in pipeline_records("nvidia-h200"):
            seconds = {result["variant"]["name"]: result["seconds"] for result in record["results"]}
            yield [record["title"], *(f"{seconds[name]:.2f}" for name in PIPELINE_COLUMNS)]

    yield from table(["prompt to result, seconds", *PIPELINE_COLUMNS.values()], lines())


def pipelines(gpu: str) -> Iterator[str]:
    """Yield one table per pipeline on a GPU.

    The columns are seconds, steps per second, seconds of each stage, first call, memory and agreement with
    eager mode.
    """
    for record in pipeline_records(gpu):
        yield f"\n### {record['title']}, {gpu.removeprefix('nvidia-').upper()}\n"
        versions = ", ".join(f"{name} {record['versions'][name]}" for name in ("torch", "diffusers"))
        yield f"`{record['command']}`, {record['date'][:10]}, {versions}.\n"
        rival = next(result["seconds"] for result in record["results"] if result["variant"]["name"] == "compiled")

        def cells(result: dict[str, Any], rival: float = rival) -> list[str]:
            typical, name = result["typical"], result["variant"]["name"]
            if result["equal"] == 1:
                close = "every value equal"
            else:
                close = NONE if result["psnr"] is None else f"{result['psnr']:.0f} dB"
            return [
                f"`{name}`",
                f"{result['seconds']:.2f}",
                NONE if name == "compiled" else less(result["seconds"], rival),
                number(result["steps_per_second"]),
                *(f"{typical[part]:.2f}" for part in ("text", "denoising", "decoding")),
                f"{result['first']['seconds']:.1f}",
                f"{typical['peak_bytes'] / 2**30:.1f}",
                NONE if name == "eager" else close,
                f"{result['clock_mhz']:.0f}",
                f"{result['watts']:.0f}",
            ]

        head = ["variant", "s", "less time than `torch.compile`", "steps/s", "text, s", "denoising, s", "decoding, s"]
        head += ["first call, s", "peak, GiB", "result", "MHz", "W"]
        yield from table(head, map(cells, record["results"]))
    yield ""


def cold_start() -> Iterator[str]:
    """Yield the table of the first step in a new process on an H100. The driver's cache of compiled PTX is
    empty or full."""
    titles = {
        "stock": "unpatched",
        "empty": "patched, empty cache",
        "full": "patched, full cache",
        "warmup": "patched, after `python -m oxiwarp warmup`",
    }
    cases = json.loads((LATEST / "nvidia-h100" / "cold_start.json").read_text())["cases"]

    def lines() -> Iterator[list[str]]:
        for case in cases:
            seconds = (case["import"], case["patch"], case["steps"][0], case["seconds"], case["more_than_stock"])
            yield [f"`{case['model']}`", titles[case["case"]], *(f"{value:.2f}".replace("-", "−") for value in seconds)]

    columns = ("import, s", "`patch`, s", "first step, s", "sum, s", "more than unpatched, s")
    yield from table(["model", "case", *columns], lines())
    yield ""
    spent = next(case["warmup_seconds"] for case in cases if case["case"] == "warmup")
    yield f"`python -m oxiwarp warmup` took {spent:.1f} s on this machine."


GUIDE_ROWS = {
    "rms_norm": {"1024×2048": "1 × 1024 × 2048", "2048×2048": "2 × 1024 × 2048", "4096×2048": "4 × 1024 × 2048",
                 "8192×3072": "2 × 4096 × 3072", "16384×3072": "4 × 4096 × 3072"},
    "residual_tanh_gated_rms_norm": {f"{n}×3072": f"{n} × 3072" for n in (512, 1024, 2048)},
    "geglu": {"2×1024×4096": "2 × 1024 × 4096"},
    "rope_3d": {"2×480×8×64": "2 × 480 × 8 × 64"},
}  # fmt: skip


def guide_shapes() -> Iterator[str]:
    """Yield the table of small shapes on an H100. These are the shapes that guides for kernel authors
    measure."""
    with (LATEST / "nvidia-h100" / "guides.csv").open(newline="") as file:
        found = list(csv.DictReader(file))

    def lines() -> Iterator[list[str]]:
        for op, shapes in GUIDE_ROWS.items():
            for shape, title in shapes.items():
                times = {row["provider"]: float(row["us"]) for row in found if (row["op"], row["shape"]) == (op, shape)}
                rivals = [name for name in times if name not in ("oxiwarp", "oxiwarp fast", "eager", "copy kernel")]
                best = min(rivals, key=times.__getitem__)
                ours = times["oxiwarp"]
                compiled = min(value for name, value in times.items() if name.startswith("torch.compile"))
                cells = [number(ours), number(times["eager"]), faster(ours, times["eager"]), faster(ours, compiled)]
                yield [f"`{op}`", title, *cells, f"{best}: {faster(ours, times[best])}"]

    columns = ("oxiwarp, µs", "eager, µs", "eager / oxiwarp", "`torch.compile` / oxiwarp", "best baseline / oxiwarp")
    yield from table(["operator", "shape", *columns], lines())


@cache
def two_gpus(check: str) -> dict[str, dict[str, Any]]:
    """Load the measured values of one check of `multi_gpu.py`, by case."""
    found = json.loads((LATEST / "nvidia-h100-x2" / "multi_gpu.json").read_text())
    return {row["case"]: row["figures"] for row in found["checks"][check]}


def collectives() -> Iterator[str]:
    """Yield the table of collectives (such as all-reduce) of two GPUs: eager time, time in a CUDA graph,
    predicted time, and bandwidth."""
    columns = ("eager, µs", "graph, µs", "predicted, µs", "graph, GB/s sent")

    def lines() -> Iterator[list[str]]:
        for case, figures in two_gpus("collectives").items():
            if case.endswith((" 8 KiB", " 4 MiB", " 32 MiB", "512 MiB")):
                name, size = case.split(", ")
                yield [f"`{name}`", size, *(number(figures[key]) for key in columns)]

    yield from table(["collective", "bytes", *columns], lines())


def flux_on_two_gpus() -> Iterator[str]:
    """Yield the table of FLUX.1 on one and on two GPUs: measured and predicted milliseconds per step."""
    titles = {"one GPU": "one GPU", "tensor": "tensor parallelism", "ulysses": "Ulysses", "ring": "ring"}
    columns = {
        "unpatched, ms": "unpatched",
        "patched, ms": "patched",
        "compiled, ms": "compiled",
        "unpatched, graph, ms": "unpatched, CUDA graph",
        "patched, graph, ms": "patched, CUDA graph",
        "predicted, ms": "predicted",
    }
    found = two_gpus("flux")
    lines = ([title, *(number(found[case].get(key)) for key in columns)] for case, title in titles.items())
    yield from table(["ms per step", *columns.values()], lines)


def language_on_two_gpus() -> Iterator[str]:
    """Yield the table of decoders under tensor parallelism: times and numerical errors on one and on two
    GPUs."""
    times = [f"{state}, {gpus}" for gpus in ("1 GPU", "2 GPUs") for state in ("unpatched", "patched")]
    errors = {"error, 1 GPU": "error of one GPU", "error, 2 GPUs": "error of two GPUs, patched"}

    def cells(figures: dict[str, Any]) -> Iterator[str]:
        yield from (number(figures[f"{name}, ms"]) for name in times)
        yield number(figures["predicted, ms"])
        yield from (f"{figures[name]:.4f}" for name in errors)

    head = ["model", *(f"{name}, ms" for name in times), "patched, 2 GPUs, predicted, ms", *errors.values()]
    yield from table(head, ([name, *cells(figures)] for name, figures in two_gpus("language").items()))


def attention(*rivals: str, gpu: str = "nvidia-h200") -> Iterator[str]:
    """Yield the table of TFLOP/s of `oxiwarp.attention` and its baselines on a GPU."""
    cases: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    with (LATEST / gpu / "attention.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            cases.setdefault((row["case"], row["sizes"]), {})[row["provider"]] = row
    compared = rivals[:-1]  # FlashAttention-2, the last baseline, gets no ratio column.

    def cells(found: dict[str, dict[str, str]]) -> Iterator[str]:
        rates = {name: float(row["tflops"]) for name, row in found.items()}
        for name in ("oxiwarp", *rivals):
            yield number(rates[name]) if name in rates else NONE
        for name in compared:
            yield f"{rates['oxiwarp'] / rates[name]:.2f}" if name in rates else NONE

    head = ["case", "batch x heads x tokens x columns", "oxiwarp", *rivals, *(f"oxiwarp / {name}" for name in compared)]
    yield from table(head, ([case, sizes, *cells(found)] for (case, sizes), found in cases.items()))


def kernels() -> Iterator[str]:
    """Yield one table per operator, with one row per shape. A row has the time, the bandwidth relative to a
    copy kernel, and the speedup over each baseline.
    """
    cases: dict[str, dict[tuple[str, str, str], dict[str, dict[str, str]]]] = {}
    for row in rows("results.csv"):
        key = row["chain"], row["model"], row["shape"]
        cases.setdefault(row["op"], {}).setdefault(key, {})[row["provider"]] = row
    for op, shapes in cases.items():
        providers = [row for found in shapes.values() for row in found]
        rivals = [name for name in dict.fromkeys(providers) if name not in ("oxiwarp", "oxiwarp fast", "copy kernel")]
        yield f"\n### `{op}`\n"

        def cells(found: dict[str, dict[str, str]], rivals: list[str] = rivals) -> Iterator[str]:
            ours = found["oxiwarp"]
            yield number(float(ours["us"]))
            yield f"{100 * float(ours['of_copy']):.0f} %"
            for name in rivals:
                yield faster(float(ours["us"]), float(found[name]["us"])) if name in found else NONE

        head = ["chain", "model", "shape", "µs", "of copy", *rivals]
        yield from table(head, ([*key, *cells(found)] for key, found in shapes.items()))
    yield ""


def card() -> Iterator[str]:
    """Yield the benchmark table for the page of oxiwarp's kernels on the Hugging Face Hub.

    Each row shows a function at its largest shape in the benchmark run.
    """
    exports = set(exported(ast.parse((REPOSITORY / "__init__.py").read_text())))
    cases: dict[str, dict[tuple[int, str], dict[str, dict[str, str]]]] = {}
    for row in rows("results.csv"):
        if row["op"] in exports:
            key = int(row["bytes"]), row["shape"]
            cases.setdefault(row["op"], {}).setdefault(key, {}).setdefault(row["provider"], row)

    def lines() -> Iterator[list[str]]:
        for op, shapes in cases.items():
            (_, shape), found = max(shapes.items())
            ours = float(found["oxiwarp"]["us"])
            rivals = (faster(ours, float(found[name]["us"])) for name in ("eager", "torch.compile(chain)"))
            yield [f"`{op}`", shape, number(ours), f"{100 * float(found['oxiwarp']['of_copy']):.0f} %", *rivals]

    environment = json.loads((RUN / "environment.json").read_text())
    yield f"One {environment['gpu']}, bfloat16. The baselines compute the same formula with torch's operators.\n"
    columns = ("µs", "of a copy's bandwidth", "eager / oxiwarp", "`torch.compile` / oxiwarp")
    yield from table(["function", "shape", *columns], lines())


def goals() -> Iterator[str]:
    """Yield a sentence with the numbers of checked and missed performance goals, and a list of the missed
    goals."""
    found = rows("goals.csv")
    missed = [row for row in found if row["met"] != "pass"]
    yield f"The run checks {len(found)} goals. It misses {len(missed)}:\n"
    yield from (f"- {row['goal']}: {row['figure']}" for row in missed)


DTYPES = ("bfloat16", "float16", "float32")


@cache
def product_cases(gpu: str) -> dict[tuple[str, str], dict[str, dict[str, str]]]:
    """Load the results of `products.py` on a GPU. Return a dict that maps each case and shape to the results
    of the implementations.
    """
    cases: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for row in rows("products.csv", LATEST / gpu):
        cases.setdefault((row["case"], row["shape"]), {})[row["provider"]] = row
    return cases


def size_of_product(shape: str) -> str:
    """Return "M x K x N" for a matrix product. `shape` has the sizes batch, tokens, K and N. If the batch is
    1, it may be missing. M is batch times tokens.
    """
    *batch, tokens, depth, columns = map(int, shape.split("×"))
    return f"{tokens * (batch[0] if batch else 1)} x {depth} x {columns}"


def plain_products(gpu: str) -> Iterator[str]:
    """Yield the table of matrix products without an epilogue."""

    def lines() -> Iterator[list[str]]:
        for (case, shape), found in product_cases(gpu).items():
            if case.endswith(("with bias", "without bias")):
                own, other = found["oxiwarp"], found["product"]
                speeds = (f"{float(row['tflops']):.0f}" for row in (other, own))
                share = f"{100 * float(own['equal']):.4g} %"
                clock = (f"{float(own[name]):.0f}" for name in ("clock_mhz", "watts"))
                yield [case, size_of_product(shape), *speeds, f"{float(own['of_product']):.3f}", share, *clock]

    head = ["product", "M x K x N", "`F.linear`, TFLOP/s", "oxiwarp, TFLOP/s", "factor", "equal values", "MHz", "W"]
    yield from table(head, lines())


def products_of_few_rows(gpu: str) -> Iterator[str]:
    """Yield the table of matrix products with few rows."""

    def lines() -> Iterator[list[str]]:
        for (case, shape), found in product_cases(gpu).items():
            if case.endswith("few rows"):
                own, other = found["oxiwarp"], found["product"]
                times = (number(float(row["us"])) for row in (other, own))
                shares = (f"{100 * float(row['of_copy']):.0f} %" for row in (other, own))
                yield [size_of_product(shape), *times, f"{float(own['of_product']):.2f}", *shares]

    head = ["M x K x N", "`F.linear`, µs", "oxiwarp, µs", "factor", "`F.linear`, share of a copy", "oxiwarp, share"]
    yield from table(head, lines())


def products_with_epilogues(gpu: str) -> Iterator[str]:
    """Yield the table of matrix products with an epilogue."""

    def lines() -> Iterator[list[str]]:
        for (case, shape), found in product_cases(gpu).items():
            if "cuBLAS and oxiwarp" in found:
                times = {name: float(row["us"]) for name, row in found.items()}
                own = times["oxiwarp"]
                compiled = times.get("torch.compile(chain)")
                yield [
                    case,
                    size_of_product(shape),
                    number(times["product"], 4),
                    number(own, 4),
                    faster(own, times["cuBLAS and oxiwarp"]),
                    NONE if compiled is None else faster(own, compiled),
                ]

    head = ["product and epilogue", "M x K x N", "`F.linear` alone, µs", "oxiwarp, µs"]
    head += ["factor to `F.linear` and oxiwarp's kernel", "factor to `torch.compile`"]
    yield from table(head, lines())


def exactness() -> Iterator[str]:
    """Yield the table of exactness: for each operator, model code and mode, the share of values that equal
    eager PyTorch in every bit."""
    cases: dict[tuple[str, str, str, str], dict[str, tuple[float, int]]] = {}
    for row in rows("exactness.csv"):
        key = row["op"], row["chain"], row["mode"] or NONE, row["guarantee"]
        case = float(row["equal"]), -int(row["max_ulp"])
        dtypes = cases.setdefault(key, {})
        dtypes[row["dtype"]] = min(dtypes.get(row["dtype"], case), case)

    def lines() -> Iterator[list[str]]:
        for (op, chain, mode, guarantee), found in cases.items():
            measured = (found.get(dtype) for dtype in DTYPES)
            cells = (cell(worst[0], -worst[1], guarantee) if worst else NONE for worst in measured)
            yield [f"`{op}`", chain, mode, guarantee, *cells]

    yield from table(["operator", "models", "mode", "guarantee", *DTYPES], lines())


PAGES = {
    "README.md": {"pipelines": pipeline_seconds},
    "docs/performance.md": {
        "pipelines on an H100": partial(pipelines, "nvidia-h100"),
        "pipelines on an H200": partial(pipelines, "nvidia-h200"),
        "cold start on an H100": cold_start,
        "step times": step_times,
        "models": models,
        "models on an H100": h100,
        "newer models on an H100": newer_models,
        "collectives of two GPUs": collectives,
        "FLUX.1 on two GPUs": flux_on_two_gpus,
        "decoders on two GPUs": language_on_two_gpus,
        "attention": lambda: attention("cuDNN", "FlashAttention-2"),
        "attention on an H100": lambda: attention("FlashAttention-3", "cuDNN", "FlashAttention-2", gpu="nvidia-h100"),
        "products on an H200": partial(plain_products, "nvidia-h200"),
        "products on an H100": partial(plain_products, "nvidia-h100"),
        "products with few rows on an H200": partial(products_of_few_rows, "nvidia-h200"),
        "products with few rows on an H100": partial(products_of_few_rows, "nvidia-h100"),
        "products with epilogues on an H200": partial(products_with_epilogues, "nvidia-h200"),
        "products with epilogues on an H100": partial(products_with_epilogues, "nvidia-h100"),
        "shapes of guides": guide_shapes,
        "goals": goals,
        "kernels": kernels,
    },
    "docs/reference/exactness.md": {"exactness": exactness},
    "py-bindings/python/oxiwarp/hub/card.md": {"the card's benchmark": card},
}

if __name__ == "__main__":
    write("figures", PAGES)

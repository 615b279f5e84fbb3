"""Counts the chains of operations that `patch` computes in every model: `python scripts/supported_models.py`.

A chain is a sequence of operations that one kernel could compute. The script builds a tiny model of each
class: all transformers and UNets of diffusers, and all causal decoders and common encoders of transformers.
It calls each model in bfloat16 and float32, without `patch`, with `patch`, and after `unpatch`. oxiwarp's
kernels run on the CPU executor.

The script writes the results to docs/reference/supported-models.json. From this file, it generates tables in
the page docs/reference/supported-models.md. With `--page`, it calls no model and updates only the page. With
names of models as arguments, the script prints the chains of these models and writes nothing.

`loose_chains.py` finds the chains, independently of `patch`. `chain_coverage.py` finds out whether a kernel computed
each chain.
"""

import argparse
import gc
import importlib.metadata
import io
import json
import multiprocessing
import os
import re
import sys
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr
from typing import Any

from generated import ROOT, table, write

sys.path.insert(0, str(ROOT / "tests/python/support"))

DATA = ROOT / "docs/reference/supported-models.json"
DTYPES = ("bfloat16", "float32")
LIBRARIES = ("diffusers", "transformers")
NORM_ONLY = "norm only"
STATES = ("kernel", NORM_ONLY, "original", "left", "missed")
MOST_FORMS = 40
"""Maximum number of rows in the page's table of missing forms."""
MOST_ROUNDING = 1e-4
"""Maximum difference of the float32 outputs of a model with and without `patch`, relative to the output."""


def cases() -> dict[str, Any]:
    """Return the tiny models, by library and name."""
    import every_diffusers_model
    import every_transformers_model

    found = {f"diffusers/{name}": case for name, case in every_diffusers_model.CASES.items()}
    return found | {f"transformers/{name}": case for name, case in every_transformers_model.CASES.items()}


def versions() -> dict[str, str]:
    """Return the versions of the libraries on which the results depend."""
    return {name: importlib.metadata.version(name) for name in (*LIBRARIES, "torch")}


def quiet() -> None:
    """Turn warnings of the libraries off."""
    import diffusers
    import torch
    import transformers

    warnings.simplefilter("ignore")
    diffusers.utils.logging.set_verbosity_error()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)


def family_of(module: str) -> str:
    """Return the family of a model, from the name of the Python module that defines its class."""
    parts = module.split(".")
    if parts[0] == "transformers":
        return parts[2]
    name = parts[-1].removeprefix("transformer_")
    for ending in ("_transformer_1d", "_transformer_2d", "_transformer_3d", "_transformer"):
        name = name.removesuffix(ending)
    return name


def study(name: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a model and its results."""
    import torch
    from chain_coverage import difference
    from chain_coverage import study as study_model

    case, made, outputs = cases()[name], {}, {}
    quiet()
    for dtype in DTYPES:
        try:
            with redirect_stderr(io.StringIO()):
                model, arguments = case.build(getattr(torch, dtype))
                result, outputs[dtype] = study_model(model, arguments)
        except Exception as error:
            return name, {"error": f"{dtype}: {type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        made["family"] = family_of(type(model).__module__)
        made[dtype] = {
            "operators": list(result.operators),
            "difference": result.difference,
            "restored": result.restored,
            "chains": [(key, (made.state, made.how, made.reason)) for key, made in result.chains.items()],
        }
        del model, arguments
    made["rounding"] = difference(outputs["bfloat16"], [tensor.to(torch.bfloat16) for tensor in outputs["float32"]])
    gc.collect()
    return name, made


def study_all(names: list[str], jobs: int) -> dict[str, Any]:
    """Return the results of the models by name. `jobs` processes run at the same time, and each studies one
    model after the other."""
    from tqdm import tqdm

    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=60) as pool:
        return dict(tqdm(pool.imap_unordered(study, names), total=len(names), disable=None))


def packed(results: dict[str, Any]) -> dict[str, Any]:
    """Return the content of the data file.

    It has a list of all chains (sequences of operations) and a list of all outcomes (how a chain was computed). The
    entries of models refer to both lists by index.
    """
    chains: dict[Any, int] = {}
    outcomes: dict[Any, int] = {}
    made = [result[dtype]["chains"] for result in results.values() for dtype in DTYPES]
    for key in sorted({tuple(key) for pairs in made for key, _ in pairs}):
        chains[key] = len(chains)
    for found in sorted(
        {tuple(found) for pairs in made for _, found in pairs}, key=lambda it: (STATES.index(it[0]), it)
    ):
        outcomes[found] = len(outcomes)
    models = {}
    for name, result in sorted(results.items()):
        models[name] = {"family": result["family"], "rounding": short(result["rounding"])}
        for dtype in DTYPES:
            groups = defaultdict(list)
            for key, found in result[dtype]["chains"]:
                groups[str(outcomes[tuple(found)])].append(chains[tuple(key)])
            ordered = {at: sorted(groups[at]) for at in sorted(groups, key=int)}
            models[name][dtype] = {
                "operators": result[dtype]["operators"],
                "difference": short(result[dtype]["difference"]),
                "restored": result[dtype]["restored"],
                "chains": ordered,
            }
    return {"versions": versions(), "chains": list(chains), "outcomes": list(outcomes), "models": models}


def short(number: float) -> float:
    """Return a number rounded to two significant digits."""
    return float(f"{number:.1e}")


def store(data: dict[str, Any]) -> None:
    """Write the data file, with one line per chain (sequence of operations) and one line per model."""

    def line(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    parts = [f'"versions":{line(data["versions"])}']
    parts += [f'"{name}":[\n' + ",\n".join(map(line, data[name])) + "\n]" for name in ("chains", "outcomes")]
    models = [f"{line(name)}:{line(model)}" for name, model in data["models"].items()]
    parts.append('"models":{\n' + ",\n".join(models) + "\n}")
    DATA.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def load() -> dict[str, Any]:
    """Return the content of the data file."""
    data: dict[str, Any] = json.loads(DATA.read_text())
    return data


def outcomes_of(data: dict[str, Any], name: str, dtype: str) -> dict[int, list[str]]:
    """Map the index of each chain (sequence of operations) of a model to three texts. These are the state of
    the chain, how `patch` computes it, and the reason if no kernel ran.
    """
    groups = data["models"][name][dtype]["chains"]
    found = {}
    for at, chains in groups.items():
        state, cover, reason = data["outcomes"][int(at)]
        # If a kernel computed only the norm of a chain (sequence of operations), and torch the other
        # operations, the state is `NORM_ONLY`.
        made = [NORM_ONLY if (state, cover) == ("kernel", "norm") else state, cover, reason]
        found.update(dict.fromkeys(chains, made))
    return found


def merged(data: dict[str, Any], names: Iterable[str], dtype: str) -> dict[int, list[str]]:
    """Return, for each chain (sequence of operations), the best of its outcomes in several models. The state
    "kernel" is better than all other states."""
    found: dict[int, list[str]] = {}
    for name in names:
        for chain, made in outcomes_of(data, name, dtype).items():
            if chain not in found or STATES.index(made[0]) < STATES.index(found[chain][0]):
                found[chain] = made
    return found


def agrees(model: dict[str, Any], dtype: str) -> bool:
    """Return whether the outputs with and without `patch` differ by no more than the rounding of the dtype
    explains.

    In bfloat16, the limit is the difference between the outputs of the unpatched model in bfloat16 and in
    float32.
    """
    return model[dtype]["difference"] <= (MOST_ROUNDING if dtype == "float32" else model["rounding"])


def percent(part: int, whole: int) -> str:
    """Return a share as a percentage, rounded down."""
    return f"{int(1000 * part / whole) / 10:.1f} %" if whole else "–"


def shares(found: dict[int, list[str]]) -> tuple[int, Counter[str]]:
    """Return the number of chains (sequences of operations), and the number of chains in each state."""
    return len(found), Counter(made[0] for made in found.values())


def named(data: dict[str, Any], library: str) -> list[str]:
    """Return the names of the models of a library."""
    return [name for name in data["models"] if name.startswith(f"{library}/")]


def summary(data: dict[str, Any]) -> Iterator[str]:
    """Yield the table with the percentage of chains (sequences of operations) in each state, by library and
    dtype."""
    rows = []
    for library in LIBRARIES:
        for dtype in DTYPES:
            names = named(data, library)
            found = merged(data, names, dtype)
            count, states = shares(found)
            models = [data["models"][name] for name in names]
            rows.append([
                f"{library} {data['versions'][library]}, {dtype}",
                len(names),
                count,
                percent(states["kernel"] + states["original"], count),
                percent(states["kernel"], count),
                percent(states[NORM_ONLY], count),
                sum(model[dtype]["difference"] == 0 for model in models),
                sum(model[dtype]["difference"] > 0 and agrees(model, dtype) for model in models),
                sum(not agrees(model, dtype) for model in models),
                sum(model[dtype]["restored"] for model in models),
            ])  # fmt: skip
    head = [
        "library",
        "models",
        "chains",
        "rewritten",
        "kernel ran",
        NORM_ONLY,
        "equal bits",
        "equal but for rounding",
    ]
    yield from table([*head, "other outputs", "restored by `unpatch`"], rows)


def kinds(data: dict[str, Any]) -> Iterator[str]:
    """Yield the table with the number of chains (sequences of operations) in each state, by kind of chain."""
    rows = []
    found = merged(data, data["models"], "bfloat16")
    for kind in sorted({chain[1] for chain in data["chains"]}):
        count, states = shares({at: made for at, made in found.items() if data["chains"][at][1] == kind})
        own = [
            made for at, made in found.items() if data["chains"][at][1] == kind and made[0] in ("kernel", "original")
        ]
        how = Counter(made[1] for made in own)
        rows.append([kind, count, how["rewritten"], how["fusion"], *cells(states)])
    yield from table(["kind of chain", "chains", "in a rewritten method", "in a fusion", *STATES], rows)


def cells(states: Counter[str]) -> list[int]:
    """Return the numbers of chains in each state."""
    return [states[state] for state in STATES]


def families(data: dict[str, Any]) -> Iterator[str]:
    """Yield one table per library with one row per family of models."""
    for library in LIBRARIES:
        groups = defaultdict(list)
        for name in named(data, library):
            groups[data["models"][name]["family"]].append(name)
        rows = []
        for family, names in sorted(groups.items()):
            count, states = shares(merged(data, names, "bfloat16"))
            counts = [data["models"][name]["bfloat16"]["operators"] for name in names]
            before, after = map(sum, zip(*counts, strict=True))
            operators = [before, after, percent(before - after, before)] if all(map(all, counts)) else ["–"] * 3
            rows.append([f"`{family}`", len(names), count, *cells(states), *operators])
        yield f"\n### {library}\n"
        yield from table(["family", "models", "chains", *STATES, "operators", "with `patch`", "fewer"], rows)
    yield ""


def forms(data: dict[str, Any]) -> Iterator[str]:
    """Yield the table of the reasons why no kernel computed a chain (a sequence of operations). Each row has
    one reason, the number of chains for which it is the reason, and one of these chains as an example."""
    found = merged(data, data["models"], "bfloat16")
    groups = defaultdict(list)
    for at, (state, _, reason) in found.items():
        if state != "kernel":
            groups[state, data["chains"][at][1], reason or place_of(data["chains"][at])].append(at)
    ranked = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    rows = []
    for (state, kind, reason), chains in ranked[:MOST_FORMS]:
        file, _, line, owner, source = data["chains"][chains[0]]
        example = f"`{source.replace('|', chr(92) + '|')[:60]}`, {file.rpartition('/')[2]}:{line}"
        rows.append([len(chains), kind, state, reason.replace("|", "\\|"), example])
    yield from table(["chains", "kind", "state", "missing form", "example"], rows)
    rest = sum(len(chains) for _, chains in ranked[MOST_FORMS:])
    if rest:
        yield f"\n{len(ranked) - MOST_FORMS} more forms have {rest} chains."


def place_of(chain: list[Any]) -> str:
    """Return a likely reason why `patch` does not recognise a chain (a sequence of operations).

    The reason depends only on the function that contains the chain.
    """
    if re.match(r"[\w/]+: ", chain[4]):
        return "in a function that is no method"
    method = chain[3].rpartition(".")[2]
    return "not recognised" if method in ("forward", "__call__") else "in a method that `patch` does not read"


def missed(data: dict[str, Any]) -> Iterator[str]:
    """Yield one line for each chain (sequence of operations) that `patch` does not recognise."""
    for at, (state, *_) in sorted(merged(data, data["models"], "bfloat16").items()):
        if state == "missed":
            file, kind, line, owner, source = data["chains"][at]
            yield f"{file}:{line}: {owner}: {kind}: {source}"


PAGE = "docs/reference/supported-models.md"
PARTS = {"summary": summary, "kinds": kinds, "families": families, "missing forms": forms}


def parts() -> dict[str, Any]:
    """Return the generated parts of the page."""
    data = load()
    return {mark: lambda part=part: part(data) for mark, part in PARTS.items()}


def show(results: dict[str, Any], by_class: bool) -> None:
    """Print the chains (sequences of operations) of models. If `by_class` is true, print only the numbers of
    chains of each class."""
    for name, result in results.items():
        if "error" in result:
            print(f"{name}: {result['error']}\n{result['traceback']}")
            continue
        for dtype in DTYPES:
            of = result[dtype]
            before, after = of["operators"]
            text = f"{before} operators, with patch {after}; difference {of['difference']:.1e}"
            print(f"{name} {dtype}: {text} (rounding {result['rounding']:.1e}); restored: {of['restored']}")
            if by_class:
                counts: dict[str, Counter[str]] = defaultdict(Counter)
                for key, found in of["chains"]:
                    counts[key[3].rpartition(".")[0]][found[0]] += 1
                for owner, states in counts.items():
                    print(f"  {owner}: {', '.join(f'{state} {states[state]}' for state in STATES if states[state])}")
                continue
            for (file, kind, line, owner, source), (state, how, reason) in of["chains"]:
                why = ": ".join(filter(None, (state, how, reason)))
                print(f"  {file.rpartition('/')[2]}:{line} {owner}: {kind}: {why}\n      {source}")


def print_shares(data: dict[str, Any]) -> None:
    """Print two percentages: how many of all chains (sequences of operations) `patch` rewrites, and how many
    a kernel computed."""
    print("\n".join(summary(data)))
    for dtype in DTYPES:
        count, states = shares(merged(data, data["models"], dtype))
        rewritten = percent(states["kernel"] + states["original"], count)
        print(f"{dtype}: {count} chains; rewritten: {rewritten}; kernel ran: {percent(states['kernel'], count)}")


def main() -> int:
    """Study models, and write or print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="names of classes; prints their chains and writes nothing")
    parser.add_argument(
        "--page", action="store_true", help="write the page and print the shares from the data file, call no model"
    )
    parser.add_argument("--missed", action="store_true", help="print the missed chains of the data file")
    parser.add_argument("--classes", action="store_true", help="print the numbers of chains of each class")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes")
    options = parser.parse_args()
    if options.missed:
        print("\n".join(missed(load())))
        return 0
    if options.page:
        write("supported_models", {PAGE: parts()})
        print_shares(load())
        return 0
    known = list(cases())
    names = [name for name in known if not options.names or name.partition("/")[2] in options.names]
    if len(names) < len(options.names):
        parser.error(f"unknown model among {options.names}")
    results = study_all(names, min(options.jobs, len(names)))
    failed = {name: result for name, result in results.items() if "error" in result}
    if options.names or options.classes:
        show(dict(sorted(results.items())), options.classes)
        return bool(failed)
    show(failed, False)
    store(packed({name: result for name, result in results.items() if name not in failed}))
    write("supported_models", {PAGE: parts()})
    print_shares(load())
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

"""The PTX that the wheel embeds: complete, in registers, 16 bytes at a time. No GPU needed.

`make ptx` leaves `target/ptx/<arch>/<op>.ptx`; `OXIWARP_PTX_DIR` names another folder. Where the files or the tools are
missing the tests are skipped with the reason, except in CI, where that is a failure.
"""

import os
import re
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest
from ptx_checks import (
    PTXAS_VERSION,
    Entry,
    Module,
    PtxasError,
    Usage,
    assemble,
    assemble_all,
    check_bounds,
    check_entries,
    check_header,
    check_local,
    check_memory,
    check_registers,
    check_width,
    declared_entries,
    find_tool,
    merge,
    parse,
    ptxas_version,
)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("OXIWARP_PTX_DIR") or ROOT / "target" / "ptx")
ARCHES = ("sm_75", "sm_80", "sm_90")
TENSOR_CORES = ("attention", "attention_backward")  # `mma.m16n8k16` begins with sm_80: sm_75 has no entry


def unavailable(reason: str) -> NoReturn:
    """Skip on a developer's machine; in CI nothing may be missing."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (a failure, because CI is set)")
    pytest.skip(reason)


@cache
def units_of(arch: str) -> dict[str, str]:
    """The PTX of `arch`, by op."""
    units = {path.stem: path.read_text() for path in sorted((FOLDER / arch).glob("*.ptx"))}
    if not units:
        unavailable(f"{FOLDER / arch} has no PTX: run `make ptx`")
    return units


def sources(layer: str) -> dict[str, str]:
    """The Rust source of each op in a layer, by op."""
    folder = ROOT / layer / "src" / "ops"
    if not folder.exists():
        pytest.skip("no source tree here")
    return {path.stem: path.read_text() for path in folder.glob("*.rs") if path.stem != "mod"}


def need_tools() -> None:
    """ptxas and the disassembler, from NVIDIA's wheels or a toolkit."""
    missing = [name for name in ("ptxas", "cuobjdump", "nvdisasm") if not find_tool(name)]
    if missing:
        unavailable(f"{', '.join(missing)} not found: pip install --no-deps -r py-bindings/requirements-ptx.txt")


@pytest.fixture(scope="session", params=ARCHES)
def arch(request: pytest.FixtureRequest) -> str:
    """Each architecture of the wheel."""
    return str(request.param)


@pytest.fixture(scope="session")
def declared(arch: str) -> Module:
    """Its PTX, as text."""
    return merge(map(parse, units_of(arch).values()))


@pytest.fixture(scope="session")
def assembled(arch: str, tmp_path_factory: pytest.TempPathFactory) -> Module:
    """Its PTX, assembled once for all tests (a second for each op)."""
    units = units_of(arch)
    need_tools()
    return assemble_all(units, arch, tmp_path_factory.mktemp(arch))


def expect_none(problems: list[str]) -> None:
    """Fail with every problem, not the first."""
    assert not problems, "\n" + "\n".join(problems)


def test_ptxas_version() -> None:
    """Another ptxas allots registers otherwise: this one is of the driver's generation."""
    need_tools()
    ptxas = find_tool("ptxas")
    assert ptxas is not None
    if (found := ptxas_version(ptxas)) != PTXAS_VERSION:
        unavailable(f"{ptxas} is {found}, expected {PTXAS_VERSION}")


def test_header(arch: str) -> None:
    problems = {op: check_header(parse(text), arch) for op, text in units_of(arch).items()}
    expect_none([f"{op}: {problem}" for op, found in problems.items() for problem in found])


def test_every_op_has_its_entries(arch: str) -> None:
    ops = sources("kernels-gpu")
    assert set(units_of(arch)) == set(ops)
    for op, source in ops.items():
        assert (expected := declared_entries(source)), f"{op}: no entry! in its source"
        if arch == "sm_75" and op in TENSOR_CORES:
            expected = set()
        expect_none(check_entries(parse(units_of(arch)[op]).entries, expected))


def test_architectures_have_the_same_entries(arch: str, declared: Module) -> None:
    newest = merge(map(parse, units_of(ARCHES[-1]).values()))
    left_out = {name for name in newest.entries if name.startswith(TENSOR_CORES)} if arch == "sm_75" else set()
    assert set(declared.entries) == set(newest.entries) - left_out


def test_launched_kernels_exist(declared: Module) -> None:
    """Every variant that an op of the host names is in the PTX, by its name or by names that begin with it."""
    kernels = {name.rpartition("_")[0] for name in declared.entries}
    named = {name for op, text in sources("host").items() for name in re.findall(rf'"({op}_\w+)"', text)}
    assert named
    missing = [name for name in sorted(named - kernels) if not any(k.startswith(f"{name}_") for k in kernels)]
    expect_none([f"{name}: launched, not in the PTX" for name in missing])


def test_every_entry_has_bounds(declared: Module) -> None:
    expect_none(check_bounds(declared.entries))


def test_no_spill_and_no_stack(assembled: Module) -> None:
    expect_none(check_memory(assembled))


def test_a_block_fits_the_register_file(assembled: Module) -> None:
    expect_none(check_registers(assembled))


def test_no_local_memory(assembled: Module) -> None:
    assert set(assembled.sass) == set(assembled.entries)
    expect_none(check_local(assembled.sass))


def test_held_rows_move_16_bytes_at_a_time(assembled: Module) -> None:
    expect_none(check_width(assembled.sass))


def entry(name: str, body: str, bounds: str = "") -> str:
    """An entry that reads `in` and writes `out`."""
    return f"""
.visible .entry {name}(.param .u64 in, .param .u64 out)
{bounds}
{{
    .reg .b32 %r<200>; .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
    {body}
    ret;
}}
"""


HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"
# An array indexed by a value from memory cannot stay in registers; the loads and stores are 4 bytes wide.
LOCAL = """.local .align 4 .b8 array[64]; ld.global.u32 %r1, [%rd1]; and.b32 %r2, %r1, 15; mul.wide.u32 %rd3, %r2, 4;
    mov.u64 %rd4, array; add.u64 %rd5, %rd4, %rd3; st.local.u32 [%rd4], %r1; st.local.u32 [%rd5], %r2;
    ld.local.u32 %r3, [%rd4]; st.global.u32 [%rd2], %r3;"""
# 150 values alive at once, and at most 64 registers a thread in a block of 1024.
SPILL = "\n".join(
    [f"ld.volatile.global.u32 %r{i}, [%rd1+{4 * i}];" for i in range(150)]
    + [f"st.volatile.global.u32 [%rd2+{4 * i}], %r{149 - i};" for i in range(150)]
)
NARROW = "ld.global.u32 %r1, [%rd1]; st.global.v4.u32 [%rd2], {%r1, %r1, %r1, %r1};"
BROKEN = (
    HEADER
    + entry("rms_norm_f32", LOCAL)
    + entry("rms_norm_f16", SPILL, ".maxntid 1024, 1, 1")
    + entry("rms_norm_hold1_f32", NARROW, ".maxntid 32, 1, 1")
)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Module:
    """Kernels with every fault that the checks above look for."""
    need_tools()
    return assemble(BROKEN, "sm_90", tmp_path_factory.mktemp("broken"))


def test_checks_report_a_missing_entry(broken: Module) -> None:
    source = (
        "entry! {\n rms_norm<T: [f32, f16, bf16]>(x: Rows) => a::<T>(x);\n rms_norm_hold1<T: [f16]>(x: Rows) => b }"
    )
    problems = check_entries(broken.entries, declared_entries(source))
    assert problems[:2] == ["rms_norm_bf16: no such entry", "rms_norm_hold1_f16: no such entry"]
    assert problems[2:] == ["rms_norm_hold1_f32: not in the source"]


def test_checks_report_missing_bounds(broken: Module) -> None:
    assert check_bounds(broken.entries) == ["rms_norm_f32: no .maxntid"]


def test_checks_report_spill_and_stack(broken: Module) -> None:
    problems = check_memory(broken)
    assert any(problem.startswith("rms_norm_f16: spills") for problem in problems)
    assert any(problem.startswith("rms_norm_f32: stack frame of 64 bytes") for problem in problems)
    assert not any("hold1" in problem for problem in problems)
    unreported = Module(broken.isa, broken.target, broken.entries)
    assert "rms_norm_f32: ptxas says nothing about it" in check_memory(unreported)


def test_checks_report_local_memory(broken: Module) -> None:
    problems = check_local(broken.sass)
    assert {problem.split(":")[0] for problem in problems} == {"rms_norm_f32", "rms_norm_f16"}
    assert all("LDL" in problem and "STL" in problem for problem in problems)


def test_checks_report_narrow_loads(broken: Module) -> None:
    problems = check_width(broken.sass)
    assert len(problems) == 2, problems
    assert problems[0].startswith("rms_norm_hold1_f32: narrow access: 1 x LDG.E")
    assert problems[1] == "rms_norm_hold1_f32: no LDG.128"


def test_checks_report_registers() -> None:
    entries = {"fits": Entry(1024), "large": Entry(1024), "twice": Entry(512, 2)}
    usage = {"fits": Usage(64), "large": Usage(65), "twice": Usage(65)}
    problems = check_registers(Module((8, 0), "sm_90", entries, usage))
    assert [problem.split(":")[0] for problem in problems] == ["large", "twice"]


def test_checks_report_header() -> None:
    problems = check_header(parse(HEADER.replace("8.0", "9.1")), "sm_80")
    assert problems == ["target is sm_90, expected sm_80", "PTX ISA is 9.1, expected 9.0 at most"]


def test_what_ptxas_refuses_is_an_error(tmp_path: Path) -> None:
    need_tools()
    with pytest.raises(PtxasError, match="nonsense"):
        assemble(HEADER + entry("rms_norm_f32", "nonsense %r1;"), "sm_90", tmp_path)

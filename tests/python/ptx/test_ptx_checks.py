"""Tests of the checks that `test_ptx.py` uses. Each check must report its kind of fault in a kernel that has
this fault.

The tests need no GPU.
"""

from pathlib import Path

import pytest
from ptx_checks import (
    Entry,
    Module,
    PtxasError,
    Usage,
    assemble,
    check_bounds,
    check_entries,
    check_header,
    check_local,
    check_memory,
    check_names,
    check_registers,
    check_serial,
    check_width,
    declared_entries,
    parse,
)
from ptx_wait import check_wait
from test_ptx import need_tools, overlapping


def entry(name: str, body: str, bounds: str = "") -> str:
    """Return the PTX of an entry with two pointer parameters, `in` and `out`. The entry loads them into
    `%rd1` and `%rd2` before `body`."""
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
# The body of a kernel with an array in local memory. The array index is loaded from memory, so the array
# cannot stay in registers. Each load or store of the array accesses 4 bytes.
LOCAL = """.local .align 4 .b8 array[64]; ld.global.u32 %r1, [%rd1]; and.b32 %r2, %r1, 15; mul.wide.u32 %rd3, %r2, 4;
    mov.u64 %rd4, array; add.u64 %rd5, %rd4, %rd3; st.local.u32 [%rd4], %r1; st.local.u32 [%rd5], %r2;
    ld.local.u32 %r3, [%rd4]; st.global.u32 [%rd2], %r3;"""
# The body of a kernel that spills registers to local memory. It has 150 live values at once, but a thread has
# at most 64 registers if a block has 1024 threads.
SPILL = "\n".join(
    [f"ld.volatile.global.u32 %r{i}, [%rd1+{4 * i}];" for i in range(150)]
    + [f"st.volatile.global.u32 [%rd2+{4 * i}], %r{149 - i};" for i in range(150)]
)
NARROW = "ld.global.u32 %r1, [%rd1]; st.global.v4.u32 [%rd2], {%r1, %r1, %r1, %r1};"
BROKEN = (
    HEADER
    + entry("rms_norm_any_f32", LOCAL)
    + entry("rms_norm_any_f16", SPILL, ".maxntid 1024, 1, 1")
    + entry("rms_norm_block1_f32", NARROW, ".maxntid 32, 1, 1")
)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Module:
    """Return assembled kernels with faults: local memory, register spills, a missing launch bound, and narrow
    memory accesses."""
    need_tools()
    return assemble(BROKEN, "sm_90", tmp_path_factory.mktemp("broken"))


def test_checks_report_a_missing_entry(broken: Module) -> None:
    source = """entry! {
        @shared(|block| block[0])
        rms_norm_any<T: [f32, f16]>(x: Rows) => a::<T>(x),
            [bf16] => b::<T>(x);
        rms_norm_block1<T: [f16]>(x: Rows) => b
    }"""
    problems = check_entries(broken.entries, declared_entries(source))
    assert problems[:2] == ["rms_norm_any_bf16: no such entry", "rms_norm_block1_f16: no such entry"]
    assert problems[2:] == ["rms_norm_block1_f32: not in the source"]


def test_checks_report_missing_bounds(broken: Module) -> None:
    assert check_bounds(broken.entries) == ["rms_norm_any_f32: no .maxntid"]


def test_checks_report_spill_and_stack(broken: Module) -> None:
    problems = check_memory(broken)
    assert any(problem.startswith("rms_norm_any_f16: spills") for problem in problems)
    assert any(problem.startswith("rms_norm_any_f32: stack frame of 64 bytes") for problem in problems)
    assert not any("block1" in problem for problem in problems)
    unreported = Module(broken.isa, broken.target, broken.entries)
    assert "rms_norm_any_f32: ptxas says nothing about it" in check_memory(unreported)


def test_checks_report_local_memory(broken: Module) -> None:
    problems = check_local(broken.sass)
    assert {problem.split(":")[0] for problem in problems} == {"rms_norm_any_f32", "rms_norm_any_f16"}
    assert all("LDL" in problem and "STL" in problem for problem in problems)


def test_checks_report_narrow_loads(broken: Module) -> None:
    problems = check_width(broken.sass)
    assert len(problems) == 2, problems
    assert problems[0].startswith("rms_norm_block1_f32: narrow access: 1 x LDG.E")
    assert problems[1] == "rms_norm_block1_f32: no LDG of 128 bits"


def test_checks_report_names() -> None:
    good = ["rope_any_f32", "rope_qk_warp1_f16", "rope_d64_warp1_bf16"]
    assert check_names(good, "rope") == []
    bad = ["rope_f32", "rope_hold2_f16", "rope_block2", "rope_block2_i8", "norm_any_f32"]
    assert [problem.split(":")[0] for problem in check_names([*good, *bad], "rope")] == sorted(bad)


def test_width_depends_on_the_table(broken: Module) -> None:
    """The required width of memory accesses depends on the op and its variant.

    `layer_norm_warp5_f16` may access only four 16-bit elements (8 bytes) at a time. `rms_norm_block2_f16`
    must access 16 bytes.
    """
    code = broken.sass["rms_norm_block1_f32"]
    halves = [one._replace(modifiers=one.modifiers.replace(".128", ".64")) for one in code if one.opcode == "STG"]
    halves += [one._replace(opcode="LDG") for one in halves]
    assert check_width({"layer_norm_warp5_f16": halves, "rms_norm_any_f16": code}) == []
    assert len(check_width({"rms_norm_block2_f16": halves})) == 3
    assert len(check_width({"layer_norm_warp5_f32": halves})) == 3


def test_width_of_8_bit_floats(broken: Module) -> None:
    """A kernel that quantizes to 8-bit floats loads packs (16 bytes) and stores one byte for each element. It also
    stores scales of 4 bytes."""
    wide = [one for one in broken.sass["rms_norm_block1_f32"] if one.opcode == "STG"]
    loads = [one._replace(opcode="LDG") for one in wide]
    of_bits = {n: [one._replace(modifiers=one.modifiers.replace(".128", f".{n}")) for one in wide] for n in (64, 32)}
    scales = of_bits[32] * 2
    assert check_width({"quantize_fp8_per_row_block2_bf16": loads + of_bits[64] + scales}) == []
    assert check_width({"quantize_fp8_per_row_block2_f32": loads + of_bits[32]}) == []
    assert len(check_width({"quantize_fp8_per_row_block2_bf16": loads + scales + of_bits[32]})) == 2
    assert len(check_width({"quantize_fp8_per_row_block2_bf16": of_bits[64]})) == 1


def test_checks_report_registers() -> None:
    entries = {"fits": Entry(1024), "large": Entry(1024), "twice": Entry(512, 2)}
    usage = {"fits": Usage(64), "large": Usage(65), "twice": Usage(65)}
    problems = check_registers(Module((8, 0), "sm_90", entries, usage))
    assert [problem.split(":")[0] for problem in problems] == ["large", "twice"]


def test_checks_report_products_one_after_the_other() -> None:
    said = (
        "Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources"
    )
    assert check_serial(Module((8, 0), "sm_90a", {}, remarks=(said, "another"))) == [said]


def test_checks_report_accesses_before_the_wait(tmp_path: Path) -> None:
    """`check_wait` reports entries whose accesses to global memory can run before `griddepcontrol.wait`."""
    need_tools()
    body = "ld.volatile.global.u32 %r1, [%rd1]; st.global.u32 [%rd2], %r1;"
    constant = "ld.global.nc.u32 %r1, [%rd1]; st.global.u32 [%rd2], %r1;"
    texts = {"bare": entry("bare", body), "plain": entry("plain", "griddepcontrol.wait;" + body)}
    texts["alone"] = entry("alone", "griddepcontrol.wait;" + constant)
    # Only one of the two paths executes `griddepcontrol.wait`.
    branch = "setp.eq.u64 %p1, %rd1, 16; @%p1 bra skip;\n\tgriddepcontrol.wait;\nskip:"
    texts["branch"] = entry("branch", f".reg .pred %p<2>; {branch} {body}")
    placed = {name: entry(name, "\n\tgriddepcontrol.wait;" + constant) for name in ("placed", "activation_any_bf16")}
    texts |= overlapping(placed)
    texts |= overlapping({name: entry(name, body) for name in ("right", "early")})
    load = (
        "{ .reg .b64 %p; .reg .b32 %v; ld.param.u64 %p, [in]; ld.volatile.global.u32 %v, [%p]; } griddepcontrol.wait;"
    )
    texts["early"] = texts["early"].replace("griddepcontrol.wait;", load)
    module = assemble(HEADER.replace("8.0", "8.1") + "".join(texts.values()), "sm_90", tmp_path)
    early = ["activation_any_bf16", "alone", "bare", "branch", "early"]
    what = dict.fromkeys(early, "LDG") | {"bare": "LDG, STG", "branch": "LDG, STG"}
    problems = [f"{name}: {what[name]} before the wait is over" for name in early]
    assert sorted(check_wait(module.sass)) == problems


def test_checks_report_header() -> None:
    problems = check_header(parse(HEADER.replace("8.0", "9.1")), "sm_80")
    assert problems == ["target is sm_90, expected sm_80", "PTX ISA is 9.1, expected 9.0 at most"]


def test_what_ptxas_refuses_is_an_error(tmp_path: Path) -> None:
    need_tools()
    with pytest.raises(PtxasError, match="nonsense"):
        assemble(HEADER + entry("rms_norm_any_f32", "nonsense %r1;"), "sm_90", tmp_path)

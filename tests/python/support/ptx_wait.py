"""Checks in machine code that kernels wait for earlier launches before they access memory.

With programmatic dependent launch, a kernel may start before the previous kernel has finished.
"""

import re

from ptx_checks import Instruction, Sass

# The opcodes that ptxas generates for the wait for earlier launches, in this order. The last opcode is a
# conditional `EXIT` whose condition is never true.
_WAIT = ("ACQBULK", "BAR", "B2R", "EXIT")
_MEMORY = re.compile(r"(U?LD(?!C)|ST|ATOM|RED|CCTL|UBLK|UTMA|SULD|SUST|TEX|TLD)")


def check_wait(sass: Sass) -> list[str]:
    """Check that each kernel, on every path, waits for earlier launches before it accesses memory.

    ptxas may move an `ld.global.nc` (a load of read-only data) before a `griddepcontrol.wait`. In the PTX, the wait is
    therefore followed by a barrier and by an exit that no thread takes, because ptxas does not move loads across this
    exit.
    """
    problems = []
    for name, code in sass.items():
        if early := sorted(_accesses_before_wait(code)):
            problems.append(f"{name}: {', '.join(early)} before the wait is over")
    return problems


def _accesses_before_wait(code: list[Instruction]) -> set[str]:
    """Return the opcodes of memory accesses that a kernel can reach before its wait for earlier launches is
    over.

    Indirect jumps count as memory accesses, because their targets are unknown.
    """
    places = {instruction.address: at for at, instruction in enumerate(code)}
    early, seen, ahead = set(), set(), [(0, 0)]
    while ahead:
        at, stage = ahead.pop()
        if (at, stage) in seen or at >= len(code):
            continue
        seen.add((at, stage))
        opcode, modifiers, _, target, always = code[at]
        if _MEMORY.match(opcode) and stage < (len(_WAIT) if "CONSTANT" in modifiers else 1):
            early.add(opcode)
        if opcode in {"BRX", "JMX"} and (stage == 0 or any("CONSTANT" in modifiers for _, modifiers, *_ in code)):
            early.add(opcode)
        if stage < len(_WAIT) and opcode == _WAIT[stage] and (opcode != "BAR" or "RED" in modifiers):
            stage += 1
        if stage == len(_WAIT):
            continue
        if target is not None:
            ahead.append((places[target], stage))
        if not always or opcode not in {"BRA", "BRX", "JMX", "EXIT", "RET"}:
            ahead.append((at + 1, stage))
    return early

"""Do kernels wait for the launches before them, in front of all that they access? Asked of the machine code."""

import re

from ptx_checks import Instruction, Sass

# What a wait is made of, in this order; the last is an exit that no thread takes.
_WAIT = ("ACQBULK", "BAR", "B2R", "EXIT")
_MEMORY = re.compile(r"(U?LD(?!C)|ST|ATOM|RED|CCTL|UBLK|UTMA|SULD|SUST|TEX|TLD)")


def check_wait(sass: Sass) -> list[str]:
    """On every path a kernel waits for the launches before it, and accesses no memory in front of that.

    `ld.global.nc`, which ptxas moves in front of a `griddepcontrol.wait` alone, stands behind an exit that needs a
    barrier and that no thread takes.
    """
    problems = []
    for name, code in sass.items():
        if early := sorted(_accesses_before_wait(code)):
            problems.append(f"{name}: {', '.join(early)} before the wait is over")
    return problems


def _accesses_before_wait(code: list[Instruction]) -> set[str]:
    """Opcodes that some path from the start reaches too early; a jump to nobody knows where is one."""
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

"""Lists the implementations that a benchmark compares for one use of an op. These implementations are called
providers.

The providers are oxiwarp in each mode, the model's torch calls, and a single torch function that computes the
same result. The torch calls and the torch function are also measured with torch.compile. Other libraries,
such as Liger, are providers too.
"""

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from forms import Chain, Form

OURS = "oxiwarp"
EAGER = "eager"
CHAIN_COMPILED = "torch.compile(chain)"
PEERS = ("Liger", "QuACK")
FLOOR = "copy kernel"


def name_of(mode: str, form: Form) -> str:
    """Return the name under which the benchmark reports oxiwarp in `mode`. It is "oxiwarp" for the default
    mode, and otherwise has the mode as a suffix."""
    return OURS if mode == form.modes[0] else f"{OURS} {mode}"


def is_ours(provider: str) -> bool:
    """Return True if the named implementation is oxiwarp, in any mode."""
    return provider.split()[0] == OURS


def compiled(chain: Chain) -> Chain:
    """Compile a function with torch.compile, as one graph and for static shapes."""
    return torch.compile(chain, fullgraph=True, dynamic=False)


def to_compile(form: Form) -> dict[str, Chain]:
    """Return the functions to compile with torch.compile, as a dict by the name of the implementation."""
    chains = {CHAIN_COMPILED: form.eager}
    if form.library:
        name, library = form.library
        chains[f"torch.compile({name})"] = library
    return chains


def providers_of(form: Form) -> dict[str, Chain]:
    """Return all installed implementations by name. The first one is the model's eager code."""
    found: dict[str, Chain] = {EAGER: form.eager}
    found |= ours_of(form)
    if form.library:
        found |= [form.library]
    found |= {name: compiled(chain) for name, chain in to_compile(form).items()}
    for name, peer in form.peers.items():
        if (module := installed(peer.module)) is not None:
            found[name] = _bound(peer.call, module)
    return found


def ours_of(form: Form) -> dict[str, Chain]:
    """Map the name of each mode, such as "oxiwarp fast", to a function that calls oxiwarp in this mode.

    The map is empty if this build of oxiwarp lacks the op.
    """
    return {name_of(mode, form): form.call(mode) for mode in form.modes} if has_ours(form) else {}


def _bound(call: Chain, module: Any) -> Callable[..., Any]:
    return lambda **inputs: call(module, **inputs)


def has_ours(form: Form) -> bool:
    """Return True if this build of oxiwarp has the public function of `form`. If `form` measures a gradient,
    the operator for the gradient must exist too."""
    import oxiwarp

    gradient = form.gradient or form.op
    return hasattr(oxiwarp, form.function) and (not form.backward or hasattr(torch.ops.oxiwarp, gradient))


def absent(forms: list[Form]) -> list[str]:
    """Return why libraries have no column in an op's table, one text per missing library, e.g. "Liger is not
    installed"."""
    lines = []
    for name in PEERS:
        peers = [form.peers[name] for form in forms if name in form.peers]
        if not peers:
            lines.append(f"{name} has no such op")
        elif all(installed(peer.module) is None for peer in peers):
            lines.append(f"{name} is not installed")
    return lines


@cache
def installed(module: str) -> Any | None:
    """Return the module of another library, or None if the import fails."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # any error means that the library is not available
        print(f"{module}: not measured ({type(error).__name__}: {error})")
        return None

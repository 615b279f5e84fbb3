"""Fixtures of all tests. A test with the fixture `device` runs on the CPU executor, and also on a GPU if
one is present."""

import gc
import os
import shlex
import sys

import pytest
import torch

# Without a GPU, do not collect the thousands of GPU cases, because pytest would have to skip them one by one.
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def pytest_report_header() -> str:
    return f"devices: {', '.join(DEVICES)}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--matrix",
        choices=("some", "all"),
        default="some",
        help="cells of test_patch_matrix.py: some for each change and each model, or all",
    )
    parser.addoption("--extra", action="store_true", help="run only the tests marked `extra`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests without the marker `extra`. With the option `--extra`, select only the tests with this
    marker. Run PTX tests first.

    The PTX tests take longest. If they started last, all other test processes would be idle at the end.
    """
    extra = config.getoption("--extra")
    left_out = [item for item in items if (item.get_closest_marker("extra") is not None) != extra]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]
    items.sort(key=lambda item: item.path.parent.name != "ptx")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Add to the report of a failed test the command that runs only this test."""
    report = yield
    if report.failed:
        test = shlex.quote(f"{os.path.relpath(item.path)}::{item.nodeid.partition('::')[2]}")
        report.sections.append(("run alone", f"{sys.executable} -m pytest {test}"))
    return report


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda")


@pytest.fixture(autouse=True, scope="session")
def without_tf32():
    """Compute convolutions in float32 instead of TF32. TF32 has only 10 fraction bits, so its rounding could
    make a tiny difference between two models much larger.
    """
    torch.backends.cudnn.allow_tf32 = False


@pytest.fixture(autouse=True, scope="module")
def without_old_objects():
    """Exclude from garbage collection all objects that exist before the tests of a file start, such as
    imported modules.

    Each full collection would visit all these objects. Also make the garbage collector run less often: tracing and
    compiling create many objects that stay in use, so a collection would free only a few.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def without_grad():
    """Disable grad mode, because most calls need no gradient. Tests of gradients enable it."""
    with torch.no_grad():
        yield

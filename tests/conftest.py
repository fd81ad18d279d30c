"""What holds for every test: one folder of compiled kernels, fixed seeds, and a process left as it was found."""

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

# Read by torch._inductor when it first writes a kernel, so it has to be set before any test module imports torch.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(REPOSITORY / ".cache" / "inductor"))
# Read when torch loads OpenMP. Several workers of pytest share the cores; threads that wait by spinning would take them
# from those that work, and small parallel loops would run a hundred times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import hypothesis  # noqa: E402
import numpy  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

from tests.interpreter.process import Interpreter  # noqa: E402

# Compiling makes one example slow and the next one fast, and a failure has to come back in the next run.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked ``gpu`` on a machine without a GPU."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """A process in which Triton kernels are interpreted. It starts when first used; such tests carry xdist_group("interpreter")."""
    triton = pytest.importorskip("triton")
    if not triton.__version__.startswith("3.7."):
        pytest.skip(f"triton's interpreter is repaired for 3.7; this is {triton.__version__}")
    process = Interpreter()
    yield process
    process.close()


@pytest.fixture(autouse=True)
def isolated_torch() -> Iterator[None]:
    """Seeds every generator before a test; afterwards drops what Dynamo compiled and restores torch's settings."""
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    dtype = torch.get_default_dtype()
    grad_enabled = torch.is_grad_enabled()
    yield
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(grad_enabled)
    # Dynamo takes a second to import; a test that never compiled does not pay for it.
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()

"""Wheel, sdist and editable installations hold every package and file, and importing them leaves torch alone."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

# One worker: the tests share what their fixtures build.
pytestmark = pytest.mark.xdist_group("packaging")

REPOSITORY = Path(__file__).resolve().parent.parent
INSTALLED_FROM = {"bi_inductor": "bi_inductor", "passes": "bi_inductor/passes", "templates": "bi_inductor/templates"}
INSTALLED_SUFFIXES = {".py", ".h", ".cpp", ".jinja", ".typed"}


def run(*command: str | Path, cwd: Path) -> str:
    """Runs a command without what the environment says about Python paths; returns what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    completed = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def run_python(python: str | Path, source: str, cwd: Path) -> dict:
    """Runs ``source``, which prints one JSON object in its last line, in a process of its own; returns the object."""
    return json.loads(run(python, "-c", source, cwd=cwd).splitlines()[-1])


def files_to_install(source: Path) -> set[str]:
    """Every file of the three folders that a user needs, by its path in site-packages."""
    return {
        (Path(installed) / file.relative_to(source / folder)).as_posix()
        for folder, installed in INSTALLED_FROM.items()
        for file in (source / folder).rglob("*")
        if file.suffix in INSTALLED_SUFFIXES
    }


def build(hook: str, source: Path, destination: Path) -> Path:
    """Calls setuptools' ``build_wheel``, ``build_sdist`` or ``build_editable``; returns the file that it built."""
    destination.mkdir()
    call = f"from setuptools import build_meta; build_meta.{hook}({str(destination)!r})"
    run(sys.executable, "-c", call, cwd=source)
    (built,) = destination.iterdir()
    return built


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, since setuptools writes beside the sources that it builds."""
    copy = tmp_path_factory.mktemp("source") / "repository"
    leave_out = shutil.ignore_patterns(".git", ".venv*", ".cache", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(REPOSITORY, copy, ignore=leave_out)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("build_wheel", source, tmp_path_factory.mktemp("wheel") / "built")


@pytest.fixture(scope="module")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that offers all that is installed beside this test (torch above all), except bi_inductor itself."""
    folder = tmp_path_factory.mktemp("dependencies")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("bi_inductor", "__editable__", "_virtualenv", "distutils-precedence")):
            (folder / entry.name).symlink_to(entry)
    return folder


def install(built: Path, folder: Path, dependencies: Path) -> tuple[Path, Path]:
    """Installs a built wheel into a new environment; returns its Python and its site-packages."""
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--no-deps", "--no-index", built, cwd=folder)
    site_packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    (site_packages / "dependencies.pth").write_text(f"{dependencies}\n")
    return python, site_packages


WHAT_A_USER_FINDS = """
import importlib.metadata, importlib.util, json, pathlib
import torch._dynamo
import bi_inductor, bi_inductor.passes, bi_inductor.templates

backend = torch._dynamo.lookup_backend("batch_invariant")
print(json.dumps({
    "version": importlib.metadata.version("bi-inductor"),
    "own_version": bi_inductor.__version__,
    "listed": "batch_invariant" in torch._dynamo.list_backends(exclude_tags=()),
    "backend": f"{backend.__module__}.{backend.__qualname__}",
    "folders": {module.__name__: str(pathlib.Path(module.__file__).parent)
                for module in (bi_inductor, bi_inductor.passes, bi_inductor.templates)},
    "headers": sorted(path.name for path in pathlib.Path(bi_inductor.templates.__file__).parent.rglob("*.h")),
    "plugin": [point.value for point in importlib.metadata.entry_points(group="pytest11", name="pytest_bi_inductor")
               if importlib.util.find_spec(point.value)],
    "generic": [name for name in ("passes", "templates") if importlib.util.find_spec(name)],
}))
"""


@pytest.mark.parametrize("kind", ["wheel", "sdist", "editable"])
def test_every_installation_imports_and_offers_the_backend(
    kind: str, source: Path, wheel: Path, dependencies: Path, tmp_path: Path
) -> None:
    if kind == "wheel":
        built = wheel
    elif kind == "sdist":
        archive = build("build_sdist", source, tmp_path / "sdist")
        shutil.unpack_archive(archive, tmp_path / "unpacked", filter="data")
        (unpacked,) = (tmp_path / "unpacked").iterdir()
        built = build("build_wheel", unpacked, tmp_path / "built")
    else:
        built = build("build_editable", source, tmp_path / "built")
    python, site_packages = install(built, tmp_path / "environment", dependencies)
    empty = tmp_path / "empty"
    empty.mkdir()

    found = run_python(python, WHAT_A_USER_FINDS, cwd=empty)

    root = source if kind == "editable" else site_packages
    inside = {name: name.replace(".", "/") for name in found["folders"]}
    if kind == "editable":
        inside = {"bi_inductor": "bi_inductor", "bi_inductor.passes": "passes", "bi_inductor.templates": "templates"}
    assert found["folders"] == {name: str(root / folder) for name, folder in inside.items()}
    assert found["version"] == found["own_version"]
    assert found["listed"]
    assert found["backend"] == "bi_inductor.backend.batch_invariant"
    assert found["headers"] == sorted(path.name for path in (source / "templates").rglob("*.h"))
    assert found["plugin"] == ["pytest_bi_inductor"]
    assert found["generic"] == []
    assert "explain" in run(python.parent / "bi-inductor", "--help", cwd=empty)
    assert not {"passes", "templates", "tests"} & {entry.name for entry in site_packages.iterdir()}


def test_wheel_holds_every_file_of_the_three_folders(source: Path, wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = files_to_install(source) | {"pytest_bi_inductor.py"}
    assert not expected - held, "missing: name the new folder in setup.cfg under packages, or its suffix in package_data"
    assert not held - expected, "installed, but no part of the library"


def test_every_folder_with_python_files_is_a_package() -> None:
    folders = {file.parent for folder in INSTALLED_FROM for file in (REPOSITORY / folder).rglob("*.py")}
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").exists()]


MODULES_ADDED_BY_IMPORT = """
import json, sys, torch
loaded = set(sys.modules)
import bi_inductor
print(json.dumps({"added": sorted(set(sys.modules) - loaded)}))
"""


def test_importing_bi_inductor_loads_no_heavy_module(tmp_path: Path) -> None:
    """What takes long to import (Dynamo, Inductor, sympy, transformers) waits until something is compiled."""
    added = run_python(sys.executable, MODULES_ADDED_BY_IMPORT, cwd=tmp_path)["added"]
    assert "bi_inductor" in added
    light = {"bi_inductor", "torch", *sys.stdlib_module_names}
    heavy = {"torch._dynamo", "torch._functorch", "torch._inductor", "torch.export"}
    assert not [name for name in added if name.split(".")[0] not in light or ".".join(name.split(".")[:2]) in heavy]


STATE_AROUND_IMPORT = """
import importlib, json, pkgutil, torch
import torch._decomp, torch._dynamo.config, torch._functorch.config, torch._inductor.config
import torch._inductor.decomposition, torch._inductor.lowering

def state():
    ours = lambda op: "bi_inductor" in str(op)
    configs = {module.__name__: module.get_config_copy() for module in (
        torch._dynamo.config, torch._functorch.config, torch._inductor.config)}
    tables = {"decompositions": torch._decomp.decomposition_table,
              "inductor decompositions": torch._inductor.decomposition.decompositions,
              "lowerings": torch._inductor.lowering.lowerings}
    settings = {
        "default dtype": torch.get_default_dtype(), "grad": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(), "interop threads": torch.get_num_interop_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "mkldnn": torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
        "seed": torch.initial_seed(), "random state": torch.get_rng_state().tolist(),
    }
    parts = configs | {"settings": settings} | {
        name: {str(op): getattr(function, "__qualname__", "") for op, function in table.items() if not ours(op)}
        for name, table in tables.items()}
    return {f"{part}: {name}": repr(value) for part, values in parts.items() for name, value in values.items()}

before = state()
import bi_inductor
for module in pkgutil.walk_packages(bi_inductor.__path__, "bi_inductor."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            # What builds on vLLM's classes is imported by vLLM only.
            if error.name != "vllm" or not module.name.startswith("bi_inductor.integrations.vllm."):
                raise
import bi_inductor.passes, bi_inductor.templates
for package in (bi_inductor.passes, bi_inductor.templates):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
after = state()
print(json.dumps({"compared": len(before),
                  "changed": sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))}))
"""


def test_importing_every_module_changes_no_state_of_torch(tmp_path: Path) -> None:
    found = run_python(sys.executable, STATE_AROUND_IMPORT, cwd=tmp_path)
    assert found["compared"] > 1000
    assert found["changed"] == []

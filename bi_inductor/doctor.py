"""What this machine offers, and what each part means for invariance: ``bi-inductor doctor``."""

from __future__ import annotations

import dataclasses
import platform
import re
import sys
from typing import Any

import torch

from bi_inductor.errors import BatchInvariantError


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report: ``status`` is "ok", "note" (works, with a limit) or "missing" (no compile possible)."""

    subject: str
    found: str
    status: str
    meaning: str


def examine() -> list[Finding]:
    """Looks at Python, torch, the compiler, the instruction set, threads, GPUs, settings and caches."""
    return [
        Finding("Python", platform.python_version(), "ok" if sys.version_info >= (3, 11) else "missing", "3.11 or newer is needed"),
        _torch(),
        _compiler(),
        _instruction_set(),
        Finding(
            "threads",
            str(torch.get_num_threads()),
            "ok",
            "threads share outputs and never split a sum, so results do not follow their number",
        ),
        _gpu(),
        _pins(),
        _environment(),
        _cache(),
    ]


def _torch() -> Finding:
    from bi_inductor.backend import check_torch_version

    meaning = "bits are fixed for one version of torch and bi_inductor; another may differ in pointwise functions"
    try:
        check_torch_version(torch.__version__)
    except BatchInvariantError as error:
        return Finding("torch", torch.__version__, "missing", str(error))
    return Finding("torch", torch.__version__, "ok", meaning)


def _compiler() -> Finding:
    from torch._inductor import config
    from torch._inductor.cpp_builder import get_compiler_version_info, get_cpp_compiler

    from bi_inductor.errors import no_compiler
    from bi_inductor.templates.library import STRICT_FLOATING_POINT

    try:
        compiler = get_cpp_compiler()
        words = re.search(r"(?:gcc|clang) version \S+", get_compiler_version_info(compiler))
        version = f"{compiler}, {words[0]}" if words else str(compiler)
    except Exception:
        return Finding("C++ compiler", "none", "missing", str(no_compiler(config.cpp.cxx)))
    flags = " ".join(STRICT_FLOATING_POINT)
    return Finding("C++ compiler", version, "ok", f"kernels are built with {flags}, so the compiler may not change the arithmetic")


def _instruction_set() -> Finding:
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    isa = str(pick_vec_isa()) or "none"
    meaning = (
        "sums, matmuls, norms and attention give the same bits on every instruction set; pointwise functions (exp, tanh, erf) may differ "
        "between machines that have different ones"
    )
    return Finding("instruction set", f"{isa} (ATen: {torch.backends.cpu.get_cpu_capability()})", "ok", meaning)


def _gpu() -> Finding:
    if not torch.cuda.is_available():
        return Finding("GPU", "none", "ok", "not needed: bi_inductor compiles for the CPU")
    names = sorted({torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())})
    return Finding("GPU", ", ".join(names), "note", "there are no templates for GPUs yet: move models and inputs to the CPU")


def _pins() -> Finding:
    from torch._inductor import config

    from bi_inductor.pins import check_pins_in_force, config_patches

    try:
        patches = config_patches({})
        with config.patch(patches):
            check_pins_in_force()
    except ValueError as error:
        return Finding("Inductor settings", "a pin is not in force", "missing", str(error))
    return Finding("Inductor settings", f"{len(patches)} pinned", "ok", "settings that would let bits follow the batch are held fixed")


def _environment() -> Finding:
    from bi_inductor.options import Options

    try:
        options: Any = Options.from_environment()
    except ValueError as error:
        return Finding("BI_INDUCTOR_* variables", "not valid", "missing", str(error))
    changed = {name: value for name, value in dataclasses.asdict(options).items() if value != getattr(Options(), name)}
    found = ", ".join(f"{name}={value!r}" for name, value in changed.items()) or "none set"
    if options.allow:
        return Finding("BI_INDUCTOR_* variables", found, "note", "ops named in 'allow' pass as they are: their bits may vary")
    return Finding("BI_INDUCTOR_* variables", found, "ok", "nothing is let through")


def _cache() -> Finding:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Finding("cache", str(cache_dir()), "ok", "a cached graph has the bits of a fresh one: its key holds every source of bi_inductor")

"""Triton's driver for a GPU that is only described: it names the target and can do nothing. Imports triton."""

from __future__ import annotations

from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from bi_inductor.targets.description import Target


class DescribedDriver(DriverBase):
    """Answers what a compile asks."""

    def __init__(self, target: Target) -> None:
        self.target = target

    @classmethod
    def is_active(cls) -> bool:
        """Whether triton should choose this driver by itself."""
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Launchers are not built."""
        return ty

    def get_current_target(self) -> GPUTarget:
        """The target, as Triton's compiler takes it."""
        return GPUTarget(self.target.backend, self.target.architecture, self.target.warp_size)

    def get_current_device(self) -> int:
        """The number of the one device."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """The device, as torch calls it."""
        return torch.device("cuda", 0)

    def get_benchmarker(self) -> Any:
        """Nothing can be timed."""
        raise RuntimeError(f"{self.target.name} is described, not there: a kernel cannot be timed")

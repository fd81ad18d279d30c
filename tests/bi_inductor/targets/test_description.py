"""The table of GPUs, and the occupancy it gives for known kernels."""

import pytest

from bi_inductor.targets import TARGETS, target_named
from bi_inductor.templates import gpu


def test_every_target_is_whole():
    assert list(TARGETS) == ["sm_80", "sm_90", "sm_100", "gfx942"]
    for name, target in TARGETS.items():
        assert target.name == name and target.warp_size == (64 if target.backend == "hip" else 32)
        assert target.shared_memory + target.shared_memory_reserved <= target.shared_memory_per_multiprocessor
        assert target.threads_per_multiprocessor % target.warp_size == 0
        assert {"fp32", "fp16", "bf16"} <= set(target.operations) and target.operations["bf16"] > target.operations["fp32"]
        assert len(target.limits_source) > 15 and len(target.peak_source) > 15
    # Tables of configurations name the same.
    assert tuple(TARGETS) == gpu.TARGETS
    assert TARGETS["sm_100"].capability == (10, 0) and TARGETS["sm_80"].capability == (8, 0)


def test_an_unknown_target_is_named_with_those_allowed():
    with pytest.raises(ValueError, match=r"target: got 'sm_70'; allowed are sm_80, sm_90, sm_100, gfx942"):
        target_named("sm_70")


# Values of NVIDIA's occupancy calculator, and for AMD of the rule waves = 512 // registers a SIMD.
@pytest.mark.parametrize(
    ("name", "registers", "shared_memory", "warps", "occupancy"),
    [
        ("sm_80", 32, 0, 4, 1.0),
        ("sm_80", 64, 0, 8, 0.5),
        ("sm_90", 255, 0, 4, 0.125),
        ("sm_90", 128, 100 * 1024, 4, 0.125),
        ("sm_90", 40, 0, 32, 0.5),
        ("sm_90", 16, 228 * 1024, 4, 0.0),
        ("sm_90", 16, 0, 1, 0.5),
        ("gfx942", 64, 0, 4, 1.0),
        ("gfx942", 128, 0, 4, 0.5),
        ("gfx942", 512, 32 * 1024, 4, 0.125),
    ],
)
def test_occupancy(name, registers, shared_memory, warps, occupancy):
    assert TARGETS[name].occupancy(registers, shared_memory, warps) == occupancy

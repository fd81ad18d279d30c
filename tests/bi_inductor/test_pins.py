"""Each pinned setting of Inductor: that torch has it, that it cannot be undone, and what varies without it."""

import os
import subprocess
import sys

import pytest
import torch
from torch._inductor import config

from bi_inductor import OptionError
from bi_inductor.pins import CPU_PINS, PINS, Pin, config_patches

# Without the pin, results of `pinned_by_values` change (tests below).
BITES = {
    "emulate_precision_casts",
    "joint_graph_constant_folding",
    "pattern_matcher",
}
# The pin is torch's default too: it refuses a request (an option, torch's configuration, an environment variable).
REFUSES_A_REQUEST = {
    "auto_chunker.enable",
    "b2b_gemm_pass",
    "constant_and_index_propagation",
    "coordinate_descent_tuning",
    "cpp.enable_concat_linear",
    "cpp.enable_grouped_gemm_template",
    "cpp.enable_unsafe_math_opt_flag",
    "cpp.gemm_max_k_slices",
    "cpp.inject_log1p_bug_TESTING_ONLY",
    "cpp.inject_relu_bug_TESTING_ONLY",
    "cpp.simdlen",
    "cpp_wrapper",
    "cpu_backend",
    "decompose_mem_bound_mm",
    "disabled_passes",
    "fallback_by_default",
    "freezing",
    "group_fusion",
    "max_autotune",
    "max_autotune_gemm",
    "max_autotune_pointwise",
    "post_grad_fusion_options",
    "pre_grad_fusion_options",
    "selective_decompose",
    "use_post_grad_passes",
}
# Another value than torch's default, and no effect on CPU in torch 2.13 to 2.15: why it is held all the same.
NO_EFFECT_TODAY = {
    "batch_fusion": "no pass of torch 2.13 to 2.15 reads it; the passes it was for are chosen by pre_grad_fusion_options",
    "cpp.enable_floating_point_contract_flag": "g++ 12 keeps signed zeros because of Inductor's -fno-unsafe-math-optimizations, and "
    "contraction is off by default; asked for, it changes values (test_contraction_would_bite)",
    "cpp.enable_tiling_heuristics": "for speed, not for bits: the scalar kernel that it chooses computes the vector one's values",
    "cpp.weight_prepack": "only patterns on frozen graphs read it, and freezing is off",
    "online_softmax": "the pattern is for Triton kernels, and softmax is one operator by then",
    "shape_padding": "its patterns match mm, addmm and bmm, which are operators of ours by then",
    "split_reductions": "only sums and products are split, and those are operators of ours by then",
}


def test_every_pin_is_accounted_for():
    known = config.get_config_copy()
    # test_gpu_pins.py has the others.
    assert sorted(CPU_PINS) == sorted([*BITES, *REFUSES_A_REQUEST, *NO_EFFECT_TODAY])
    for name, pin in CPU_PINS.items():
        default = known.get(name, "no such setting")
        assert (default == pin.value) is (name in REFUSES_A_REQUEST), f"{name} is {default!r} by default and pinned to {pin.value!r}"
        assert len(pin.reason) > 15


def test_every_pin_is_a_setting_of_torch():
    # One that is misspelled would be skipped.
    assert sorted(set(PINS) - set(config.get_config_copy())) == []


def other_value(name, pin):
    """A value of the right type that is not the pinned one."""
    flags = {"cpp.enable_floating_point_contract_flag": "fast", "disabled_passes": "ANY"}
    others = {"cpu_backend": "triton", "cpp.simdlen": 256, **flags}
    if name in others:
        return others[name]
    if isinstance(pin.value, bool):
        return not pin.value
    return {"accuracy": {}} if pin.value == {} else "accuracy" if pin.value is None else pin.value + 1


@pytest.mark.parametrize("name", sorted(CPU_PINS))
def test_a_pin_cannot_be_undone(name):
    value = other_value(name, PINS[name])
    with pytest.raises(OptionError) as caught:
        config_patches({name: value})
    message = str(caught.value)
    assert f"option {name!r}={value!r} would undo a pin" in message
    assert repr(PINS[name].value) in message and PINS[name].reason in message
    assert config_patches({name: PINS[name].value})[name] == PINS[name].value


def test_a_setting_of_the_process_does_not_undo_a_pin():
    with config.patch({"emulate_precision_casts": False, "use_post_grad_passes": False, "pattern_matcher": True}):
        assert config_patches({}).items() >= {name: pin.value for name, pin in PINS.items()}.items()
        x = torch.randn(4, 300)
        out = torch.compile(lambda x: x.softmax(-1), backend="batch_invariant")(x)
        assert torch.equal(out, torch.ops.bi_inductor.softmax(x, -1))


def test_an_environment_variable_that_wins_over_pins_is_refused():
    code = "import torch; torch.compile(lambda x: x.softmax(-1), backend='batch_invariant')(torch.randn(2, 3))"
    environment = {**os.environ, "TORCHINDUCTOR_DISABLED_PASSES": "POST_GRAD_CUSTOM_PRE_PASS"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.returncode
    assert "OptionError: Inductor's setting 'disabled_passes' is 'POST_GRAD_CUSTOM_PRE_PASS' whatever a program sets" in run.stderr
    assert "TORCHINDUCTOR_DISABLED_PASSES" in run.stderr


# ---- what varies without a pin: eager rounds after every op and drops none, so the values that the contract asks for are eager's


def pinned_by_values(x, y, half):
    logits = x.view(4, 16) * 0.3
    return {
        "x + zeros": x * 1.0 + torch.zeros_like(x),
        "x * y + x, strided": x[::3] * y[::3] + x[::3],
        "chain in bfloat16": half * half + half,
        "shifted logits": logits - logits.amax(-1, keepdim=True),
    }


def inputs():
    x = torch.cat([torch.tensor([-0.0, 0.0, 1.0, -1.0]), torch.randn(60)])
    return x, x.clone(), torch.randn(64, dtype=torch.bfloat16)


def changed(monkeypatch, **pins):
    """Names of the results that differ in bits from eager's with other values pinned."""
    for name, value in pins.items():
        monkeypatch.setitem(PINS, name.replace("__", "."), Pin(value, "a request"))
    torch._dynamo.reset()
    given = inputs()
    expected = pinned_by_values(*given)
    found = torch.compile(pinned_by_values, backend="batch_invariant")(*given)
    integers = {4: torch.int32, 2: torch.int16}
    return {name for name, value in found.items() if not torch.equal(*(t.view(integers[t.itemsize]) for t in (value, expected[name])))}


def test_with_all_pins_values_are_as_eager_rounds(monkeypatch):
    assert changed(monkeypatch) == set()


def test_emulate_precision_casts_bites(monkeypatch):
    assert changed(monkeypatch, emulate_precision_casts=False) == {"chain in bfloat16"}


def test_contraction_would_bite(monkeypatch):
    assert "x * y + x, strided" in changed(monkeypatch, cpp__enable_floating_point_contract_flag="fast")


def test_joint_graph_constant_folding_bites(monkeypatch):
    assert changed(monkeypatch, joint_graph_constant_folding=True) == {"x + zeros"}


def test_pattern_matcher_bites(monkeypatch):
    assert changed(monkeypatch, pattern_matcher=True) == {"shifted logits"}

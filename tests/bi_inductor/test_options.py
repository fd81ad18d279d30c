"""Options: ours, the environment's, torch.compile's modes, and Inductor's, which pass through unless they undo a pin."""

from pathlib import Path

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from bi_inductor import OptionError, Options
from bi_inductor.backend import split_options
from bi_inductor.options import OPTION_NAMES


def compiled(**arguments):
    return torch.compile(lambda x: x.sin() + 1, backend="batch_invariant", **arguments)


def test_defaults():
    assert Options() == Options(strict=False, allow=(), trace="", batch_dim=None, sample_gradients=False, native_bfloat16=False)
    assert OPTION_NAMES == ("strict", "allow", "trace", "batch_dim", "sample_gradients", "native_bfloat16")


def test_ours_and_those_of_inductor_are_told_apart():
    own, patches = split_options(None, {"strict": True, "allow": ["aten.median"], "size_asserts": False})
    assert own == Options(strict=True, allow=("aten.median",))
    assert patches["size_asserts"] is False
    assert "strict" not in patches and "allow" not in patches


def test_the_order_of_allow_is_no_difference():
    # The options are part of the cache key.
    assert split_options(None, {"allow": ("b.b", "a.a")})[0] == split_options(None, {"allow": {"a.a", "b.b"}})[0]


@pytest.mark.parametrize(
    ("text", "strict"),
    [("1", True), ("true", True), ("Yes", True), ("on", True), ("0", False), ("False", False), ("off", False), ("", False)],
)
def test_boolean_from_the_environment(text, strict, monkeypatch):
    monkeypatch.setenv("BI_INDUCTOR_STRICT", text)
    assert split_options(None, None)[0].strict is strict


def test_names_from_the_environment():
    assert Options.from_environment({"BI_INDUCTOR_ALLOW": " mylib.op, aten.median ,", "PATH": "x"}).allow == ("aten.median", "mylib.op")
    assert Options.from_environment({"BI_INDUCTOR_ALLOW": ""}).allow == ()


def test_the_path_of_a_folder():
    assert Options.from_environment({"BI_INDUCTOR_TRACE": "/some/folder"}).trace == "/some/folder"
    assert Options().updated({"trace": Path("some") / "folder"}).trace == "some/folder"


def test_an_argument_overrides_the_environment(monkeypatch):
    monkeypatch.setenv("BI_INDUCTOR_STRICT", "1")
    monkeypatch.setenv("BI_INDUCTOR_ALLOW", "mylib.op")
    own, _ = split_options(None, {"strict": False})
    assert own == Options(strict=False, allow=("mylib.op",))


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("BI_INDUCTOR_STRICT", "maybe", r"BI_INDUCTOR_STRICT must be one of 1, true.*given 'maybe'"),
        (
            "BI_INDUCTOR_STRCT",
            "1",
            r"unknown environment variable BI_INDUCTOR_STRCT; allowed: BI_INDUCTOR_ALLOW, BI_INDUCTOR_BATCH_DIM, .*, BI_INDUCTOR_STRICT",
        ),
    ],
)
def test_bad_environment(variable, text, message, monkeypatch):
    monkeypatch.setenv(variable, text)
    with pytest.raises(OptionError, match=message):
        compiled()(torch.randn(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strict": "yes"}, r"'strict' must be True or False; given 'yes'"),
        ({"trace": 1}, r"'trace' must be the path of a folder; given 1"),
        ({"native_bfloat16": 1}, r"'native_bfloat16' must be True or False; given 1"),
        ({"strict": 1}, r"'strict' must be True or False; given 1"),
        ({"allow": "aten.median"}, r"'allow' must be a sequence of op names.*given 'aten.median'"),
        ({"allow": ("aten.median", 3)}, r"'allow' must be a sequence"),
        ({"allow": 5}, r"'allow' must be a sequence of op names.*given 5"),
        ({"allow": None}, r"'allow' must be a sequence"),
        (
            {"strickt": True},
            r"unknown option 'strickt': neither an option of batch_invariant \(strict, .*\) nor.*did you mean 'strict'",
        ),
        ({"cpp.simdlenn": 1}, r"unknown option 'cpp.simdlenn'.*did you mean.*'cpp.simdlen'"),
        ({"size_asserts": "no"}, r"'size_asserts' must be of type bool; given 'no'"),
        ({"max_fusion_size": 1.5}, r"'max_fusion_size' must be of type int; given 1.5"),
        ({"post_grad_custom_pre_pass": None}, r"'post_grad_custom_pre_pass' is in use by backend 'batch_invariant'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(OptionError, match=message):
        split_options(None, options)


def test_bad_option_through_torch_compile():
    with pytest.raises(OptionError, match="unknown option 'strickt'"):
        compiled(options={"strickt": True})(torch.randn(2))


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead"])
def test_mode(mode):
    _, patches = split_options(mode, None)
    assert patches.get("triton.cudagraphs", False) is (mode == "reduce-overhead")
    assert patches["max_autotune"] is False


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_mode_that_times_kernels(mode):
    with pytest.raises(OptionError, match=r"'max_autotune'=True would undo a pin.*it is False.*numerics would follow the clock"):
        compiled(mode=mode)(torch.randn(2))


def test_unknown_mode():
    with pytest.raises(OptionError, match=r"unknown mode 'fastest'; allowed: default, lite, max-autotune"):
        split_options("fastest", None)


def test_inductor_option_takes_effect():
    uncached = {"fx_graph_cache": False}
    x = torch.randn(3)
    expected, (code,) = run_and_get_code(compiled(options=uncached), x)
    assert "assert_size_stride(" in code
    # torch.compile takes dashes for underscores.
    for name in ("size_asserts", "size-asserts"):
        torch._dynamo.reset()
        out, (code,) = run_and_get_code(compiled(options={**uncached, name: False}), x)
        assert "assert_size_stride(" not in code
        assert torch.equal(out, expected)


def test_compiles_in_mode_reduce_overhead():
    x = torch.randn(3)
    expected = compiled()(x)
    torch._dynamo.reset()
    assert torch.equal(compiled(mode="reduce-overhead")(x), expected)

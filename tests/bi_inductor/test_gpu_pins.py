"""Each pin of Triton's code: Inductor writes other code for a described GPU without it, and a request to undo it is refused."""

import json
import re
import subprocess
import sys

import pytest
from torch._inductor import config

from bi_inductor import OptionError
from bi_inductor.pins import CPU_PINS, GPU_PINS, PINS, config_patches
from tests.bi_inductor.gpu_pins import CASES

pytest.importorskip("triton")

pytestmark = pytest.mark.xdist_group("targets")


@pytest.fixture(scope="module")
def codes(tmp_path_factory):
    """By case: Inductor's code with the pin and without it. One process compiles all of them for an H100."""
    result = tmp_path_factory.mktemp("codes") / "codes.json"
    run = subprocess.run([sys.executable, "-m", "tests.bi_inductor.gpu_pins", str(result)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(result.read_text())


def test_every_pin_has_a_case():
    tested = {name.partition(",")[0] for name in CASES}
    assert set(GPU_PINS) <= tested
    of_both = {"split_reductions", "emulate_precision_casts", "max_autotune_gemm", "coordinate_descent_tuning"}
    assert of_both | {"online_softmax", "shape_padding"} <= tested & set(CPU_PINS)
    assert not set(GPU_PINS) - set(config.get_config_copy())


@pytest.mark.parametrize("name", CASES)
def test_code_differs_without_the_pin_and_not_with_it(codes, name):
    pinned, undone = codes[name]
    assert re.search(CASES[name].sign, undone, re.MULTILINE)
    assert not re.search(CASES[name].sign, pinned, re.MULTILINE)


def test_blocks_of_reductions_do_not_follow_the_number_of_rows(codes):
    few, many = ([re.findall("runs as .*", text) for text in codes[name]] for name in ("batch_invariant", "batch_invariant, more rows"))
    assert few[0] == many[0] and len(few[0]) == 1
    assert few[1] != many[1]


@pytest.mark.parametrize("name", GPU_PINS)
def test_a_request_to_undo_it_is_refused(name):
    other = CASES[name].value
    with pytest.raises(OptionError, match=re.escape(f"option {name!r}={other!r} would undo a pin")) as caught:
        config_patches({name: other})
    assert PINS[name].reason in str(caught.value) and len(PINS[name].reason) > 15

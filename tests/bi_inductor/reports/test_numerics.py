"""The table of numerics says what docs/numerics.md says, for every operator there is."""

import re
from pathlib import Path

import pytest
import torch

from bi_inductor import templates
from bi_inductor.reports.numerics import NUMERICS, POINTWISE
from bi_inductor.templates.library import KERNELS

PAGE = (Path(__file__).parents[3] / "docs" / "numerics.md").read_text()
SECTIONS = {int(found[1]): found[0] for found in re.finditer(r"## (\d+)\. .*?(?=\n## |\Z)", PAGE, re.DOTALL)}


def plain(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("operator", [*NUMERICS, "pointwise"])
def test_the_quote_stands_in_its_section(operator: str) -> None:
    numerics = NUMERICS.get(operator, POINTWISE)
    assert plain(numerics.quote) in plain(SECTIONS[numerics.section])


def test_every_operator_and_its_kernel_is_in_the_table() -> None:
    templates.register_kernels()
    schemas = torch._C._jit_get_all_schemas()
    operators = {schema.name.removeprefix("bi_inductor::") for schema in schemas if schema.name.startswith("bi_inductor::")}
    assert operators == set(NUMERICS), "a new operator needs its line in bi_inductor/reports/numerics.py"
    assert {numerics.kernel for numerics in NUMERICS.values() if numerics.kernel} <= set(KERNELS)


def test_lanes_are_those_of_the_kernels() -> None:
    headers = "\n".join(path.read_text() for path in Path(str(templates.__file__)).parent.rglob("*.h"))
    lanes = {int(number) for number in re.findall(r"constexpr \w+ (?:sum_lanes|matmul_lanes|lanes) = (\d+);", headers)}
    assert lanes == {number for numerics in NUMERICS.values() for _, number in numerics.lanes}

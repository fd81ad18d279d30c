"""The result of `check` as data and as the JUnit XML that CI systems read."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from .result import CheckResult, CheckRow


def as_json(result: CheckResult) -> dict[str, Any]:
    """Every field, the verdicts, and the smallest failing batch; infinities and NaN as text, which JSON has no number for."""
    data = dataclasses.asdict(result)
    data |= {"invariant": result.invariant, "deterministic": result.deterministic}
    cleaned: dict[str, Any] = _finite(data)
    return cleaned


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not abs(value) < float("inf") else value


def as_junit(result: CheckResult) -> str:
    """One test case a row of the table, failed where rows differ."""
    failed = sum(row.rows_different > 0 for row in result.rows)
    suite = ElementTree.Element("testsuite", name="bi_inductor.check", tests=str(len(result.rows)), failures=str(failed), errors="0")
    for row in result.rows:
        case = ElementTree.SubElement(suite, "testcase", classname=f"bi_inductor.check.{result.backend}", name=_name(row))
        if row.rows_different:
            message = f"{row.rows_different} of {row.rows} rows differ, {row.elements_different} elements, by up to {row.max_ulp:.4g} ulp"
            ElementTree.SubElement(case, "failure", message=message).text = str(result)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _name(row: CheckRow) -> str:
    dynamic = "" if row.dynamic is None else f", dynamic={row.dynamic}"
    return f"{row.run}, batch {row.batch_size}{dynamic}, threads={row.threads}"

"""The page of `find`: text stays text, nothing is loaded, and in a browser the plot and the rows of thousands of nodes can be used."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from torch import nn

from bi_inductor import find
from bi_inductor.find.result import FindResult, FoundNode, Operand, TableRow, VariantRow
from bi_inductor.reports.find_page import HEIGHT, render_find
from tests.bi_inductor.find.test_find import Hunt
from tests.bi_inductor.reports.test_html import HOSTILE, in_browser, needs_browser, page_data
from tests.templates.rows import randn


def found(nodes: int, text: str = "relu") -> FindResult:
    """A difference that goes on through ``nodes`` nodes, grows, is hidden now and then and once becomes infinite."""
    effects = ("differs by itself", "amplifies", "passes on", "reduces", "hides", "")
    rows = []
    for i in range(nodes):
        effect = effects[i % len(effects)]
        ulp = float("inf") if i == nodes // 2 else None if effect == "hides" else 2.0 ** (1 + 40 * i / nodes)
        rows.append(TableRow(f"n{i}", f"aten.{text}", f"layers.{i} ({text})", text, ulp, i, effect, i == nodes - 1, i + 4))
    value = Operand("x", "float32[4, 8]", "float32[1, 8]")
    node = FoundNode("n0", 4, nodes + 3, text, text, text, (value,), value, (), text, 1, 1, 8, 3, 7.0, (0, 1), (1.0, 2.0))
    variants = (VariantRow(text, "n0", nodes), VariantRow("other", None, 0))
    return FindResult("eager", text, variants, nodes + 3, nodes, node, text, tuple(rows), (text,))


def test_the_page_of_a_result(tmp_path: Path) -> None:
    result = find(Hunt(), randn(3, 4))
    result.html(tmp_path / "found.html")
    page = (tmp_path / "found.html").read_text()
    assert [row[0] for row in page_data(page)["rows"]] == [row.node for row in result.table]
    for text in (result.verdict, "planted.by_batch.default", "suspect (Planted)", "sample 0 alone", "samples 2 to 1"):
        assert text in page
    # A path for each effect that occurs, and a ring for each of both outputs.
    assert page.count("<path ") == len({row.effect for row in result.table}) == 4
    assert page.count("<circle ") == 1


def test_strokes_are_as_high_as_the_logarithm_of_the_distance() -> None:
    page = render_find(found(600))
    heights = [float(y) for y in re.findall(r"V([\d.]+)", re.findall(r'<path d="([^"]+)" stroke="#d6322b"', page)[0])]
    finite = [y for y in heights if y != min(heights)]
    steps = [before - after for before, after in itertools.pairwise(finite)]
    # Each is 6 / 600 of 40 doublings more than the one before: equal steps, but for the first few, where one ulp is no doubling.
    assert max(steps[10:40]) - min(steps[10:40]) <= 0.2 and min(steps) > 0
    assert all(0 <= y < HEIGHT for y in heights)


def test_without_a_difference_there_is_no_plot() -> None:
    page = render_find(find(nn.ReLU(), randn(4, 8)))
    assert "<svg" not in page and "same bits" in page


def test_nothing_is_loaded_and_text_stays_text() -> None:
    page = render_find(found(6, HOSTILE))
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)\s*=\s*[\"']|url\(|@import|fetch\(|https?://", page)
    assert HOSTILE not in page and page.count("<script") == page.count("</script>") == 2
    assert "innerHTML" not in page


@needs_browser
def test_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "found.html"
    path.write_text(render_find(found(5000, HOSTILE)))
    assert path.stat().st_size < 3_000_000
    shown = in_browser(path)
    assert "<title>eager: not batch-invariant" in shown and "document.title = &#39;taken&#39;" not in shown.partition("</title>")[0]
    assert ">5000 nodes<" in shown
    assert 20 < shown.count('class="row') < 80
    assert shown.count('class="row selected"') == 1 and len(re.findall(r"<path ", shown)) == 6
    # A link to a node selects it, marks it in the plot and scrolls to it.
    shown = in_browser(path, "#node=n2500")
    assert re.search(r'class="row selected"[^>]*>2504\s+<b>n2500</b>', shown)
    assert "inf ulp, 2500 elements" in shown
    mark = re.search(r'id="mark"[^>]* x1="([\d.]+)"', shown)
    assert mark is not None and 500 < float(mark[1]) < 560


@pytest.mark.parametrize(("ulp", "label"), [(0.0, ">0<"), (1.0, ">16<"), (float("inf"), ">inf<")])
def test_extremes_of_the_scale(ulp: float, label: str) -> None:
    """One node only; a sign of zero (0 ulp), one ulp, or an infinite distance."""
    result = found(1)
    row = result.table[0]
    only = TableRow(row.node, row.op, row.module, row.line, ulp, 1, "", True, 1)
    picture = render_find(FindResult("eager", "all", (), 1, 1, result.node, "other", (only,))).partition("<script")[0]
    assert label in picture and "nan" not in re.findall(r'<path d="([^"]+)"', picture)[0]

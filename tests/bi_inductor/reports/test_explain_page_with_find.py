"""explain's page with what `find` found of the same model: the plot, the facts, and a line at the nodes of the places that differ."""

from __future__ import annotations

import re
from pathlib import Path

import torch

import bi_inductor
from bi_inductor.find.result import FindResult
from bi_inductor.reports.html import render_explanation
from tests.bi_inductor.find.test_find import Hunt
from tests.bi_inductor.reports.test_find_page import found
from tests.bi_inductor.reports.test_html import HOSTILE, explanation, in_browser, needs_browser, page_data
from tests.templates.rows import randn


def page(directory: Path) -> tuple[Path, FindResult]:
    model, x = Hunt().eval(), randn(3, 4)
    result = bi_inductor.find(model, x)
    with torch.no_grad():
        bi_inductor.explain(model, x).html(directory / "report.html", found=result)
    return directory / "report.html", result


def test_the_page_has_what_find_found(tmp_path: Path) -> None:
    path, result = page(tmp_path)
    text = path.read_text()
    data = page_data(text)
    assert [row[0] for row in data["found"]["rows"]] == [row.node for row in result.table]
    assert result.verdict in text and text.count('<svg id="plot"') == 1 and "sample 0 alone" in text
    # Nodes are matched by their line: that of find's first node is a line of explain's.
    assert result.node is not None and result.node.line in data["texts"]
    with torch.no_grad():
        without = render_explanation(bi_inductor.explain(Hunt().eval(), randn(3, 4)))
    assert '<svg id="plot"' not in without and page_data(without)["found"] is None


def test_without_a_difference_the_page_says_so() -> None:
    text = render_explanation(explanation(), bi_inductor.find(torch.relu, randn(4, 8)))
    assert "the same bits at all 1 compared values" in text and '<svg id="plot"' not in text


def test_nothing_is_loaded_and_text_stays_text() -> None:
    text = render_explanation(explanation(6, HOSTILE), found(6, HOSTILE))
    assert not re.search(r"(?:src|href)\s*=\s*[\"']|url\(|@import|fetch\(|https?://(?!www\.w3\.org/2000/svg)", text)
    assert HOSTILE not in text and text.count("<script") == text.count("</script>") == 2


@needs_browser
def test_in_a_browser(tmp_path: Path) -> None:
    path, _ = page(tmp_path)
    shown = in_browser(path, "#tab=bits")
    assert re.search(r'<section id="bits" class="on">', shown) and len(re.findall(r'<path d="M', shown)) >= 3
    # The first difference is marked, described, and its node can be shown.
    assert re.search(r'id="place"[^>]*>node 2\s+by_batch: 1 ulp, differs by itself', shown)
    assert "show in Nodes" in shown and re.search(r'id="mark"[^>]* x1="52"', shown)
    # A node of that line says what find found there.
    name = re.search(r"<b>(by_batch\w*)</b>", in_browser(path))
    assert name is not None
    shown = in_browser(path, f"#node={name[1]}")
    assert "<dt>bits (find)</dt><dd>by_batch: 1 ulp, differs by itself</dd>" in shown


@needs_browser
def test_five_thousand_nodes_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render_explanation(explanation(5000, HOSTILE), found(5000, HOSTILE)))
    shown = in_browser(path, "#tab=bits")
    assert "<title>&lt;/script&gt;" in shown, "the script of a text ran"
    assert '<section id="bits" class="on">' in shown and 20 < in_browser(path).count('class="row') < 150

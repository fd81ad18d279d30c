"""The page shows text as text, loads nothing, and in a browser lists, searches and compares graphs of thousands of nodes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import bi_inductor
from bi_inductor.graph_breaks import GraphBreak
from bi_inductor.reports.capture import CapturedGraph, Rewrite
from bi_inductor.reports.explanation import Explanation
from bi_inductor.reports.graph_diff import GraphDiff, compare
from bi_inductor.reports.html import render_diff, render_explanation
from bi_inductor.reports.records import GraphRecord, NodeRecord

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (Debian: apt-get install chromium)")

HOSTILE = "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"


def explanation(nodes: int = 3, text: str = "relu") -> Explanation:
    """A graph of one input and a chain of calls, the last of them refused."""
    made = [NodeRecord("x", "placeholder", "placeholder", (), "float32[8, 64]")]
    for i in range(nodes):
        made.append(NodeRecord(f"n{i}", "call", "aten.relu.default", (i,), "float32[8, 64]", "elementwise", "its own", text, "layers.0"))
    refused = NodeRecord("last", "call", f"aten.{text}", (nodes,), "float32[8, 64]", "unsupported", text, text)
    before = GraphRecord("captured", (*made, refused, NodeRecord("output", "output", "output", (nodes + 1,))))
    graph = CapturedGraph(
        "graph 0 inference", (before, GraphRecord("rewrite", before.nodes[:-2])), (Rewrite("a", ("b",), "n0", text),), (refused,)
    )
    return Explanation(text, "batch_invariant", "2.13.0", (graph,), (GraphBreak(text),))


def page_data(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def in_browser(path: Path, fragment: str = "") -> str:
    """The page as a browser has it after its script ran."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={path.parent / 'profile'}"]
    command += ["--window-size=1500,900", "--virtual-time-budget=5000", "--dump-dom", f"{path.as_uri()}{fragment}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_of_a_model_has_everything(tmp_path: Path) -> None:
    explained = bi_inductor.explain(lambda x: torch.relu(x).softmax(-1), torch.zeros(2, 4))
    explained.html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    data = page_data(page)
    assert [record["stage"] for record in data["graphs"][0]["stages"]] == [
        "dynamo",
        "captured",
        "round_low_precision",
        "rewrite",
        "inductor",
    ]
    (kernel,) = data["graphs"][0]["kernels"]
    assert kernel["section"] == 6 and kernel["operator"] == "softmax"
    assert [change["changed"] > 0 for change in data["changes"]] == [True, False, True, False]
    assert len(data["pins"]) > 30


def test_nothing_is_loaded_and_text_stays_text() -> None:
    page = render_explanation(explanation(text=HOSTILE))
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)\s*=\s*[\"']|url\(|@import|fetch\(|https?://(?!www\.w3\.org/2000/svg)", page)
    assert HOSTILE not in page and page.count("<script") == page.count("</script>") == 2
    assert HOSTILE in page_data(page)["texts"]
    assert "innerHTML" not in page


def test_equal_lines_are_left_out() -> None:
    before = explanation(500).graphs[0].stages[0]
    nodes = list(before.nodes)
    nodes[250] = NodeRecord("other", "call", "aten.exp.default", (249,), "float32[8, 64]")
    (part,) = page_data(render_diff(GraphDiff((compare(before, GraphRecord("other", tuple(nodes))),))))["changes"]
    assert [row[0] for row in part["rows"]] == ["skipped", "same", "same", "same", "changed", "same", "same", "same", "skipped"]


@needs_browser
def test_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    # Larger than what anyone scrolls through: 5,000 nodes at two stages.
    path.write_text(render_explanation(explanation(5000, HOSTILE)))
    shown = in_browser(path)
    assert "<title>&lt;/script&gt;" in shown, "the script of a text ran"
    assert "5003 nodes" not in shown and "5001 nodes" in shown
    assert 20 < shown.count('class="row') < 150
    # A link to a node selects it and draws what it reads and what reads it.
    shown = in_browser(path, "#node=n2500")
    assert 'class="row selected"' in shown and 'class="row linked"' in shown
    assert "<dd>its own</dd>" in shown and "<dd>layers.0</dd>" in shown
    assert len(re.findall(r"<rect ", shown)) == 3


@needs_browser
def test_a_comparison_in_a_browser(tmp_path: Path) -> None:
    before = explanation(4).graphs[0].stages[0]
    after = GraphRecord("after", (*before.nodes[:2], *before.nodes[3:]))
    GraphDiff((compare(before, before, "none"), compare(before, before, "again"))).html(tmp_path / "same.html")
    assert '<table class="sides">' not in in_browser(tmp_path / "same.html")
    section = compare(explanation(4).graphs[0].stages[0], GraphRecord("after", after.nodes[:2]), "shorter")
    GraphDiff((section,)).html(tmp_path / "diff.html")
    shown = in_browser(tmp_path / "diff.html")
    assert shown.count('<tr class="removed">') == section.changes == 5
    assert "%2 = aten.relu.default(%1) -&gt; float32[8, 64]" in shown

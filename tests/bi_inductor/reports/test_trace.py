"""Option `trace` writes every compile into a folder of its own, also a refused one and one that a cache holds; tlparse gets the same."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from torch._logging._internal import trace_log

import bi_inductor
from bi_inductor.reports import trace
from bi_inductor.reports.explanation import Explanation

# One worker: the tests compile the same function.
pytestmark = pytest.mark.xdist_group("trace")


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x).sum(-1)


def compile_and_run(**options: object) -> torch.Tensor:
    torch._dynamo.reset()
    out: torch.Tensor = torch.compile(function, backend="batch_invariant", options=options)(torch.ones(3, 5, requires_grad=True))
    out.sum().backward()
    return out


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_forward_and_backward_have_a_folder_each_and_no_cache_empties_a_trace(tmp_path: Path) -> None:
    expected = compile_and_run()
    counters.clear()
    assert torch.equal(compile_and_run(), expected)
    assert counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"] > 0, "there is a cache to pass by"

    assert torch.equal(compile_and_run(trace=tmp_path), expected)
    first = names(tmp_path)
    assert first == ["0000_forward", "0001_backward"]
    stages = ["dynamo", "captured", "round_low_precision", "rewrite", "inductor"]
    assert names(tmp_path / "0000_forward") == sorted(
        [f"{i}_{stage}.txt" for i, stage in enumerate(stages)]
        + [f"{i}_{stage}.diff" for i, stage in enumerate(stages) if i]
        + ["generated_code.py", "report.html", "report.json", "report.txt"]
    )
    assert "bi_inductor.sum.default" in (tmp_path / "0000_forward" / "3_rewrite.txt").read_text()
    assert "+ %2 = bi_inductor.sum.default(%1, [-1], False)" in (tmp_path / "0000_forward" / "3_rewrite.diff").read_text()
    assert "bundle.require('reduce_sum', 'float32'" in (tmp_path / "0000_forward" / "generated_code.py").read_text()
    report = json.loads((tmp_path / "0000_forward" / "report.json").read_text())
    assert [graph.name for graph in Explanation.from_json(report).graphs] == ["forward"]

    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    compile_and_run(trace=tmp_path)
    assert names(tmp_path) == [*first, "0002_forward", "0003_backward"]
    assert names(tmp_path / "0002_forward") == names(tmp_path / "0000_forward")
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_refused_compile_leaves_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BI_INDUCTOR_TRACE", str(tmp_path / "new" / "folder"))
    with pytest.raises(bi_inductor.UnsupportedOpError, match="igamma"):
        torch.compile(lambda x: torch.igamma(x, x), backend="batch_invariant")(torch.ones(2, 3))
    (folder,) = (tmp_path / "new" / "folder").iterdir()
    assert "refused: aten.igamma.default(float32[2, 3], float32[2, 3])" in (folder / "report.txt").read_text()


def test_bodies_of_higher_order_ops_have_files_of_their_own() -> None:
    explanation = bi_inductor.explain(
        lambda x: torch.cond(x.sum() > 0, lambda x: x.softmax(-1), lambda x: x.cumsum(-1), [x]), torch.ones(2, 3)
    )
    files = trace._files(explanation, "")
    assert "bi_inductor.softmax" in files["inner_0_2_rewrite.txt"]() and "bi_inductor.cumsum" in files["inner_1_2_rewrite.diff"]()
    assert "cond" in files["3_rewrite.txt"]()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(bi_inductor.OptionError, match=r"option 'trace'.*names a folder that cannot be written"):
        compile_and_run(trace=str(tmp_path / "file"))


def test_numbers_are_claimed_by_creating_the_folder(tmp_path: Path) -> None:
    (tmp_path / "0001_forward").mkdir()
    assert [trace._new_folder(tmp_path, kind).name for kind in ("backward", "forward")] == ["0002_backward", "0003_forward"]


def test_structured_trace_has_the_artifacts() -> None:
    class Handler(logging.Handler):
        def __init__(self) -> None:
            super().__init__()
            self.artifacts: dict[str, tuple[str, str]] = {}

        def emit(self, record: logging.LogRecord) -> None:
            artifact = getattr(record, "metadata", {}).get("artifact", {})
            if artifact.get("name", "").startswith("bi_inductor_"):
                self.artifacts.setdefault(artifact["name"], (artifact["encoding"], record.payload))  # type: ignore[attr-defined]  # torch's

    handler = Handler()
    trace_log.addHandler(handler)
    try:
        compile_and_run(fx_graph_cache=False)
    finally:
        trace_log.removeHandler(handler)
    assert handler.artifacts["bi_inductor_3_rewrite.diff"][0] == "string"
    assert "bi_inductor.sum.default" in handler.artifacts["bi_inductor_report.txt"][1]
    encoding, payload = handler.artifacts["bi_inductor_report.json"]
    assert encoding == "json" and json.loads(payload)["backend"] == "batch_invariant"
    assert "bi_inductor_generated_code.py" in handler.artifacts


def test_without_a_reader_nothing_is_recorded() -> None:
    found = list(trace_log.handlers)
    for handler in found:
        trace_log.removeHandler(handler)
    try:
        assert not trace.is_wanted(bi_inductor.Options())
        assert trace.is_wanted(bi_inductor.Options(trace="folder"))
    finally:
        for handler in found:
            trace_log.addHandler(handler)

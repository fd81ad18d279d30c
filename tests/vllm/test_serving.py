"""A served Llama: tokens and logprobs of a request are the same bits whatever is scheduled beside it. `make test-vllm` runs this.

Each engine is a process and serves all runs of its plan; results are compared as the hexadecimal numbers that they are.
"""

from __future__ import annotations

import pytest
import torch

import bi_inductor
from tests.vllm.engine import NEW_TOKENS, REQUESTS
from tests.vllm.plans import (
    CHUNKED,
    CHUNKS,
    EAGER,
    FEW,
    GREEDY,
    ODD_WIDTH,
    SAMPLED,
    SERVED,
    SOME,
    STOCK,
    Engines,
    chunked,
    differing,
    ours,
    plan,
    stock,
    stock_default,
    together,
)

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


@DTYPES
def test_greedy_answers_do_not_depend_on_the_schedule(engines: Engines, dtype: str) -> None:
    runs = engines(ours(dtype))["runs"]
    assert len(runs["together"]) == REQUESTS
    assert {name: differing(runs[name], runs["together"]) for name in GREEDY} == {name: [] for name in GREEDY}


@DTYPES
def test_control_stock_answers_do(engines: Engines, dtype: str) -> None:
    runs = engines(stock(dtype))["runs"]
    assert sum(len(differing(answers, runs["together"])) for answers in runs.values()) > 0


@DTYPES
def test_control_stock_draws_follow_the_schedule(engines: Engines, dtype: str) -> None:
    runs = engines(stock(dtype))["runs"]
    lonely = {str(request): runs[f"alone {request} drawn"][str(request)] for request in SOME}
    assert len(differing(lonely, runs["some sampled"])) > 0


@DTYPES
def test_sampled_answers_depend_on_their_seed_only(engines: Engines, dtype: str) -> None:
    runs = engines(ours(dtype))["runs"]
    assert {name: differing(runs[name], runs["together sampled"]) for name in SAMPLED} == {name: [] for name in SAMPLED}
    assert len(differing(runs["together sampled"], runs["together"])) == REQUESTS


@DTYPES
def test_chunks_of_16_tokens_and_prefixes_from_the_cache_change_nothing(engines: Engines, dtype: str) -> None:
    expected, result = engines(ours(dtype))["runs"], engines(chunked(dtype))
    assert result["cached"]["together"] > 0 and result["cached"]["again"] > result["cached"]["together"]
    assert differing(result["runs"]["together"], expected["together"]) == []
    assert differing(result["runs"]["again"], expected["together"]) == []
    assert differing(result["runs"]["together sampled"], expected["together sampled"]) == []
    assert differing(result["runs"]["shuffled sampled"], expected["together sampled"]) == []


def test_control_stock_answers_follow_chunks_and_the_cache(engines: Engines) -> None:
    runs = {name: CHUNKS[name] for name in ("together", "again")}
    result, expected = engines(plan("float32", STOCK, runs, **CHUNKED)), engines(stock("float32"))["runs"]["together"]
    assert result["cached"]["again"] > 0
    assert len(differing(result["runs"]["together"], expected)) > 0


@DTYPES
def test_a_second_start_gives_the_same_answers(engines: Engines, dtype: str) -> None:
    """Also after its weights have been loaded once more."""
    runs = {"reloaded": [{"reload": True, **together()[0]}], **{name: SERVED[name] for name in ("together", "shuffled sampled")}}
    again = engines(plan(dtype, bi_inductor.vllm_config(), runs), start=1)["runs"]
    expected = engines(ours(dtype))["runs"]
    assert differing(again["reloaded"], expected["together"]) == []
    assert differing(again["together"], expected["together"]) == []
    assert differing(again["shuffled sampled"], expected["together sampled"]) == []


FEWER = {name: FEW[name] for name in FEW if name not in ("together 2", "together 3")}
MORE = {**FEWER, **{name: GREEDY[name] for name in ("arrivals", "others")}}
CONTROLS = {
    "attention": plan("float32", bi_inductor.vllm_config(), FEWER, worker_cls="tests.vllm.workers.StockAttention"),
    # oneDNN takes another kernel for the one row of a request that decodes alone.
    "linears": plan("float32", bi_inductor.vllm_config(), FEWER, worker_cls="tests.vllm.workers.StockLinears"),
    # A width that is no multiple of the vectors of an op, so that their ends fall elsewhere in other batches; in how many, depends on which
    # requests the engine happens to take together.
    "layers between": plan("float32", EAGER, MORE, intermediate_size=ODD_WIDTH, worker_cls="tests.vllm.workers.StockLayers"),
}


@pytest.mark.parametrize("mechanism", CONTROLS)
def test_control_each_mechanism_is_needed(engines: Engines, mechanism: str) -> None:
    """With one mechanism switched back to vLLM's own, answers follow the schedule."""
    runs = engines(CONTROLS[mechanism])["runs"]
    assert sum(len(differing(answers, runs["together"])) for answers in runs.values()) > 0


def test_an_odd_width_changes_nothing(engines: Engines) -> None:
    """The width at which the control of the layers between differs."""
    runs = engines(plan("float32", bi_inductor.vllm_config(), FEWER, intermediate_size=ODD_WIDTH))["runs"]
    assert {name: differing(answers, runs["together"]) for name, answers in runs.items()} == {name: [] for name in FEWER}


def test_control_the_sampler_is_needed(engines: Engines) -> None:
    """With vLLM's own a request with a seed stops the engine when its prompt comes in chunks."""
    runs = {"together sampled": CHUNKS["together sampled"]}
    worker = "tests.vllm.workers.StockSampler"
    assert "Generator" in engines.failure(plan("float32", bi_inductor.vllm_config(), runs, **CHUNKED, worker_cls=worker))


def test_stock_is_the_same_with_and_without_the_plugin(engines: Engines) -> None:
    """In one process: with the engine's core in another one, how many requests its first step finds depends on time, and stock on that."""
    stock_plan = plan("float32", STOCK, {"together": together()})
    without, installed = (
        engines(stock_plan, VLLM_ENABLE_V1_MULTIPROCESSING="0", **plugins)["runs"] for plugins in ({"VLLM_PLUGINS": ""}, {})
    )
    assert differing(installed["together"], without["together"]) == []


def test_the_backend_without_the_plugin_is_refused(engines: Engines) -> None:
    """Dynamo finds the backend by itself; without the plugin nothing else is ours."""
    failure = engines.failure(plan("float32", bi_inductor.vllm_config(), {"together": together()}), VLLM_PLUGINS="")
    assert "plugin batch_invariant loaded (VLLM_PLUGINS, if it is set, has to name it)" in failure


@DTYPES
def test_throughput(engines: Engines, dtype: str) -> None:
    """Prints tokens per second: medians of three equal runs, the first of which may compile. docs/vllm.md has figures.

    What is asked is far below them: that nothing fell back to slow code. Vectors of bfloat16 multiply in vLLM where the CPU has such
    instructions; ours keep the bits of other CPUs.
    """
    new_tokens = REQUESTS * NEW_TOKENS
    speeds = {}
    for name, given in (("ours", ours(dtype)), ("stock", stock(dtype)), ("stock by default", stock_default(dtype))):
        result = engines(given)
        seconds = sorted(result["seconds"][run] for run in ("shuffled", "together 2", "together 3"))
        speeds[name] = new_tokens / seconds[1]
        print(f"{dtype} {name}: {speeds[name]:.1f} tokens/s (from {new_tokens / seconds[2]:.1f} to {new_tokens / seconds[0]:.1f})")
    least = 0.7 if dtype == "float32" else 0.4 if torch.cpu._is_avx512_bf16_supported() else 1.5
    assert speeds["ours"] >= least * max(speeds["stock"], speeds["stock by default"])

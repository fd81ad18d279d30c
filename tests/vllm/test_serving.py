"""A served Llama: tokens and logprobs of a request are the same bits whatever is scheduled beside it. `make test-vllm` runs this.

Each engine is a process and serves all runs of its plan; results are compared as the hexadecimal numbers that they are.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bi_inductor
from tests.vllm.engine import REQUESTS

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

REPOSITORY = Path(__file__).resolve().parents[2]
EVERY = list(range(REQUESTS))
ALONE = [0, 5, 11, 17, 23, 31]
STOCK = {"mode": 2, "backend": "inductor", "custom_ops": ["none"]}
CHUNKED = {"enable_prefix_caching": True, "max_num_batched_tokens": 16, "max_num_seqs": 16}
PLAIN = {"enable_prefix_caching": False}


def shuffled(seed: int) -> list[int]:
    order = list(EVERY)
    random.Random(seed).shuffle(order)
    return order


def together(greedy: bool = True) -> list[dict[str, Any]]:
    return [{"add": EVERY, "greedy": greedy}]


def one_by_one(greedy: bool = True) -> dict[str, list[dict[str, Any]]]:
    return {f"alone {request}": [{"add": [request], "greedy": greedy}] for request in ALONE}


def arrivals(size: int, seed: int) -> list[dict[str, Any]]:
    """A few new requests before each of the first steps."""
    order = shuffled(seed)
    return [{"add": order[i : i + size]} for i in range(0, REQUESTS, size)]


class Engines:
    """Runs each plan once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[str, Any] = {}

    def __call__(self, dtype: str, compilation: dict[str, Any], arguments: dict[str, Any], runs: dict[str, Any], again: int = 0) -> Any:
        """The result of a plan; ``again`` tells a second start from the first."""
        plan = json.dumps({"dtype": dtype, "compilation": compilation, "arguments": arguments, "runs": runs})
        key = f"{plan}{again}"
        if key not in self.known:
            files = self.folder / f"plan{len(self.known)}.json", self.folder / f"result{len(self.known)}.json"
            files[0].write_text(plan)
            # Two threads, as the machine has cores: vLLM otherwise keeps one core for itself.
            environment = {**os.environ, "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
            command = [sys.executable, "-m", "tests.vllm.engine", *map(str, files)]
            done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=1200, check=False)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
            self.known[key] = json.loads(files[1].read_text())
        return self.known[key]


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(tmp_path_factory.mktemp("engines"))


def differing(result: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The requests whose tokens or logprobs are others; all that ran must be known."""
    return [request for request, answer in result.items() if answer != expected[request]]


PLAIN_RUNS = {
    "together": together(),
    **one_by_one(),
    "shuffled": [{"add": shuffled(1)}],
    "arrivals": arrivals(3, 2),
    "others": arrivals(7, 3),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_greedy_answers_do_not_depend_on_the_schedule(engines: Engines, dtype: str) -> None:
    result = engines(dtype, bi_inductor.vllm_config(), PLAIN, PLAIN_RUNS)
    expected = result["runs"]["together"]
    assert len(expected) == REQUESTS
    assert {name: differing(answers, expected) for name, answers in result["runs"].items()} == {name: [] for name in PLAIN_RUNS}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_control_stock_answers_do(engines: Engines, dtype: str) -> None:
    result = engines(dtype, STOCK, PLAIN, PLAIN_RUNS)
    expected = result["runs"]["together"]
    assert sum(len(differing(answers, expected)) for answers in result["runs"].values()) > 0


CHUNKED_RUNS = {
    "together": together(),
    "again": together(),
    "sampled": together(False),
    "sampled shuffled": [{"add": shuffled(4), "greedy": False}],
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_chunks_of_16_tokens_and_prefixes_from_the_cache_change_nothing(engines: Engines, dtype: str) -> None:
    plain = engines(dtype, bi_inductor.vllm_config(), PLAIN, PLAIN_RUNS)["runs"]["together"]
    result = engines(dtype, bi_inductor.vllm_config(), CHUNKED, CHUNKED_RUNS)
    assert result["cached"]["together"] > 0 and result["cached"]["again"] > result["cached"]["together"]
    assert differing(result["runs"]["together"], plain) == []
    assert differing(result["runs"]["again"], plain) == []


SAMPLED_RUNS = {"together": together(False), **one_by_one(False), "shuffled": [{"add": shuffled(5), "greedy": False}]}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampled_answers_depend_on_their_seed_only(engines: Engines, dtype: str) -> None:
    """Also with chunked prefill, where stock vLLM on CPU stops with an error for requests with seeds."""
    result = engines(dtype, bi_inductor.vllm_config(), PLAIN, SAMPLED_RUNS)
    expected = result["runs"]["together"]
    assert {name: differing(answers, expected) for name, answers in result["runs"].items()} == {name: [] for name in SAMPLED_RUNS}
    chunked = engines(dtype, bi_inductor.vllm_config(), CHUNKED, CHUNKED_RUNS)["runs"]
    assert differing(chunked["sampled"], expected) == differing(chunked["sampled shuffled"], expected) == []
    assert any(answer != greedy for answer, greedy in zip(expected.values(), chunked["together"].values(), strict=True))


def test_a_second_start_gives_the_same_answers(engines: Engines) -> None:
    runs = {"together": together()}
    first = engines("float32", bi_inductor.vllm_config(), PLAIN, PLAIN_RUNS)["runs"]["together"]
    assert differing(engines("float32", bi_inductor.vllm_config(), PLAIN, runs, again=1)["runs"]["together"], first) == []


@pytest.mark.parametrize("worker", ["StockAttention", "StockLinears", "StockSampler"])
def test_control_each_mechanism_is_needed(engines: Engines, worker: str) -> None:
    """With one mechanism switched back to vLLM's own, some answer follows the schedule, or is another one."""
    runs = SAMPLED_RUNS if worker == "StockSampler" else PLAIN_RUNS
    result = engines("float32", bi_inductor.vllm_config(), {**PLAIN, "worker_cls": f"tests.vllm.workers.{worker}"}, runs)["runs"]
    assert sum(len(differing(answers, result["together"])) for answers in result.values()) > 0


def test_ours_serves_as_fast_as_stock(engines: Engines) -> None:
    """Prints tokens per second; the second of two equal runs, so that no compilation is in it."""
    for dtype in ("float32", "bfloat16"):
        ours = engines(dtype, bi_inductor.vllm_config(), PLAIN, PLAIN_RUNS)["seconds"]
        stock = engines(dtype, STOCK, PLAIN, PLAIN_RUNS)["seconds"]
        print(f"{dtype}: seconds for all requests, ours {ours['shuffled']:.1f}, stock {stock['shuffled']:.1f}")
        assert ours["shuffled"] > 0

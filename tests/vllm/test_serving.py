"""A served Llama: tokens and logprobs of a request are the same bits whatever is scheduled beside it. `make test-vllm` runs this.

Each engine is a process and serves all runs of its plan; results are compared as the hexadecimal numbers that they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import bi_inductor
from tests.vllm.engine import NEW_TOKENS, REQUESTS

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

REPOSITORY = Path(__file__).resolve().parents[2]
EVERY = list(range(REQUESTS))
SOME = [0, 5, 11, 17, 23, 31]
STOCK = {"mode": 2, "backend": "inductor", "custom_ops": ["none"]}
EAGER = {"mode": 0, "custom_ops": ["none"]}
CHUNKED = {"enable_prefix_caching": True, "max_num_batched_tokens": 16, "max_num_seqs": 16}
PLAIN = {"enable_prefix_caching": False}
ODD_WIDTH = 2050
OUR_WORKER = "bi_inductor.integrations.vllm.worker.InvariantCPUWorker"
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def shuffled(seed: int) -> list[int]:
    order = list(EVERY)
    random.Random(seed).shuffle(order)
    return order


def together(greedy: bool = True) -> list[dict[str, Any]]:
    return [{"add": EVERY, "greedy": greedy}]


def alone(requests: list[int], greedy: bool = True) -> dict[str, list[dict[str, Any]]]:
    return {f"alone {request}{'' if greedy else ' sampled'}": [{"add": [request], "greedy": greedy}] for request in requests}


def arrivals(size: int, seed: int) -> list[dict[str, Any]]:
    """A few new requests before each of the first steps."""
    order = shuffled(seed)
    return [{"add": order[i : i + size]} for i in range(0, REQUESTS, size)]


class Engines:
    """Runs each plan once, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[str, Any] = {}

    def __call__(self, plan: dict[str, Any], start: int = 0, **environment: str) -> Any:
        """The result of a plan; ``start`` tells a second start from the first, ``environment`` is set for its process."""
        key = f"{json.dumps(plan)} {start} {environment}"
        if key not in self.known:
            files = self.folder / f"plan{len(self.known)}.json", self.folder / f"result{len(self.known)}.json"
            done = self.run(plan, files, environment)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
            self.known[key] = json.loads(files[1].read_text())
        return self.known[key]

    def failure(self, plan: dict[str, Any]) -> str:
        """What an engine that has to fail writes."""
        done = self.run(plan, (self.folder / "plan.json", self.folder / "result.json"), {"VLLM_LOGGING_LEVEL": "ERROR"})
        assert done.returncode != 0
        return done.stdout + done.stderr

    @staticmethod
    def run(plan: dict[str, Any], files: tuple[Path, Path], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        files[0].write_text(json.dumps(plan))
        # Two threads, as the machine has cores: vLLM otherwise keeps one core for itself.
        settings = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", **environment}
        command = [sys.executable, "-m", "tests.vllm.engine", *map(str, files)]
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=1200)
        finally:
            # An engine has processes of its own, which must not outlive a failure.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(command, process.returncode, output, errors)


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(tmp_path_factory.mktemp("engines"))


def differing(result: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The requests whose tokens or logprobs are others; all that ran must be known."""
    return [request for request, answer in result.items() if answer != expected[request]]


GREEDY = {
    "together": together(),
    "shuffled": [{"add": shuffled(1)}],
    "arrivals": arrivals(3, 2),
    "others": arrivals(7, 3),
    **alone(EVERY),
    # For the time.
    "together 2": together(),
    "together 3": together(),
}
SAMPLED = {"together sampled": together(False), "shuffled sampled": [{"add": shuffled(5), "greedy": False}], **alone(SOME, False)}
SERVED = {**GREEDY, **SAMPLED}
# Enough to see differences and to take the time.
FEW = {**{name: GREEDY[name] for name in ("together", "shuffled", "together 2", "together 3")}, **alone(SOME)}
CHUNKS = {
    "together": together(),
    "again": together(),
    "together sampled": together(False),
    "shuffled sampled": [{"add": shuffled(4), "greedy": False}],
}


def plan(dtype: str, compilation: dict[str, Any], runs: dict[str, Any], intermediate_size: int = 2048, **arguments: Any) -> dict[str, Any]:
    """The plan of an engine (tests/vllm/engine.py)."""
    arguments = {**PLAIN, **arguments}
    return {"dtype": dtype, "compilation": compilation, "arguments": arguments, "intermediate_size": intermediate_size, "runs": runs}


def ours(dtype: str) -> dict[str, Any]:
    return plan(dtype, bi_inductor.vllm_config(), SERVED)


def chunked(dtype: str) -> dict[str, Any]:
    return plan(dtype, bi_inductor.vllm_config(), CHUNKS, **CHUNKED)


def stock(dtype: str) -> dict[str, Any]:
    return plan(dtype, STOCK, FEW)


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


@DTYPES
def test_a_second_start_gives_the_same_answers(engines: Engines, dtype: str) -> None:
    runs = {name: SERVED[name] for name in ("together", "shuffled sampled")}
    again = engines(plan(dtype, bi_inductor.vllm_config(), runs), start=1)["runs"]
    expected = engines(ours(dtype))["runs"]
    assert differing(again["together"], expected["together"]) == []
    assert differing(again["shuffled sampled"], expected["together sampled"]) == []


FEWER = {name: FEW[name] for name in FEW if name not in ("together 2", "together 3")}
CONTROLS = {
    "attention": plan("float32", bi_inductor.vllm_config(), FEWER, worker_cls="tests.vllm.workers.StockAttention"),
    # A width that is no multiple of the vectors of an op, so that their ends fall elsewhere in other batches.
    "layers between": plan("float32", EAGER, FEWER, intermediate_size=ODD_WIDTH, worker_cls=OUR_WORKER),
}


@pytest.mark.parametrize("mechanism", CONTROLS)
def test_control_each_mechanism_is_needed(engines: Engines, mechanism: str) -> None:
    """With one mechanism switched back to vLLM's own, answers follow the schedule."""
    runs = engines(CONTROLS[mechanism])["runs"]
    assert sum(len(differing(answers, runs["together"])) for answers in runs.values()) > 0


def test_control_linears_are_needed(engines: Engines) -> None:
    """vLLM's give other bits than ours; whether these follow the schedule depends on the CPU and oneDNN's choice of a kernel."""
    worker = "tests.vllm.workers.StockLinears"
    runs = engines(plan("float32", bi_inductor.vllm_config(), {"together": together()}, worker_cls=worker))["runs"]
    assert len(differing(runs["together"], engines(ours("float32"))["runs"]["together"])) > 0


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


@DTYPES
def test_throughput(engines: Engines, dtype: str) -> None:
    """Prints tokens per second: medians of three equal runs, the first of which may compile. docs/vllm.md has figures.

    What is asked is far below them: that nothing fell back to slow code. Vectors of bfloat16 multiply in vLLM where the CPU has such
    instructions; ours keep the bits of other CPUs.
    """
    new_tokens = REQUESTS * NEW_TOKENS
    speeds = {}
    for name, result in (("ours", engines(ours(dtype))), ("stock", engines(stock(dtype)))):
        seconds = sorted(result["seconds"][run] for run in ("shuffled", "together 2", "together 3"))
        speeds[name] = new_tokens / seconds[1]
        print(f"{dtype} {name}: {speeds[name]:.1f} tokens/s (from {new_tokens / seconds[2]:.1f} to {new_tokens / seconds[0]:.1f})")
    least = 0.7 if dtype == "float32" else 0.4 if torch.cpu._is_avx512_bf16_supported() else 1.5
    assert speeds["ours"] >= least * speeds["stock"]

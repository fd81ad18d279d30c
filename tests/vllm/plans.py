"""Plans of engines: which requests run in which batches, in which configuration. tests/vllm/engine.py runs them."""

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

import bi_inductor
from tests.vllm.engine import REQUESTS

REPOSITORY = Path(__file__).resolve().parents[2]
EVERY = list(range(REQUESTS))
SOME = [0, 5, 11, 17, 23, 31]
STOCK = {"mode": 2, "backend": "inductor", "custom_ops": ["none"]}
EAGER = {"mode": 0, "custom_ops": ["none"]}
CHUNKED = {"enable_prefix_caching": True, "max_num_batched_tokens": 16, "max_num_seqs": 16}
PLAIN = {"enable_prefix_caching": False}
ODD_WIDTH = 2050


def shuffled(seed: int) -> list[int]:
    order = list(EVERY)
    random.Random(seed).shuffle(order)
    return order


def together(kind: str = "greedy") -> list[dict[str, Any]]:
    return [{"add": EVERY, "kind": kind}]


def alone(requests: list[int], kind: str = "greedy") -> dict[str, list[dict[str, Any]]]:
    return {f"alone {request}{' ' + kind if kind != 'greedy' else ''}": [{"add": [request], "kind": kind}] for request in requests}


def arrivals(size: int, seed: int, kind: str = "greedy") -> list[dict[str, Any]]:
    """A few new requests before each of the first steps."""
    order = shuffled(seed)
    return [{"add": order[i : i + size], "kind": kind} for i in range(0, REQUESTS, size)]


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

    def failure(self, plan: dict[str, Any], **environment: str) -> str:
        """What an engine that has to fail writes."""
        done = self.run(plan, (self.folder / "plan.json", self.folder / "result.json"), environment)
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
SAMPLED = {
    "together sampled": together("drawn"),
    "shuffled sampled": [{"add": shuffled(5), "kind": "drawn"}],
    "arrivals sampled": arrivals(3, 6, "drawn"),
    "others sampled": arrivals(7, 7, "drawn"),
    **alone(EVERY, "drawn"),
}
SERVED = {**GREEDY, **SAMPLED}
# Enough to see differences and to take the time.
FEW = {**{name: GREEDY[name] for name in ("together", "shuffled", "together 2", "together 3")}, **alone(SOME)}
# Few enough for stock vLLM to take each prompt in one step: it stops at a seed when a prompt comes in chunks.
FEW_SAMPLED = {"some sampled": [{"add": SOME, "kind": "drawn"}], **alone(SOME, "drawn")}
CHUNKS = {
    "together": together(),
    "again": together(),
    "together sampled": together("drawn"),
    "shuffled sampled": [{"add": shuffled(4), "kind": "drawn"}],
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
    """Compiled by Inductor from the same graph as ours."""
    return plan(dtype, STOCK, {**FEW, **FEW_SAMPLED})


def stock_default(dtype: str) -> dict[str, Any]:
    """As vLLM chooses by itself."""
    return plan(dtype, {}, {name: FEW[name] for name in ("together", "shuffled", "together 2", "together 3")})

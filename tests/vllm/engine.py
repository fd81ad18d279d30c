"""One engine of vLLM in a process of its own: makes a seeded model, runs a plan of batches, writes what each request got.

    python -m tests.vllm.engine PLAN.json RESULT.json

The plan is {"dtype", "compilation", "arguments": further ones of LLM, "intermediate_size": of the model, "runs": {name: [step, ...]}}.
Before each step of the engine the
requests of the next step of the run are added, {"add": [numbers], "greedy": bool}; it goes on until all are done. The result is {"runs":
{name: {request: [[token, logprob as a hexadecimal number], ...]}}, "cached": prompt tokens found in the prefix cache, "seconds"}.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

VOCABULARY = 8000
REQUESTS = 32
NEW_TOKENS = 32


def make_model(folder: Path, intermediate_size: int) -> None:
    """A Llama of hidden size 768 with 6 layers and seeded weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=768,
        num_hidden_layers=6,
        num_attention_heads=12,
        num_key_value_heads=4,
        intermediate_size=intermediate_size,
        vocab_size=VOCABULARY,
        max_position_embeddings=1024,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def prompts() -> list[list[int]]:
    """Prompts of 5 to 400 tokens. Those of the second half begin as those of the first, so that the prefix cache has something to find."""
    import torch

    generator = torch.Generator().manual_seed(1)

    def tokens(count: int) -> list[int]:
        found: list[int] = torch.randint(10, VOCABULARY, (count,), generator=generator).tolist()
        return found

    lengths = torch.randint(5, 401, (REQUESTS,), generator=generator).tolist()
    found = [tokens(length) for length in lengths[: REQUESTS // 2]]
    for length, first in zip(lengths[REQUESTS // 2 :], list(found), strict=True):
        shared = first[: min(len(first), length) // 2]
        found.append(shared + tokens(length - len(shared)))
    return found


def sampling(request: int, greedy: bool) -> Any:
    """Greedy, or with temperature, top-p, min-p and a seed of the request."""
    from vllm import SamplingParams

    drawn = {"temperature": 0.0} if greedy else {"temperature": 0.8, "top_p": 0.95, "min_p": 0.1, "seed": 1000 + request}
    return SamplingParams(max_tokens=NEW_TOKENS, logprobs=0, ignore_eos=True, detokenize=False, **drawn)


def run(engine: Any, steps: list[dict[str, Any]], name: str) -> tuple[dict[str, Any], int]:
    """Adds requests as the steps say and runs to the end; results by request, and the number of cached prompt tokens."""
    texts = prompts()
    results: dict[str, Any] = {}
    cached = 0
    pending = list(steps)
    while pending or engine.has_unfinished_requests():
        if pending:
            step = pending.pop(0)
            for request in step["add"]:
                prompt = {"prompt_token_ids": texts[request]}
                engine.add_request(f"{name}/{request}", prompt, sampling(request, step.get("greedy", True)))
        for output in engine.step():
            if output.finished:
                cached += output.num_cached_tokens or 0
                answer = output.outputs[0]
                pairs = zip(answer.token_ids, answer.logprobs, strict=True)
                results[output.request_id.split("/")[1]] = [[token, float(found[token].logprob).hex()] for token, found in pairs]
    return results, cached


def main() -> None:
    """Runs the plan named on the command line."""
    plan, result = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    from vllm import LLM

    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), plan["intermediate_size"])
        started = time.monotonic()
        arguments = {"compilation_config": plan["compilation"], **plan["arguments"]}
        llm = LLM(model=folder, skip_tokenizer_init=True, dtype=plan["dtype"], max_model_len=640, seed=0, **arguments)
        report: dict[str, Any] = {"seconds": {"start": time.monotonic() - started}, "cached": {}, "runs": {}}
        for name, steps in plan["runs"].items():
            started = time.monotonic()
            report["runs"][name], report["cached"][name] = run(llm.llm_engine, steps, name)
            report["seconds"][name] = time.monotonic() - started
            print(name, round(report["seconds"][name], 1), flush=True)
        result.write_text(json.dumps(report))


if __name__ == "__main__":
    main()

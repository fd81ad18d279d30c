"""vLLM's sampler with our arithmetic: every number of a request comes from its own row, seed and position.

Temperature, min-p, top-k, top-p and the draw are those of bi_inductor.sampling, compiled; logprobs are our operator. Penalties, biases
and exclusions of tokens are exact row by row in vLLM already and stay.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from bi_inductor import sampling

# Below it vLLM takes the most probable token (vllm.v1.sample.sampler._SAMPLING_EPS).
LEAST_TEMPERATURE = 1e-5

_temperature = torch.compile(sampling.temperature, backend="batch_invariant", dynamic=True)
_min_p = torch.compile(sampling.min_p, backend="batch_invariant", dynamic=True)
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

    @staticmethod
    def gather_logprobs(logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> LogprobsTensors:
        """The token of each row, then its ``num_logprobs`` most probable ones, of equal ones the lower first.

        vLLM takes as many for all as one request of the batch wants, and torch.topk orders equal ones by that number.
        """
        chosen = token_ids[:, None]
        found = logprobs.gather(-1, chosen)
        ranks = (logprobs >= found).sum(-1)
        best = most_probable(logprobs, num_logprobs)
        tokens = torch.cat([chosen, best], dim=1)
        return LogprobsTensors(tokens.to(torch.int32), logprobs.gather(-1, tokens), ranks)

    def gather_specific_token_logprobs(
        self, logprobs: torch.Tensor, logprob_token_ids: dict[int, list[int]], sampled: torch.Tensor
    ) -> LogprobsTensors | None:
        """Logprobs of the tokens that rows ask for by ``logprob_token_ids``, and for the others what they get without such rows beside.

        vLLM gives the others none but that of the sampled token.
        """
        specific: LogprobsTensors | None = super().gather_specific_token_logprobs(logprobs, logprob_token_ids, sampled)
        wanted = self._runner.input_batch.max_num_logprobs
        if specific is None or not wanted:
            return specific
        usual = self.gather_logprobs(logprobs, wanted, sampled)
        width = max(specific.logprobs.shape[1], usual.logprobs.shape[1])
        asks = torch.zeros([logprobs.shape[0], 1], dtype=torch.bool)
        asks[list(logprob_token_ids)] = True

        def merged(those: torch.Tensor, others: torch.Tensor, padding: float) -> torch.Tensor:
            those, others = (torch.nn.functional.pad(given, (0, width - given.shape[1]), value=padding) for given in (those, others))
            return torch.where(asks, those, others)

        return LogprobsTensors(
            merged(specific.logprob_token_ids, usual.logprob_token_ids, 0),
            merged(specific.logprobs, usual.logprobs, -torch.inf),
            usual.selected_token_ranks,
        )

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
        theirs = []
        for processor in sampling_metadata.logitsprocs.argmax_invariant:
            if isinstance(processor, MinPLogitsProcessor):
                if processor.min_p_count:
                    minimum = processor.min_p.reshape(-1)
            else:
                theirs.append(processor)
        warmth = temperatures
        if theirs:
            # They see what they see in vLLM: logits after temperature and min-p. In a batch of greedy requests vLLM leaves them out, so
            # a greedy request among others has to keep its logits too.
            stays, logits = logits, _min_p(_temperature(logits, temperatures), minimum)
            for processor in theirs:
                logits = processor.apply(logits)
            logits = torch.where(temperatures[:, None] == 0, stays, logits)
            warmth, minimum = torch.ones_like(temperatures), torch.zeros_like(minimum)
        rows, vocabulary = logits.shape
        top_k = torch.full([rows], vocabulary) if sampling_metadata.top_k is None else sampling_metadata.top_k.to(torch.int64)
        top_p = torch.ones(rows) if sampling_metadata.top_p is None else sampling_metadata.top_p
        left = _exclude(logits, warmth, top_k, top_p, minimum)
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


def most_probable(values: torch.Tensor, count: int) -> torch.Tensor:
    """The indices, int64 [rows, count], of the largest float32 ``values`` [rows, vocabulary], falling, of equal ones the lower first.

    The first few of them do not depend on ``count``, which torch.topk does not promise: here no two keys are equal.
    """
    # A few rows at a time: prompts have thousands, and a key is twice as wide as a value.
    return torch.cat([torch.topk(_keys(rows), count, dim=-1).indices for rows in values.split(64)])


def _keys(values: torch.Tensor) -> torch.Tensor:
    """int64, in the order of the values, and of equal ones in that of falling indices."""
    bits = (values + 0.0).view(torch.int32).to(torch.int64)  # -0 is 0
    ordered = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return (ordered << 32) - torch.arange(values.shape[1], device=values.device)

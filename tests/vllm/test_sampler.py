"""The sampler by itself: what a row gets does not follow what other rows of the batch ask for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.templates.rows import differences, randn

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

from vllm.v1.sample.logits_processor import LogitsProcessors  # noqa: E402  # only where vLLM is there
from vllm.v1.sample.metadata import SamplingMetadata  # noqa: E402  # as above
from vllm.v1.sample.sampler import Sampler  # noqa: E402  # as above

from bi_inductor.integrations.vllm.sampler import InvariantSampler, most_probable  # noqa: E402  # as above

ROWS, VOCABULARY = 6, 500


def sampler(batch: SamplingMetadata, logprobs_mode: str = "raw_logprobs") -> InvariantSampler:
    """A sampler of a runner that has this batch, each request with its number as seed."""
    rows = batch.temperature.shape[0]
    names = [f"request {row}" for row in range(rows)]
    requests = {name: SimpleNamespace(sampling_params=SimpleNamespace(seed=row)) for row, name in enumerate(names)}
    state = SimpleNamespace(
        num_reqs=rows, req_ids=names, num_tokens_no_spec=torch.full([rows], 7).numpy(), max_num_logprobs=batch.max_num_logprobs
    )
    config = SimpleNamespace(logprobs_mode=logprobs_mode, seed=0)
    return InvariantSampler(SimpleNamespace(model_config=config, input_batch=state, requests=requests))


def metadata(temperatures: torch.Tensor, processors: tuple[Any, ...] = (), **changes: Any) -> SamplingMetadata:
    """What vLLM tells the sampler of a batch with these temperatures [rows], and the numbers of logprobs that it wants."""
    rows = temperatures.shape[0]
    greedy = temperatures == 0
    usual = {
        "temperature": temperatures,
        "all_greedy": bool(greedy.all()),
        "all_random": not bool(greedy.any()),
        "top_p": None,
        "top_k": None,
        "generators": {},
        "max_num_logprobs": None,
        "no_penalties": True,
        "prompt_token_ids": None,
        "frequency_penalties": torch.zeros(rows),
        "presence_penalties": torch.zeros(rows),
        "repetition_penalties": torch.ones(rows),
        "output_token_ids": [[] for _ in range(rows)],
        "allowed_token_ids_mask": None,
        "bad_words_token_ids": {},
        "logitsprocs": LogitsProcessors(processors),
    }
    return SamplingMetadata(**{**usual, **changes})


def rounded(rows: int = ROWS) -> torch.Tensor:
    """Logprobs among which many are equal, as those of a model in bfloat16."""
    return torch.log_softmax(randn(rows, VOCABULARY).to(torch.bfloat16).float() * 0.25, -1).to(torch.bfloat16).float()


def test_the_most_probable_are_the_same_few_of_however_many() -> None:
    values = rounded()
    values[:, 7], values[:, 3] = -0.0, 0.0
    values[0, 11] = torch.inf
    expected = torch.sort(values, dim=-1, descending=True, stable=True).indices
    for count in (0, 1, 3, 20, VOCABULARY):
        assert torch.equal(most_probable(values, count), expected[:, :count])
    # The control: torch's own order of equal values follows the number that is asked for, or at least is another one.
    assert not torch.equal(torch.topk(values, 3).indices, torch.topk(values, VOCABULARY).indices[:, :3])


def test_most_probable_takes_many_rows_and_none() -> None:
    values = rounded(150)
    assert torch.equal(most_probable(values, 5), torch.sort(values, dim=-1, descending=True, stable=True).indices[:, :5])
    assert most_probable(values[:0], 5).shape == (0, 5)


def test_logprobs_of_a_row_do_not_follow_how_many_another_wants() -> None:
    values, tokens = rounded(), torch.arange(ROWS)
    few, many = (InvariantSampler.gather_logprobs(values, count, tokens) for count in (3, 20))
    assert torch.equal(few.logprob_token_ids, many.logprob_token_ids[:, :4])
    assert differences(few.logprobs, many.logprobs[:, :4]) == 0
    stock = Sampler.gather_logprobs(values, 3, tokens)
    assert differences(few.logprobs, stock.logprobs) == 0
    assert torch.equal(few.selected_token_ranks, stock.selected_token_ranks)


def test_logprobs_of_a_row_do_not_follow_tokens_that_another_names() -> None:
    """vLLM leaves the others without logprobs as soon as one request of the batch names tokens."""
    logits, greedy = randn(ROWS, VOCABULARY), torch.zeros(ROWS)
    plain = metadata(greedy, max_num_logprobs=2)
    named = metadata(greedy, max_num_logprobs=2, logprob_token_ids={1: [5, 6, 7, 8, 9]})
    alone, beside, stock = (kind(logits.clone(), given).logprobs_tensors for kind, given in (
        (sampler(plain), plain), (sampler(named), named), (Sampler(), named)
    ))  # fmt: skip
    others = [row for row in range(ROWS) if row != 1]
    assert torch.equal(beside.logprob_token_ids[others, :3], alone.logprob_token_ids[others])
    assert differences(beside.logprobs[others, :3], alone.logprobs[others]) == 0
    assert torch.equal(beside.selected_token_ranks, alone.selected_token_ranks)
    assert beside.logprob_token_ids[1, 1:6].tolist() == [5, 6, 7, 8, 9]
    # The control, and what stays as it was.
    assert not torch.equal(stock.logprob_token_ids[others, :3], alone.logprob_token_ids[others])
    assert torch.equal(stock.logprob_token_ids[1], beside.logprob_token_ids[1])


class Least:
    """A processor of the user that leaves the most probable token in its place."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        self.seen.append(logits.clone())
        return logits.masked_fill_(logits < logits.amax(-1, keepdim=True) - 1, -torch.inf)


def test_a_greedy_request_has_its_own_logprobs_among_drawn_ones_too() -> None:
    """In a batch of greedy requests vLLM leaves processors out that keep the most probable token; among others it does not."""
    logits = randn(ROWS, VOCABULARY)
    mixed = torch.tensor([0.0, 0.8, 0.0, 1.3, 0.0, 0.5])
    greedy = mixed == 0
    together, apart = (metadata(given, (Least(),), max_num_logprobs=0) for given in (mixed, torch.zeros(ROWS)))
    ours = [sampler(given, "processed_logprobs").sample(logits.clone(), given) for given in (together, apart)]
    assert torch.equal(ours[0][0][greedy], ours[1][0][greedy])
    assert ours[0][1] is not None and ours[1][1] is not None
    assert differences(ours[0][1][greedy], ours[1][1][greedy]) == 0
    stock = [Sampler("processed_logprobs").sample(logits.clone(), given)[1] for given in (together, apart)]
    assert differences(stock[0][greedy], stock[1][greedy]) > 0


def test_processors_of_users_see_logits_after_temperature() -> None:
    logits, temperatures = randn(ROWS, VOCABULARY), torch.tensor([0.5, 2.0, 0.0, 1.0, 0.25, 4.0])
    ours, stock = Least(), Least()
    for kind, processor in ((None, ours), (Sampler(), stock)):
        given = metadata(temperatures, (processor,))
        (kind or sampler(given)).sample(logits.clone(), given)
    assert differences(ours.seen[0], stock.seen[0]) == 0
    assert differences(ours.seen[0], logits) > 0

"""What a request may ask for beside a temperature (tests/vllm/engine.py, REQUESTED): the same bits in every batch, in float16.

The KV cache has room for a part of the requests, so that some lose their blocks and are computed again, prompts come in chunks, and a
user's logits processor is registered. Logprobs are those after processing; among logits of float16 many are equal.
"""

from __future__ import annotations

from typing import Any

import pytest

import bi_inductor
from tests.vllm.engine import NEW_TOKENS, REQUESTED, REQUESTS, prompts
from tests.vllm.plans import STOCK, Engines, alone, arrivals, differing, plan, shuffled, together

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

KINDS = list(REQUESTED)
RUNS = {
    "together": together("requested"),
    "shuffled": [{"add": shuffled(6), "kind": "requested"}],
    "arrivals": arrivals(5, 7, "requested"),
    **alone(list(range(len(KINDS))), "requested"),
}
ARGUMENTS: dict[str, Any] = {
    "skip_tokenizer_init": False,
    "logprobs_mode": "processed_logprobs",
    "logits_processors": ["tests.vllm.processors:NearTheBest"],
    "block_size": 32,
    "num_gpu_blocks_override": 60,
}


# Stock vLLM stops at a seed when a prompt comes in chunks.
CHUNKS = {"max_num_batched_tokens": 200, "max_num_seqs": 32}


@pytest.fixture(scope="module")
def ours(engines: Engines) -> Any:
    return engines(plan("float16", bi_inductor.vllm_config(), RUNS, **ARGUMENTS, **CHUNKS))


def test_what_a_request_asks_for_does_not_depend_on_the_schedule(ours: Any) -> None:
    runs = ours["runs"]
    assert len(runs["together"]) == REQUESTS
    assert {name: differing(runs[name], runs["together"]) for name in RUNS} == {name: [] for name in RUNS}


def test_requests_were_computed_again(ours: Any) -> None:
    assert ours["preempted"]["together"] > 0
    assert all(ours["preempted"][name] == 0 for name in RUNS if name.startswith("alone"))


def test_every_kind_of_request_got_what_it_asked_for(ours: Any) -> None:
    """Otherwise the comparison above would say nothing."""
    got = dict(zip(KINDS, (ours["runs"]["together"][str(number)] for number in range(len(KINDS))), strict=True))
    tokens = {kind: [token for token, _ in answer["answers"][0]] for kind, answer in got.items()}
    prompt = got["logprobs of the prompt"]["prompt"]
    assert len(prompt) == len(prompts()[0]) and all(len(found) >= 2 for found in prompt[1:])
    assert all(len(found) >= 20 for _, found in got["penalties"]["answers"][0])
    assert set(tokens["allowed tokens"]) <= set(range(100, 4000))
    assert len(got["several answers"]["answers"]) == 2 and got["several answers"]["answers"][0] != got["several answers"]["answers"][1]
    letters = {sorted_bytes().index(letter) for letter in ("a", "b", "c", "d", "e", "f", "Ġ")}
    assert len(tokens["a grammar"]) == NEW_TOKENS and set(tokens["a grammar"]) <= letters
    assert all({3, 5, 900, 7000} <= {token for token, *_ in found} for _, found in got["logprobs of tokens"]["answers"][0])
    assert not {sorted_bytes().index("a"), sorted_bytes().index("b")} & set(tokens["excluded words"])


def sorted_bytes() -> list[str]:
    """The tokens of the engine's tokenizer by number."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def test_control_stock_answers_do(engines: Engines) -> None:
    runs = engines(plan("float16", STOCK, {name: RUNS[name] for name in RUNS if name not in ("shuffled", "arrivals")}, **ARGUMENTS))["runs"]
    assert sum(len(differing(answers, runs["together"])) for answers in runs.values()) > 0

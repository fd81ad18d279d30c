"""Choosing tokens from logits, request by request: plain torch functions that compile with the backend.

In all of them ``logits`` are [requests, vocabulary], and a row of a result depends on that row, its own settings, its seed and its
position only: no maximum of the whole batch, no random number that moves with the row (docs/mixing.md). Settings are tensors [requests].
Compiled with ``backend="batch_invariant"`` the bits are those of a request alone.
"""

from __future__ import annotations

import torch

from bi_inductor.random import categorical


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """The logarithms of each row's probabilities, in float32."""
    return torch.log_softmax(logits.to(torch.float32), -1)


def penalties(
    logits: torch.Tensor,
    prompt: torch.Tensor,
    output: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """Logits less what their tokens have been used before.

    Args:
        prompt, output: int64 [requests, length], the tokens of prompt and answer so far, filled up with the size of the vocabulary.
        repetition: divides positive and multiplies negative logits of tokens in prompt or output; 1 for none (Keskar et al., 2019).
        frequency: is subtracted once for each time that a token stands in the output.
        presence: is subtracted for each token in the output.
    """
    used, counts = _counts(prompt, logits.shape[1]) > 0, _counts(output, logits.shape[1])
    present = counts > 0
    factor = torch.where(used | present, repetition[:, None], 1.0)
    logits = torch.where(logits > 0, logits / factor, logits * factor)
    logits = logits - frequency[:, None] * counts.to(logits.dtype)
    return logits - presence[:, None] * present.to(logits.dtype)


def _counts(tokens: torch.Tensor, vocabulary: int) -> torch.Tensor:
    counts = torch.zeros([tokens.shape[0], vocabulary + 1], dtype=torch.int64, device=tokens.device)
    return counts.scatter_add(1, tokens, torch.ones_like(tokens))[:, :vocabulary]


def temperature(logits: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """Logits divided by the temperature of their request; those of temperature 0 (greedy) stay as they are."""
    return logits / torch.where(temperatures == 0, 1.0, temperatures)[:, None]


def min_p(logits: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    """Excludes tokens less probable than ``minimum`` times the most probable one of the same request; 0 excludes none."""
    probabilities = torch.softmax(logits, -1)
    threshold = minimum[:, None] * probabilities.amax(-1, keepdim=True)
    return torch.where(probabilities < threshold, -torch.inf, logits)


def top_k_top_p(logits: torch.Tensor, k: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Excludes all but the ``k`` most probable tokens, then all but the fewest of these whose probabilities add up to ``p``.

    Of equal logits the one with the lower index comes first. The size of the vocabulary for ``k`` and 1 for ``p`` exclude none; the
    most probable token always stays.
    """
    ordered, index = torch.sort(logits, dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[1], device=logits.device)
    ordered = torch.where(rank < k[:, None], ordered, -torch.inf)
    total = torch.cumsum(torch.softmax(ordered, -1), -1)
    before = torch.nn.functional.pad(total[:, :-1], (1, 0))
    kept = ((rank < k[:, None]) & ((before < p[:, None]) | (p[:, None] >= 1))) | (rank == 0)
    return torch.where(torch.zeros_like(kept).scatter(1, index, kept), logits, -torch.inf)


def exclude(logits: torch.Tensor, temperatures: torch.Tensor, k: torch.Tensor, p: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    """Temperature, then min-p, then top-k and top-p, in float32."""
    return top_k_top_p(min_p(temperature(logits.to(torch.float32), temperatures), minimum), k, p)


def draw(logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """One token of each row, int64 [requests].

    Args:
        logits: as ``exclude`` leaves them: a token is drawn with the probability that their softmax gives it.
        temperatures: where it is 0, the most probable token is taken, of several the first.
        seeds: int64, of each request.
        positions: int64, at which the token will stand in its request.
    """
    return torch.where(temperatures == 0, torch.argmax(logits, -1), categorical(logits, seeds, positions=positions))

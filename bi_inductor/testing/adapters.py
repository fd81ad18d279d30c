"""Makes a plain sum, as :mod:`bi_inductor.testing.recovery` wants it, of the ops that contain one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bi_inductor.testing.recovery import SumFunction

# exp of this is zero in every dtype, and unlike -inf it is no mask to any attention.
_LOG_OF_ZERO = -1e4


def of_mean(mean: Callable[[torch.Tensor], torch.Tensor]) -> SumFunction:
    """The sum in ``mean``, which maps [n] to one element. For :func:`accumulation_tree`.

    Multiplied back by n in float64. float16 has no room for its quotients: let ``mean`` return float32 there.
    """

    def total(terms: torch.Tensor) -> torch.Tensor:
        return mean(terms).double() * terms.numel()

    return total


def of_matmul(
    matmul: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    rows: int = 1,
    columns: int = 1,
    row: int = 0,
    column: int = 0,
) -> SumFunction:
    """The sum in element [row, column] of ``matmul`` of a [rows, n] and b [n, columns]. For :func:`accumulation_tree`.

    ``a`` is all ones and ``b`` holds the terms in its column. Libraries pick their kernel by ``rows`` and ``columns``.
    """

    def total(terms: torch.Tensor) -> torch.Tensor:
        n = terms.numel()
        a = torch.ones(rows, n, dtype=terms.dtype, device=terms.device)
        b = torch.ones(n, columns, dtype=terms.dtype, device=terms.device)
        b[:, column] = terms
        return matmul(a, b)[row, column]

    return total


def of_attention_values(
    attention: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    queries: int = 1,
    head_dim: int = 16,
    row: int = 0,
    column: int = 0,
) -> SumFunction:
    """The weighted sum over n keys in ``attention(query, key, value)``. For :func:`accumulation_tree`.

    query [1, 1, queries, head_dim] and key [1, 1, n, head_dim] are zero, so every key weighs one; value, of the shape
    of key, holds the terms in its column. The output, divided by n, is multiplied back as in :func:`of_mean`.
    """

    def total(terms: torch.Tensor) -> torch.Tensor:
        n = terms.numel()
        query = torch.zeros(1, 1, queries, head_dim, dtype=terms.dtype, device=terms.device)
        key = torch.zeros(1, 1, n, head_dim, dtype=terms.dtype, device=terms.device)
        value = torch.ones(1, 1, n, head_dim, dtype=terms.dtype, device=terms.device)
        value[0, 0, :, column] = terms
        return attention(query, key, value)[0, 0, row, column].double() * n

    return total


def of_attention_scores(
    lse: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
) -> SumFunction:
    """The dot product over a head dim of n, for one query and one key. For :func:`accumulation_tree`.

    ``lse(query, key, value)`` is the log-sum-exp statistic of attention with scale 1; of one key, it is its score. All
    three operands are [1, 1, 1, n].
    """

    def total(terms: torch.Tensor) -> torch.Tensor:
        ones = torch.ones(1, 1, 1, terms.numel(), dtype=terms.dtype, device=terms.device)
        return lse(ones, terms.reshape(1, 1, 1, -1), ones).reshape(())

    return total


def of_attention_denominator(lse: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor], head_dim: int = 1) -> SumFunction:
    """The sum of exponentials over n keys. For :func:`accumulation_tree_of_nonnegative_terms`.

    ``lse(query, key, value)`` is the log-sum-exp statistic of attention with scale 1 of operands [1, 1, 1, head_dim],
    [1, 1, n, head_dim] and the same.
    """

    def total(terms: torch.Tensor) -> torch.Tensor:
        query = torch.zeros(1, 1, 1, head_dim, dtype=terms.dtype, device=terms.device)
        query[..., 0] = 1.0
        key = torch.zeros(1, 1, terms.numel(), head_dim, dtype=terms.dtype, device=terms.device)
        key[0, 0, :, 0] = _logarithm(terms)
        return lse(query, key, torch.ones_like(key)).reshape(())

    return total


def of_softmax_denominator(softmax: Callable[[torch.Tensor], torch.Tensor]) -> SumFunction:
    """The sum of exponentials in softmax or log_softmax of [n]. For :func:`accumulation_tree_of_nonnegative_terms`."""

    def total(terms: torch.Tensor) -> torch.Tensor:
        return softmax(_logarithm(terms)).max()

    return total


def of_rms_norm(rstd: Callable[[torch.Tensor, float], torch.Tensor]) -> SumFunction:
    """The sum of squares in rms_norm. For :func:`accumulation_tree_of_nonnegative_terms`.

    ``rstd(x, eps)`` is 1 / sqrt(mean(x^2) + eps) of x [n] in the accumulation type. A root loses the last place of what
    it is taken of; a negative eps that leaves nothing of a sum of one shows it again, as infinite or finite.
    """

    def total(terms: torch.Tensor) -> torch.Tensor:
        accumulation = torch.float64 if terms.dtype == torch.float64 else torch.float32
        mean_of_one = 1.0 / torch.tensor(terms.numel(), dtype=accumulation)
        return rstd(terms.sqrt(), -float(mean_of_one)).reshape(())

    return total


def _logarithm(terms: torch.Tensor) -> torch.Tensor:
    return torch.where(terms > 0, terms.log(), _LOG_OF_ZERO)

"""Sampling functions: a row's result has the bits it has alone, compiled and eager, and means what it should."""

import pytest
import torch

from bi_inductor import sampling
from tests.templates.rows import assert_same_bits, differences, randn

VOCABULARY = 1003
ROWS = 13


def settings(rows: int = ROWS) -> dict[str, torch.Tensor]:
    """Settings that differ from request to request, with neutral ones among them."""
    i = torch.arange(rows)
    return {
        "temperatures": torch.tensor([0.0, 0.7, 1.0, 1.3])[i % 4],
        "k": torch.tensor([VOCABULARY, 1, 40])[i % 3],
        "p": torch.tensor([1.0, 0.95, 0.1, 0.5, 0.0])[i % 5],
        "minimum": torch.tensor([0.0, 0.1])[i % 2],
    }


def logits(rows: int = ROWS) -> torch.Tensor:
    return 4 * randn(rows, VOCABULARY)


@pytest.fixture(scope="module")
def compiled() -> object:
    """`exclude` then `draw` as one compiled function with a symbolic number of requests."""

    def sample(x: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, **given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left = sampling.exclude(x, **given)
        return left, sampling.draw(left, given["temperatures"], seeds, positions)

    return torch.compile(sample, backend="batch_invariant", dynamic=True)


@pytest.mark.xdist_group("sampling")
@pytest.mark.filterwarnings("error::bi_inductor.SampleMixingWarning")
def test_a_request_samples_as_it_does_alone(compiled: object) -> None:
    x, given = logits(), settings()
    seeds, positions = torch.arange(ROWS) * 7919, torch.arange(ROWS) + 5
    left, tokens = compiled(x, seeds, positions, **given)  # type: ignore[operator]  # a compiled function
    order = torch.randperm(ROWS)
    for rows in (torch.tensor([0, 1]), torch.tensor([4, 9, 2]), order):
        part, drawn = compiled(x[rows], seeds[rows], positions[rows], **{name: value[rows] for name, value in given.items()})  # type: ignore[operator]
        assert_same_bits(part, left[rows])
        assert torch.equal(drawn, tokens[rows])


def test_neighbours_that_hold_nan_and_infinity_change_nothing(compiled: object) -> None:
    x, given = logits(), settings()
    seeds, positions = torch.arange(ROWS), torch.arange(ROWS)
    left, tokens = compiled(x, seeds, positions, **given)  # type: ignore[operator]  # a compiled function
    for value in (float("nan"), float("inf")):
        hostile = torch.full_like(x, value)
        hostile[6] = x[6]
        part, drawn = compiled(hostile, seeds, positions, **given)  # type: ignore[operator]  # a compiled function
        assert_same_bits(part[6], left[6])
        assert drawn[6] == tokens[6]


def test_control_min_p_against_the_whole_batch_is_reported() -> None:
    """The known fault: one threshold for all requests."""

    def batch_min_p(x: torch.Tensor) -> torch.Tensor:
        probabilities = torch.softmax(x, -1)
        return torch.where(probabilities < 0.1 * probabilities.max(), -torch.inf, x)

    import bi_inductor

    with pytest.raises(bi_inductor.SampleMixingError, match="max"):
        torch.compile(batch_min_p, backend="batch_invariant", options={"strict": True})(logits())


def test_top_k_and_top_p_keep_the_most_probable() -> None:
    x = torch.tensor([[0.5, 0.1, 0.1, 0.3]] * 5).log()
    k = torch.tensor([4, 3, 1, 4, 4])
    p = torch.tensor([1.0, 1.0, 1.0, 0.75, 0.0])
    kept = sampling.top_k_top_p(x, k, p).isfinite()
    # Of the equal second and third token the lower index stays.
    assert kept.tolist() == [[1, 1, 1, 1], [1, 1, 0, 1], [1, 0, 0, 0], [1, 0, 0, 1], [1, 0, 0, 0]]


def test_min_p_is_relative_to_the_request_itself() -> None:
    x = torch.tensor([[0.6, 0.3, 0.1], [0.34, 0.33, 0.33]]).log()
    assert sampling.min_p(x, torch.tensor([0.4, 0.4])).isfinite().tolist() == [[True, True, False], [True, True, True]]


def test_penalties_follow_their_definition() -> None:
    x = torch.tensor([[1.0, -1.0, 2.0, 3.0]])
    prompt, output = torch.tensor([[0, 1, 4]]), torch.tensor([[2, 2, 4]])
    result = sampling.penalties(x, prompt, output, torch.tensor([2.0]), torch.tensor([0.25]), torch.tensor([0.5]))
    assert result.tolist() == [[0.5, -2.0, 2.0 / 2 - 2 * 0.25 - 0.5, 3.0]]


def test_greedy_where_the_temperature_is_zero_and_by_probability_elsewhere() -> None:
    x = torch.tensor([[0.1, 0.2, 0.7]]).log().expand(20_000, 3)
    positions = torch.arange(20_000)
    drawn = sampling.draw(x, torch.ones(20_000), torch.full([20_000], 3), positions)
    frequencies = torch.bincount(drawn, minlength=3) / 20_000
    torch.testing.assert_close(frequencies, torch.tensor([0.1, 0.2, 0.7]), atol=0.015, rtol=0)
    assert (sampling.draw(x, torch.zeros(20_000), torch.full([20_000], 3), positions) == 2).all()


def test_seed_and_position_decide() -> None:
    x = torch.zeros(1, VOCABULARY).expand(6, -1)
    seeds, positions = torch.tensor([1, 1, 2, 1, 2**62, -5]), torch.tensor([0, 1, 0, 0, 0, 0])
    drawn = sampling.draw(x, torch.ones(6), seeds, positions)
    assert drawn[0] == drawn[3]
    assert len(set(drawn.tolist())) == 5


def test_log_probabilities_are_those_of_torch_within_rounding() -> None:
    x = logits().to(torch.bfloat16)
    torch.testing.assert_close(sampling.log_probabilities(x), x.double().log_softmax(-1).float())
    assert differences(sampling.log_probabilities(x), sampling.log_probabilities(x)) == 0

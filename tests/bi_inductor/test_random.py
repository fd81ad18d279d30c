"""Random numbers of a sample: Philox's published answers, distributions, and bits that follow seed and position only."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import bi_inductor
from bi_inductor import random
from bi_inductor.operators.philox import philox_words
from tests.templates.rows import assert_same_bits, differences

# Counter, key and result of philox4x32-10 as the authors of Random123 publish them (kat_vectors).
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_its_published_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    words = philox_words(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))  # type: ignore[arg-type]  # of four and two
    assert tuple(int(word) for word in words) == expected


def seeds(batch: int) -> Tensor:
    return torch.arange(batch) * 7919**4 - 5


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform": lambda s: random.uniform(s, (3, 5)),
    "uniform of float64": lambda s: random.uniform(s, (7,), dtype=torch.float64, stream=1),
    "uniform of bfloat16": lambda s: random.uniform(s, (7,), dtype=torch.bfloat16),
    "normal": lambda s: random.normal(s, (33,), stream=2),
    "gumbel": lambda s: random.gumbel(s, (33,), stream=3),
    "bernoulli": lambda s: random.bernoulli(0.3, s, (40,), stream=4),
    "dropout": lambda s: random.dropout(torch.ones(len(s), 40), 0.3, s, stream=5),
    "categorical": lambda s: random.categorical(torch.ones(len(s), 9, 4), s),
    "positions": lambda s: random.normal(s, (2,), positions=torch.arange(3).expand(len(s), 3) + s[:, None].abs()),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_sample_has_its_numbers_in_every_batch(name: str) -> None:
    draw = DRAWS[name]
    whole = draw(seeds(9))
    assert len({tuple(row.flatten().tolist()) for row in whole}) == 9
    for part in ([4], [8, 0, 3], [5, 5, 1, 2]):
        expected = whole[part]
        got = draw(seeds(9)[part])
        assert torch.equal(got, expected)


def test_torch_draws_by_the_place() -> None:
    """The control."""

    def draw(batch: int) -> Tensor:
        return torch.rand(batch, 3, 5, generator=torch.Generator().manual_seed(0))

    assert differences(draw(9)[5:], draw(4)) > 0


def test_seed_stream_position_and_element_each_count() -> None:
    s = seeds(2)
    draws = [
        random.uniform(s, (4,)),
        random.uniform(s + 1, (4,)),
        random.uniform(s + (1 << 40), (4,)),
        random.uniform(s, (4,), stream=1),
        random.uniform(s, (4,), positions=1),
        random.uniform(s, (4,), positions=1 << 40),
    ]
    values = torch.stack(draws).flatten()
    assert len(values.unique()) == len(values)
    # An element's number does not follow the shape, a position's not the others.
    assert torch.equal(random.uniform(s, (2, 2)).flatten(1), draws[0])
    assert torch.equal(random.uniform(s, (4,), positions=torch.tensor([[0, 1], [0, 1]]))[:, 1], draws[4])


def test_uniform_numbers_are_even() -> None:
    values = random.uniform(torch.arange(64), (2000,)).double()
    assert values.min() >= 0 and values.max() < 1
    for power in (1, 2, 3):
        # Six standard deviations.
        spread = math.sqrt((1 / (2 * power + 1) - 1 / (power + 1) ** 2) / values.numel())
        assert abs((values**power).mean() - 1 / (power + 1)) < 6 * spread
    counts = torch.histc(values, 100, 0, 1)
    expected = values.numel() / 100
    # Chi squared of 99 degrees of freedom.
    assert ((counts - expected) ** 2 / expected).sum() < 99 + 6 * math.sqrt(2 * 99)
    for other in (values.roll(1, 0), values.roll(1, 1)):
        assert abs(torch.corrcoef(torch.stack([values.flatten(), other.flatten()]))[0, 1]) < 6 / math.sqrt(values.numel())


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float64, 53), (torch.float32, 24), (torch.float16, 11), (torch.bfloat16, 8)])
def test_uniform_numbers_stay_below_one(dtype: torch.dtype, bits: int) -> None:
    values = random.uniform(torch.arange(8), (20000,), dtype=dtype)
    assert values.dtype == dtype
    scaled = values.double() * 2.0**bits
    assert torch.equal(scaled, scaled.round()) and scaled.max() < 2.0**bits


def test_normal_and_gumbel_have_their_moments() -> None:
    values = random.normal(torch.arange(64), (4000,), dtype=torch.float64)
    n = values.numel()
    for power, moment, spread in ((1, 0, 1), (2, 1, math.sqrt(2)), (3, 0, math.sqrt(15)), (4, 3, math.sqrt(96))):
        assert abs((values**power).mean() - moment) < 6 * spread / math.sqrt(n)
    assert 4 < values.abs().max() < 8.6
    values = random.gumbel(torch.arange(64), (4000,), dtype=torch.float64)
    assert abs(values.mean() - 0.57721566) < 6 * math.pi / math.sqrt(6 * n)
    assert abs(values.var() - math.pi**2 / 6) < 0.05


def test_categorical_draws_by_probability() -> None:
    probabilities = torch.tensor([0.1, 0.2, 0.7, 0.0])
    drawn = random.categorical(probabilities.log().expand(100, 300, 4), torch.arange(100))
    shares = torch.bincount(drawn.flatten(), minlength=4) / drawn.numel()
    assert shares[3] == 0
    assert (shares - probabilities).abs().max() < 6 * 0.5 / math.sqrt(drawn.numel())


def test_dropout_keeps_the_mean() -> None:
    x = torch.full((50, 2000), 3.0)
    x[:, 0] = math.nan
    out = random.dropout(x, 0.25, torch.arange(50))
    kept = out[:, 1:] != 0
    assert abs(kept.double().mean() - 0.75) < 6 * 0.5 / math.sqrt(kept.numel())
    assert torch.equal(out[:, 1:][kept], torch.full_like(out[:, 1:][kept], 3.0 * (1 / 0.75)))
    assert torch.equal(random.dropout(x[:, 1:], 0.0, torch.arange(50)), x[:, 1:])


def test_log_and_cos_are_those_of_torch() -> None:
    x = torch.cat(
        [random.uniform(torch.arange(8), (4000,), dtype=torch.float64).flatten() + 2.0**-53, torch.tensor([0.5, 1 - 2.0**-53, 40])]
    )
    torch.testing.assert_close(random._log(x), x.log(), rtol=5e-16, atol=0)
    words = torch.arange(0, 2**32, 65521)
    torch.testing.assert_close(random._cos_of_turns(words), torch.cos(words.double() * (2 * math.pi / 2**32)), rtol=0, atol=1e-15)


def test_compiled_bits_are_the_eager_ones() -> None:
    def step(s: Tensor, positions: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        return random.categorical(logits, s, positions=positions), random.normal(s, (3,), stream=1)

    s, positions = seeds(11), torch.arange(11) * 3 + 1
    logits = torch.randn(11, 13, generator=torch.Generator().manual_seed(0))
    expected = step(s, positions, logits)
    compiled = torch.compile(step, backend="batch_invariant", dynamic=True, options={"strict": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error", bi_inductor.SampleMixingWarning)
        for part in (slice(0, 11), slice(3, 6)):
            index, noise = compiled(s[part], positions[part], logits[part])
            assert torch.equal(index, expected[0][part])
            assert_same_bits(noise, expected[1][part])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: random.uniform(torch.ones(3), (2,)), r"seeds: got torch.float32 \[3\]; allowed is an int64 tensor \[batch\]"),
        (lambda: random.uniform(7, (2,)), r"seeds: got int"),  # type: ignore[arg-type]  # on purpose
        (lambda: random.uniform(seeds(2), (2,), dtype=torch.int64), r"dtype: got torch.int64; allowed are torch.float64"),
        (lambda: random.uniform(seeds(2), (2,), stream=-1), r"stream: got -1; allowed are numbers from 0"),
        (lambda: random.uniform(seeds(2), (2,), positions=torch.zeros(3)), r"positions: got torch.float32 \[3\]"),
        (lambda: random.dropout(torch.ones(2, 2), 1.0, seeds(2)), r"p: got 1.0; allowed are numbers from 0 to below 1"),
        (lambda: random.bernoulli(1.5, seeds(2)), r"probability: got 1.5; allowed are numbers from 0 to 1"),
    ],
)
def test_bad_arguments(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()

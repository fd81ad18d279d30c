"""Random: numbers drawn from a generator follow the seed and the place in the batch."""

from __future__ import annotations

from bi_inductor.passes.op_tables.names import names

RANDOM = (
    names(
        "aten",
        """
        _philox_normal _philox_uniform _sample_dirichlet _standard_gamma bernoulli bernoulli_ binomial cauchy exponential geometric
        log_normal multinomial native_dropout normal normal_ normal_functional poisson rand rand_like randint randint_like randn
        randn_like random randperm rrelu_with_noise_functional uniform uniform_
        """,
    )
    | names("prims", "inductor_seed inductor_seeds inductor_lookup_seed inductor_random inductor_randint normal uniform")
    | names("prims", "inductor_rand_eager_offset inductor_rand_eager_offsets")
    | names("rngprims", "philox_rand")
)

# Give the numbers that others draw from.
SEEDS = names("prims", "inductor_seed inductor_seeds inductor_lookup_seed")

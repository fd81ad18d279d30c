"""`python -m benchmarks`: the table of models (see benchmarks/bench.py; `benchmarks.ops` has single ops)."""

from benchmarks.bench import main

main()

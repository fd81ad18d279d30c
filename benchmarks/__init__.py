"""Measured comparisons with stock Inductor and eager. `make bench` runs `benchmarks.bench`."""

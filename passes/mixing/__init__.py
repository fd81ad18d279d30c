"""Finds where a sample's value starts to depend on another sample, by following the samples through the dims of every value of a graph."""

from bi_inductor.passes.mixing.analysis import find_mixing as find_mixing
from bi_inductor.passes.mixing.call import Finding as Finding
from bi_inductor.passes.mixing.inputs import GraphInput as GraphInput
from bi_inductor.passes.mixing.inputs import describe_inputs as describe_inputs
from bi_inductor.passes.mixing.report import mixing_reason as mixing_reason
from bi_inductor.passes.mixing.report import require_unmixed as require_unmixed

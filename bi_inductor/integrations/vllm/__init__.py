"""vLLM through its compilation config: ``LLM(..., compilation_config=bi_inductor.vllm_config())``.

plugin.py listens, configuration.py accepts or refuses, worker.py puts into a worker what lies outside of the compiled graph: linears.py,
attention.py and sampler.py. Written against vLLM 0.32; every name of vLLM that is replaced is named where that happens.
"""

"""Reports on compiles: what was captured, classified, rewritten and generated. They only read."""

"""FX graph passes of bi_inductor, one subject a file; installed as ``bi_inductor.passes``."""

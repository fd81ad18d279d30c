"""Random numbers have no kernel of their own: they are elementwise code of the graph (lowering.py)."""

"""Causal attention of several requests over a cache of KV blocks."""

"""The pinned configuration of the Triton scans, on every target."""

from __future__ import annotations

# One warp of chains a program, and how far ahead their elements are loaded; neither chooses a bit.
CONSTANTS = {"CHAINS": 32, "AHEAD": 8}

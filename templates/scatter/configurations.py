"""The pinned configuration of the Triton scatter, on every target."""

from __future__ import annotations

# Elements of the result that a program of one warp computes; it chooses no bit.
CONSTANTS = {"BLOCK": 128}

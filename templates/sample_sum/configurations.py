"""The pinned configuration of the Triton sum over samples, on every target."""

# Elements of a program, and samples that are added in registers at a time. Neither chooses a bit: a group is a part of the tree.

CONSTANTS = {"BLOCK": 256, "GROUP": 16}
WARPS, STAGES = 4, 1

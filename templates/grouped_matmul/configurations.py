"""How the Triton grouped matmul departs from matmul's table of tiles: in pipeline stages, which decide no bits."""

from __future__ import annotations

import torch

from bi_inductor.templates.matmul.configurations import CHAINED, Configuration

# What GROUPED counts, as the source calls it, and the size of the grouped dim there.
GROUPED_DIMS = (("rows", "m"), ("columns", "n"), ("terms", "k"))


def stages(target: str, tile: Configuration, dtype: torch.dtype, grouped: str) -> int:
    """The stages of a tile on elements of ``dtype``, where ``grouped`` is "rows", "columns" or "terms".

    What finds a group of columns takes registers beside those of the pipeline, and ptxas would keep some of them in memory on sm_100.
    """
    return 1 if target == "sm_100" and grouped == "columns" and dtype not in CHAINED else tile.stages

"""A model and its inputs as they would be on a device that is only described: fake tensors of the same sizes, strides and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses import FakeTensorMode

DEVICE = torch.device("cuda", 0)


def on_described_device(model: Callable[..., Any], inputs: Any, mode: FakeTensorMode) -> Any:
    """The inputs on the device; the parameters and buffers of a module are replaced in place.

    Args:
        model: a module or function.
        inputs: tensors in any structure.
        mode: the fake tensors' mode.
    """
    made: dict[int, torch.Tensor] = {}

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        # Tied parameters stay one.
        if id(tensor) not in made:
            fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=DEVICE)
            # Which dims are dynamic (torch._dynamo.mark_dynamic).
            for name, mark in vars(tensor).items():
                if name.startswith("_dynamo_"):
                    setattr(fake, name, mark)
            # Without gradients: autograd's engine needs the device to be there.
            made[id(tensor)] = torch.nn.Parameter(fake, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else fake
        return made[id(tensor)]

    with mode:
        if isinstance(model, torch.nn.Module):
            for module in model.modules():
                for tensors in (module._parameters, module._buffers):
                    for name, tensor in list(tensors.items()):
                        if tensor is not None:
                            tensors[name] = moved(tensor)  # type: ignore[assignment]  # a Parameter where there was one
        return pytree.tree_map_only(torch.Tensor, moved, inputs)

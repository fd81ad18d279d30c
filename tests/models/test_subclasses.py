"""Subclasses of tensors: a weight kept as numbers and scales, a DTensor on one rank; and collectives, refused with their reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.utils._pytree as pytree
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn import functional as F

import bi_inductor
from tests.templates.rows import assert_same_bits, randn


class Scaled(Tensor):
    """Numbers and a scale for each row, multiplied where they are used."""

    numbers: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor, scale: Tensor) -> Scaled:
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=numbers.dtype, device=numbers.device)  # type: ignore[attr-defined, no-any-return]  # untyped

    def __init__(self, numbers: Tensor, scale: Tensor) -> None:
        self.numbers, self.scale = numbers, scale

    # torch writes structured traces where logging is captured, as pytest does, and would take the values to print them.
    def __repr__(self) -> str:
        return f"Scaled({list(self.shape)})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], _: None, size: Any, stride: Any) -> Scaled:
        return Scaled(inner["numbers"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "aten":
            raise NotImplementedError(f"a subclass knows the ops of torch; given {func}")
        plain = pytree.tree_map(lambda x: x.numbers * x.scale if isinstance(x, Scaled) else x, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


def assert_invariant(fn: Callable[[Tensor], Tensor], x: Tensor) -> None:
    compiled = torch.compile(fn, backend="batch_invariant", dynamic=True, fullgraph=True)
    whole = compiled(x)
    torch.testing.assert_close(whole, fn(x), rtol=1e-4, atol=1e-5)
    for batch in (1, 2, 5):
        assert_same_bits(compiled(x[:batch]), whole[:batch], f"batch {batch}")


def test_a_subclass_with_numbers_and_scales() -> None:
    weight = Scaled(randn(32, 16), randn(32, 1, seed=1))

    def fn(x: Tensor) -> Tensor:
        return F.linear(x, weight).softmax(-1)

    assert_invariant(fn, randn(9, 16, seed=2))
    # The same bits as with the plain weight.
    plain = weight.numbers * weight.scale
    x = randn(9, 16, seed=2)
    of_plain = torch.compile(lambda x: F.linear(x, plain).softmax(-1), backend="batch_invariant")(x)
    assert_same_bits(torch.compile(fn, backend="batch_invariant")(x), of_plain)


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.xdist_group("one rank")
def test_a_dtensor_on_one_rank(mesh: DeviceMesh) -> None:
    weight = distribute_tensor(randn(32, 16), mesh, [Shard(0)])

    def fn(x: Tensor) -> Tensor:
        local: Tensor = F.linear(DTensor.from_local(x, mesh, [Replicate()], run_check=False), weight).softmax(-1).to_local()
        return local

    assert_invariant(fn, randn(9, 16, seed=2))


@pytest.mark.xdist_group("one rank")
def test_collectives_are_refused_with_their_reason(mesh: DeviceMesh) -> None:
    x = randn(9, 16)
    for name, fn in (
        ("all_reduce", lambda x: collectives.all_reduce(x * 2, "sum", mesh) + 1),
        ("all_gather_into_tensor", lambda x: collectives.all_gather_tensor(x * 2, 0, mesh) + 1),
    ):
        with pytest.raises(
            bi_inductor.UnsupportedOpError, match=rf"_c10d_functional.{name}[\s\S]*in which order ranks are added"
        ) as raised:
            torch.compile(fn, backend="batch_invariant")(x)
        assert "wait_tensor" not in str(raised.value)
    allowed = {"allow": ("_c10d_functional.all_reduce",)}
    assert_same_bits(
        torch.compile(lambda x: collectives.all_reduce(x, "sum", mesh) + 1, backend="batch_invariant", options=allowed)(x), x + 1
    )

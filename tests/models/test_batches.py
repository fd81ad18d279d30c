"""Models of transformers: a sample's bits in any batch, order and place; static, dynamic and recompiled; any number of
threads; with and without grad.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.models.tiny import MODELS, Logits, tokens
from tests.templates.rows import THREADS, assert_same_bits, differences

BATCH, LENGTH = 17, 13


def compiled(name: str, dtype: torch.dtype = torch.float32, **kwargs: object) -> Callable[..., torch.Tensor]:
    return torch.compile(Logits(MODELS[name]().to(dtype)), backend="batch_invariant", **kwargs)


@pytest.mark.parametrize(("name", "dtype"), [*((n, torch.float32) for n in MODELS), ("llama", torch.bfloat16)], ids=str)
def test_samples_keep_their_bits(name: str, dtype: torch.dtype) -> None:
    fn = compiled(name, dtype, dynamic=True, options={"cpp.dynamic_threads": True})
    ids, mask = tokens(BATCH, LENGTH)
    mask[3, 9:] = 0
    with torch.no_grad():
        whole = fn(ids, mask)
        for m in (2, 3, 5, 8, 16):
            assert_same_bits(fn(ids[:m], mask[:m]), whole[:m], f"batch {m}")
        order = torch.randperm(BATCH, generator=torch.Generator().manual_seed(1))
        assert_same_bits(fn(ids[order], mask[order]), whole[order], "permuted")
        # A batch of one is another graph.
        for i in (0, 3, BATCH - 1):
            assert_same_bits(fn(ids[i : i + 1], mask[i : i + 1]), whole[i : i + 1], f"sample {i} alone")
        before = torch.get_num_threads()
        try:
            for threads in THREADS:
                torch.set_num_threads(threads)
                assert_same_bits(fn(ids, mask), whole, f"{threads} threads")
        finally:
            torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_static_equals_dynamic_equals_recompiled(name: str) -> None:
    ids, mask = tokens(8, LENGTH)
    results = []
    with torch.no_grad():
        for dynamic in (True, False, None):
            torch._dynamo.reset()
            fn = compiled(name, dynamic=dynamic)
            results.append([fn(ids[:m], mask[:m]) for m in (8, 1, 3)])
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            assert_same_bits(left, right)


def test_stock_varies() -> None:
    # One token a sample: one row alone, BATCH rows together.
    ids, mask = tokens(BATCH, 1)
    varying = 0
    with torch.no_grad():
        for name in ("llama", "bert"):
            model = Logits(MODELS[name]())
            whole = model(ids, mask)
            varying += sum(differences(model(ids[i : i + 1], mask[i : i + 1]), whole[i : i + 1]) > 0 for i in range(BATCH))
    assert varying > 0


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_gradients_of_inputs_and_forward_under_grad(name: str) -> None:
    """Inputs are embeddings here, so that they have gradients."""
    model = MODELS[name]()
    width = model.config.hidden_size

    def run(embeddings: torch.Tensor) -> torch.Tensor:
        extra = {} if name == "bert" else {"use_cache": False}
        result: torch.Tensor = model(inputs_embeds=embeddings, return_dict=False, **extra)[0]
        return result

    fn = torch.compile(run, backend="batch_invariant", dynamic=True)
    x = torch.randn(5, 7, width, generator=torch.Generator().manual_seed(1))
    seed = torch.randn(5, 7, model.config.vocab_size if name == "llama" else width, generator=torch.Generator().manual_seed(2))

    def backward(samples: slice) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = x[samples].clone().requires_grad_()
        out = fn(inputs)
        (grad,) = torch.autograd.grad(out, inputs, seed[samples])
        return out.detach(), grad

    whole, grad = backward(slice(0, 5))
    exact = torch.autograd.grad(run(leaf := x.clone().requires_grad_()), leaf, seed)[0]
    torch.testing.assert_close(grad, exact, rtol=1e-3, atol=1e-4)
    for m in (1, 2, 3):
        part, part_grad = backward(slice(0, m))
        assert_same_bits(part, whole[:m], f"forward of {m}")
        assert_same_bits(part_grad, grad[:m], f"gradient of {m}")
    with torch.no_grad():
        assert_same_bits(fn(x), whole, "no_grad")

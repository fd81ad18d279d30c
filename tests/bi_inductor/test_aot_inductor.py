"""Packages of AOTInductor: a process without bi_inductor gets the bits of the compiled model, for every batch and number of threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bi_inductor
from tests.templates.rows import assert_same_bits, differences

BATCHES = (1, 2, 5, 9)

# What runs the package: torch alone.
PROGRAM = """
import sys, torch
package, inputs, results = sys.argv[1:]
model = torch._inductor.aoti_load_package(package)
ids = torch.load(inputs)
found = {}
for threads in (1, 2):
    torch.set_num_threads(threads)
    for batch in %s:
        found[threads, batch] = model(ids[:batch])
assert "bi_inductor" not in sys.modules
torch.save(found, results)
"""


class Encoder(nn.Module):
    """Templates with and without an epilogue, float32 and bfloat16, sums over rows that are long enough to be split."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 32)
        self.norm = nn.LayerNorm(32)
        self.query = nn.Linear(32, 32)
        self.out = nn.Linear(32, 2000)
        self.head = nn.Linear(2000, 3).bfloat16()
        self.wide = nn.Linear(2000, 64)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.tokens(ids))
        x = x + F.scaled_dot_product_attention(self.query(x), x, x, is_causal=True)
        logits = torch.log_softmax(F.gelu(self.out(x)), -1)
        return torch.cat([self.head(logits.bfloat16()).float(), logits.sum(-1, keepdim=True), self.wide(logits)], -1)


def exported(model: nn.Module, *inputs: Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch")
    return torch.export.export(model, inputs, dynamic_shapes=tuple({0: batch} for _ in inputs))


def test_a_process_without_us_has_the_compiled_bits(tmp_path: Path) -> None:
    model = Encoder().eval()
    ids = torch.randint(0, 50, (max(BATCHES), 7))
    package = bi_inductor.aoti_compile_and_package(exported(model, ids), package_path=tmp_path / "encoder.pt2")
    torch.save(ids, tmp_path / "ids")
    command = [sys.executable, "-c", PROGRAM % (BATCHES,), package, str(tmp_path / "ids"), str(tmp_path / "results")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        expected = torch.compile(model, backend="batch_invariant", dynamic=True)(ids)
        eager = model(ids)
        torch.testing.assert_close(expected, eager, rtol=1e-3, atol=1e-2)
        # The control: rows of torch's own kernels follow the batch.
        one_token = model(ids[:, :1])
        varying = [batch for batch in BATCHES if differences(model(ids[:batch, :1]), one_token[:batch])]
    for (threads, batch), found in torch.load(tmp_path / "results").items():
        assert_same_bits(found, expected[:batch], f"{threads} threads, batch {batch}")
    if not varying:
        pytest.skip("the package is right, but on this CPU torch's own kernels do not follow the batch either")


class Inverse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.inv(x)


class Unsupported(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.gammainc(x, x)


@pytest.mark.parametrize(("model", "message"), [(Inverse(), "from Python"), (Unsupported(), "no batch-invariant template")])
def test_what_a_package_cannot_hold(model: nn.Module, message: str, tmp_path: Path) -> None:
    program = exported(model, torch.rand(3, 4, 4) + torch.eye(4))
    with pytest.warns() if isinstance(model, Inverse) else torch.no_grad(), pytest.raises(bi_inductor.UnsupportedOpError, match=message):
        bi_inductor.aoti_compile_and_package(program, package_path=tmp_path / "model.pt2")


def test_bad_arguments_say_what_is_wrong(tmp_path: Path) -> None:
    program = exported(nn.ReLU(), torch.ones(3, 4))
    with pytest.raises(TypeError, match=r"exported: expected a program that torch.export.export gives; got ReLU"):
        bi_inductor.aoti_compile_and_package(nn.ReLU(), package_path=tmp_path / "model.pt2")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ValueError, match=r"a package ends in .pt2; got 'model.so'"):
        bi_inductor.aoti_compile_and_package(program, package_path="model.so")
    for options in ({"aot_inductor.use_runtime_constant_folding": True}, {"trace": "folder"}, {"freezing": True}):
        with pytest.raises(bi_inductor.OptionError, match=next(iter(options))):
            bi_inductor.aoti_compile_and_package(program, package_path=tmp_path / "model.pt2", options=options)

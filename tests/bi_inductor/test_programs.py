"""Programs of the command line are loaded, or one sentence says why not."""

from pathlib import Path

import pytest
import torch
from torch import nn

from bi_inductor.programs import ProgramError, load_program

FILE = str(Path(__file__).with_name("models_of_tests.py"))


def test_a_file_and_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    program = load_program(f"{FILE}:linear")
    assert isinstance(program.model, nn.Linear) and program.inputs.shape == (4, 256)
    assert program.arguments[0][0] is program.inputs
    monkeypatch.chdir(Path(FILE).parent)
    assert load_program("models_of_tests:relu").model is torch.relu
    assert load_program(f"{FILE}:by_name").arguments[1]["scale"] == 2.0


def test_a_saved_program(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    layer = nn.Linear(4, 2)
    torch.export.save(torch.export.export(layer, (x,)), tmp_path / "layer.pt2")
    program = load_program(str(tmp_path / "layer.pt2"))
    assert torch.equal(program.model(*program.arguments[0]), layer(x))
    (tmp_path / "other.pt2").write_text("text")
    with pytest.raises(ProgramError, match=r"other.pt2' cannot be loaded by torch.export.load"):
        load_program(str(tmp_path / "other.pt2"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("module", r"'module' must be module:callable, file.py:callable or the path of a saved program"),
        ("missing.pt2", r"'missing.pt2': there is no such file"),
        ("missing.py:relu", r"there is no file missing.py"),
        ("missing_module:relu", r"cannot be imported ModuleNotFoundError: No module named 'missing_module'"),
        (f"{FILE}:missing", r"has no 'missing'"),
        (f"{FILE}:number", r"is of type int; it must be a function that returns \(model, inputs\)"),
        (f"{FILE}:not_a_pair", r"returned something of type int; it must return a tuple \(model, inputs\)"),
    ],
)
def test_one_sentence_says_what_is_wrong(name: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        load_program(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_model_for_a_gpu() -> None:
    with pytest.raises(ProgramError, match=r"This machine has no GPU: build or load the model on the CPU \(.cpu\(\)"):
        load_program(f"{FILE}:on_a_gpu")

"""Every command as a process: what it prints and its exit code. More cases of each run in this process, where they cost little."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from bi_inductor.command_line import COULD_NOT_RUN, INVARIANT, VARIANT, _parser, main

FILE = str(Path(__file__).with_name("models_of_tests.py"))


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bi_inductor", *arguments], capture_output=True, text=True, check=False)


def test_explain_as_a_process(tmp_path: Path) -> None:
    done = process("explain", f"{FILE}:refused", "--json", str(tmp_path / "explained.json"))
    assert done.returncode == VARIANT, done.stderr
    assert "a compile raises UnsupportedOpError for 1 op" in done.stdout
    assert "refused: aten.igamma.default(float32[4, 8], float32[4, 8])" in done.stdout
    assert "\x1b" not in done.stdout
    assert json.loads((tmp_path / "explained.json").read_text())["function"] == f"{FILE}:refused"


def test_diff_as_a_process() -> None:
    done = process("diff", f"{FILE}:linear", "--against", "inductor")
    assert done.returncode == VARIANT, done.stderr
    assert "- %4 = aten.addmm.default(%1, %2, %3) -> float32[4, 64]" in done.stdout
    assert "+ %4 = bi_inductor.matmul.default(%2, %3, %1) -> float32[4, 64]" in done.stdout


def test_check_as_a_process() -> None:
    done = process("check", f"{FILE}:planted", "--backend", "eager", "--batch-sizes", "1,3")
    assert done.returncode == VARIANT, done.stderr
    assert "eager: not batch-invariant" in done.stdout
    assert "batch of 3" in done.stdout and "\x1b" not in done.stdout


def test_find_as_a_process(tmp_path: Path) -> None:
    files = ("--json", str(tmp_path / "found.json"), "--reproduce", str(tmp_path / "again.py"))
    done = process("find", f"{FILE}:linear", *files)
    assert done.returncode == VARIANT, done.stderr
    assert "eager: not batch-invariant, first at linear" in done.stdout and "\x1b" not in done.stdout
    assert json.loads((tmp_path / "found.json").read_text())["invariant"] is False
    again = subprocess.run([sys.executable, str(tmp_path / "again.py")], capture_output=True, text=True, check=False)
    assert "differ" in again.stdout, again.stderr


@pytest.fixture(scope="module")
def saved_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a linear layer of 4 samples: any.pt2 for every number of them, four.pt2 for this one only."""
    folder = tmp_path_factory.mktemp("programs")
    torch.manual_seed(0)
    layer, x = nn.Linear(256, 64), torch.randn(4, 256)
    torch.export.save(torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)), folder / "any.pt2")
    torch.export.save(torch.export.export(layer, (x,)), folder / "four.pt2")
    return folder


def test_saved_programs_as_processes(saved_programs: Path) -> None:
    """All at once: a process costs its start. One of them is read no further than its first line."""
    saved = str(saved_programs / "any.pt2")
    commands = {
        ("explain", saved): (INVARIANT, "every op is supported"),
        ("diff", saved, "--against", "inductor"): (VARIANT, "+ %4 = bi_inductor.matmul.default(%0, %3, %2) -> float32[4, 64]"),
        ("check", saved, "--backend", "eager", "--batch-sizes", "1,4"): (VARIANT, "eager: not batch-invariant"),
        ("find", saved): (VARIANT, "eager: not batch-invariant, first at linear (node 1 of 1)"),
    }
    running = {
        command: subprocess.Popen(
            [sys.executable, "-m", "bi_inductor", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command in commands
    }
    for command, (code, text) in commands.items():
        process = running[command]
        assert process.stdout is not None
        if command[0] == "explain":
            printed = process.stdout.readline() + process.stdout.readline()
            process.stdout.close()
            process.wait()
        else:
            printed = process.communicate()[0]
        assert process.returncode == code, (command, printed)
        assert text in printed, (command, printed)


def test_saved_programs(saved_programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, fixed = str(saved_programs / "any.pt2"), str(saved_programs / "four.pt2")
    assert main(["diff", saved, "--batch", "1", "8"]) == INVARIANT
    assert "2 of 6 lines differ, only sizes" in capsys.readouterr().out
    assert main(["diff", saved, fixed]) == INVARIANT
    assert "0 of 6 lines differ" in capsys.readouterr().out
    for command in (["diff", fixed, "--batch", "1", "8"], ["check", fixed, "--backend", "eager"]):
        assert main(command) == COULD_NOT_RUN
        assert "export it with dynamic_shapes for the dim that holds the samples" in capsys.readouterr().err
    assert main(["find", fixed]) == COULD_NOT_RUN
    assert "the captured graph fixes the batch size to 4" in capsys.readouterr().err


def test_explain_with_find(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    assert main(["explain", f"{FILE}:linear", "--html", str(page), "--find", "eager"]) == INVARIANT
    assert "eager: not batch-invariant, first at linear" in page.read_text()
    assert main(["explain", f"{FILE}:linear", "--find", "eager"]) == COULD_NOT_RUN
    assert "--find shows its result on the HTML page: add --html FILE" in capsys.readouterr().err


def test_find_in_chunks(capsys: pytest.CaptureFixture[str]) -> None:
    """The last chunk has two positions of eight: its sums are other ones unless it is told how long the whole is."""
    chunks = ("--sequence-dim", "1", "--sequence-chunk", "3", "--in-chunks")
    assert main(["find", f"{FILE}:follows_length", *chunks, f"{FILE}:as_long_as_the_whole"]) == INVARIANT
    assert "batch of 4, its 3 chunks put together" in capsys.readouterr().out
    assert main(["find", f"{FILE}:follows_length", *chunks, f"{FILE}:one_by_one"]) == VARIANT
    assert "first at mul" in capsys.readouterr().out


def test_find(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["find", f"{FILE}:linear", "--backend", "batch_invariant", "--dynamic"]) == INVARIANT
    assert "batch_invariant: batch-invariant, the same bits" in capsys.readouterr().out
    # The model takes another way for a batch of 2 than for one of 4: no graph of it could show that.
    assert main(["find", f"{FILE}:planted"]) == COULD_NOT_RUN
    assert "chooses by the batch size (batch_size >= 3 holds for a batch of 4 and not for one of 2)" in capsys.readouterr().err


def test_find_with_more_variants(capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--sequence-dim", "1", "--padding", "2", "--chunk", "3", "--sequence-chunk", "4", "--threads", "1")
    assert main(["find", f"{FILE}:relu", *more]) == INVARIANT
    printed = capsys.readouterr().out
    for name in ("2 pads on the left", "2 pads on the right", "batch of 4, chunk 2 of 2", "batch of 4, 1 thread"):
        assert name in printed, printed
    assert main(["find", f"{FILE}:relu", "--sequence-chunk", "4"]) == COULD_NOT_RUN
    assert "sequence_chunk needs sequence_dim" in capsys.readouterr().err


def test_doctor_as_a_process_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "bi_inductor", "doctor"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "160"}) as running:
        os.close(theirs)
        printed = b""
        while True:
            try:
                printed += os.read(ours, 4096)
            except OSError:
                break
    assert running.returncode == INVARIANT
    assert torch.__version__.encode() in printed
    assert b"\x1b[32mok" in printed


def test_an_error_as_a_process() -> None:
    done = process("check", f"{FILE}:without_batch")
    assert done.returncode == COULD_NOT_RUN
    assert done.stdout == ""
    assert done.stderr.startswith("bi-inductor: error: batch_dim=0 is out of range for inputs of shape ()")
    assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1


COMMANDS = (
    ("explain",),
    ("diff", "--against", "inductor"),
    ("check", "--backend", "eager"),
    ("check", "--backend", "aot_eager"),
    ("find",),
)
A_GPU = "the model uses a CUDA device at "
SENTENCES = {
    "breaks_the_graph": {("find",): "(a graph break) at "},
    "shape_follows_the_data": {
        ("check", "--backend", "eager"): "of a shape that depends on values",
        ("check", "--backend", "aot_eager"): "of a shape that depends on values",
        ("find",): "the shape of an output depends on values at ",
    },
    "branch_follows_the_data": {("find",): "a branch or a shape depends on values at "},
    "writes_to_its_input": {("find",): "writes to an input"},
    "without_batch": {command: "holds no samples" for command in COMMANDS if command[0] in ("check", "find")},
    "on_a_gpu": dict.fromkeys(COMMANDS, "This machine has no GPU: build or load the model on the CPU"),
    "moves_to_a_gpu": dict.fromkeys(COMMANDS, A_GPU),
}


@pytest.mark.parametrize("target", SENTENCES)
def test_what_a_command_cannot_run_is_one_sentence(target: str, capfd: pytest.CaptureFixture[str]) -> None:
    """And what it can run it does: a graph break or a write to an input stops neither explain nor check."""
    if torch.cuda.is_available() and "gpu" in target:
        pytest.skip("needs a machine without CUDA")
    for command in COMMANDS:
        code = main([command[0], f"{FILE}:{target}", *command[1:]])
        printed = capfd.readouterr()
        if (sentence := SENTENCES[target].get(command)) is None:
            assert code in (INVARIANT, VARIANT), (command, printed.err)
            continue
        assert code == COULD_NOT_RUN, command
        assert sentence in printed.err and printed.err.startswith("bi-inductor: error: ") and printed.err.count("\n") == 1, printed.err
        if sentence == A_GPU:
            assert "models_of_tests.py" in printed.err and "move it to the CPU" in printed.err


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{FILE}:relu"]) == INVARIANT
    assert "every op is supported" in capsys.readouterr().out
    assert main(["explain", f"{FILE}:linear", "--target", "sm_90"]) == INVARIANT
    assert "BLOCK_M=64, BLOCK_N=32" in capsys.readouterr().out
    assert main(["explain", f"{FILE}:linear", "--stage", "captured"]) == INVARIANT
    assert "+ %4 = bi_inductor.matmul.default(%2, %3, %1)" in capsys.readouterr().out
    assert main(["explain", f"{FILE}:linear", "--backward", "--json", "-"]) == INVARIANT
    assert [graph["name"] for graph in json.loads(capsys.readouterr().out)["graphs"]] == ["graph 0 forward", "graph 0 backward"]
    assert main(["explain", f"{FILE}:linear", "--stage", "lowered"]) == COULD_NOT_RUN
    assert "stage: got 'lowered'; allowed are 'captured'" in capsys.readouterr().err


def test_diff_of_batches_and_of_saved_explanations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = str(tmp_path / "explained.json")
    assert main(["explain", f"{FILE}:linear", "--json", saved]) == INVARIANT
    assert main(["diff", saved, f"{FILE}:linear"]) == INVARIANT
    assert "0 of 6 lines differ" in capsys.readouterr().out
    # More samples than there are: they repeat.
    assert main(["diff", f"{FILE}:linear", "--batch", "1", "8"]) == INVARIANT
    assert "2 of 6 lines differ, only sizes" in capsys.readouterr().out
    assert main(["diff", f"{FILE}:linear"]) == COULD_NOT_RUN
    assert "diff takes one of: a second program, --against inductor, --batch N M" in capsys.readouterr().err
    Path(saved).write_text("{}")
    assert main(["diff", saved, saved]) == COULD_NOT_RUN
    assert "cannot be read as what explain --json wrote" in capsys.readouterr().err


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{FILE}:relu", "--backend", "eager", "--threads", "1,2", "--neighbours", "nan,1e30", "--grad"]) == INVARIANT
    printed = capsys.readouterr().out
    assert "eager: batch-invariant" in printed and "sample first, neighbours nan" in printed
    assert main(["check", f"{FILE}:broken", "--backend", "eager"]) == COULD_NOT_RUN
    assert capsys.readouterr().err == "bi-inductor: error: RuntimeError: first line. --traceback before the command shows where\n"
    with pytest.raises(RuntimeError, match="first line"):
        main(["--traceback", "check", f"{FILE}:broken", "--backend", "eager"])
    assert main(["check", f"{FILE}:refused", "--batch-sizes", "1,2"]) == COULD_NOT_RUN
    assert "have no batch-invariant template" in capsys.readouterr().err


def test_check_writes_files_and_shrinks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_json, as_junit = tmp_path / "check.json", tmp_path / "check.xml"
    arguments = ["check", f"{FILE}:planted", "--backend", "eager", "--shrink", "--json", str(as_json), "--junit", str(as_junit)]
    assert main([*arguments, "--sequence-dim", "1", "--out-sequence-dim", "1", "--padding", "2"]) == VARIANT
    printed = capsys.readouterr().out
    assert "padded left by 2" in printed and "smallest failing batch: samples [0, 0, 0]" in printed
    assert json.loads(as_json.read_text())["smallest"]["samples"] == [0, 0, 0]
    assert as_junit.read_text().startswith("<?xml")
    assert main(["check", f"{FILE}:relu", "--backend", "eager", "--json", str(tmp_path / "missing" / "check.json")]) == COULD_NOT_RUN
    assert "cannot write" in capsys.readouterr().err


def test_check_in_chunks(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "check",
        f"{FILE}:follows_length",
        "--backend",
        "eager",
        "--sequence-dim",
        "1",
        "--out-sequence-dim",
        "1",
        "--chunks",
        "3,1",
    ]
    assert main(arguments) == VARIANT
    assert "in chunks of 3" in capsys.readouterr().out
    # The user's function tells each chunk how long the whole is.
    assert main([*arguments, "--padding", "", "--in-chunks", f"{FILE}:as_long_as_the_whole"]) == INVARIANT
    assert main([*arguments, "--in-chunks", f"{FILE}:number"]) == COULD_NOT_RUN
    assert "must be a function\n" in capsys.readouterr().err


def test_check_of_a_saved_program(tmp_path: Path) -> None:
    program = torch.export.export(nn.ReLU(), (torch.randn(4, 8),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, tmp_path / "any.pt2")
    assert main(["check", str(tmp_path / "any.pt2"), "--backend", "eager"]) == INVARIANT


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["doctor", "--json"]) == INVARIANT
    assert {finding["subject"] for finding in json.loads(capsys.readouterr().out)} >= {"torch", "C++ compiler", "instruction set", "GPU"}
    monkeypatch.setenv("BI_INDUCTOR_STRCT", "1")
    assert main(["doctor"]) == COULD_NOT_RUN
    assert "unknown environment variable BI_INDUCTOR_STRCT" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "docs/explain.md"])
def test_commands_of_the_documentation_are_understood(page: str) -> None:
    text = (Path(__file__).parents[2] / page).read_text()
    commands = re.findall(r"^    (?:\$ )?bi-inductor ([^#\n]+)", text, re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        parsed = _parser().parse_args(shlex.split(command))
        assert callable(parsed.run)


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["unknown"], ["check"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == COULD_NOT_RUN
    assert "usage: bi-inductor" in capsys.readouterr().err

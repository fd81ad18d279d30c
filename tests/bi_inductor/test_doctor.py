"""The doctor names what is there, and finds what is missing."""

import pytest
import torch

from bi_inductor import doctor
from bi_inductor.doctor import examine


def findings():
    return {finding.subject: finding for finding in examine()}


def test_a_machine_that_can_compile():
    found = findings()
    assert {finding.status for finding in found.values()} <= {"ok", "note"}
    assert found["torch"].found == torch.__version__
    assert "-ffp-contract=off" in found["C++ compiler"].meaning and "version" in found["C++ compiler"].found
    assert torch.backends.cpu.get_cpu_capability() in found["instruction set"].found


def test_no_compiler(monkeypatch):
    from torch._inductor import config

    with config.patch({"cpp.cxx": ("/missing/g++",)}):
        found = findings()["C++ compiler"]
    assert found.status == "missing" and "apt-get install g++" in found.meaning


def test_another_torch(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "1.0.0")
    assert doctor._torch().status == "missing"
    assert "(tested with 2.13.0," in doctor._torch().meaning


@pytest.mark.parametrize(("value", "status"), [("my.op", "note"), ("", "ok")])
def test_ops_let_through(value, status, monkeypatch):
    monkeypatch.setenv("BI_INDUCTOR_ALLOW", value)
    assert findings()["BI_INDUCTOR_* variables"].status == status


def test_a_variable_that_is_unknown(monkeypatch):
    monkeypatch.setenv("BI_INDUCTOR_STRCT", "1")
    found = findings()["BI_INDUCTOR_* variables"]
    assert found.status == "missing" and "unknown environment variable" in found.meaning

"""The result of `check` as JSON and as JUnit XML."""

import json
import math
from xml.etree import ElementTree

import torch

from bi_inductor.check import check


def varying(x):
    return -x if x.shape[0] > 1 else x.clone()


def test_json():
    result = check(varying, torch.ones(3, 2), backend="eager", batch_sizes=(1, 3), permutations=0, positions=(), shrink=True)
    data = json.loads(json.dumps(result.json()))
    assert data["invariant"] is False and data["deterministic"] is True and data["backend"] == "eager"
    assert [(row["run"], row["rows_different"]) for row in data["rows"]] == [(row.run, row.rows_different) for row in result.rows]
    assert data["smallest"]["samples"] == [0, 0]


def test_infinity_is_text():
    result = check(lambda x: x / (x.shape[0] - 3), torch.ones(3, 2), backend="eager", batch_sizes=(1, 3), permutations=0, positions=())
    assert [row.max_ulp for row in result.rows if row.run == "batch of 3"] != [0]
    data = json.dumps(check(lambda x: x * math.nan if x.shape[0] > 1 else x, torch.ones(3, 2), backend="eager").json(), allow_nan=False)
    assert '"max_ulp": "inf"' in data


def test_junit():
    result = check(varying, torch.ones(3, 2), backend="eager", batch_sizes=(1, 3), threads=(1, 2), permutations=0, positions=())
    suite = ElementTree.fromstring(result.junit())
    assert (suite.get("tests"), suite.get("failures")) == (str(len(result.rows)), "2")
    cases = {case.get("name"): case.find("failure") for case in suite}
    assert len(cases) == len(result.rows)
    assert cases["batch of 3, batch 3, threads=2"].get("message").startswith("3 of 3 rows differ, 6 elements")
    assert cases["alone, again, batch 1, threads=1"] is None

"""Verdicts about unions of balls on a data set: made of the records of single balls, which are not computed again."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import relucert as rc
from relucert.cli.main import run
from relucert.core.errors import InvalidInput
from relucert.evaluation.certify import CertifyTask, verdicts
from relucert.evaluation.config import CertifyConfig
from relucert.evaluation.union import union_verdicts
from relucert.records.record import Verdict

UNION = "inf:0.02,2:0.15"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("union")
    path = folder / "net.safetensors"
    rc.save(rc.train(rc.TrainConfig(data="digits", epochs=3, out=folder / "run")).net, path)
    return path


def config(model, out, **changes) -> CertifyConfig:
    settings = {"model": model, "data": "digits", "points": 12, "method": "auto(nodes=20, restarts=1)", "out": out}
    return CertifyConfig(**{**settings, **changes})


def test_the_union_is_made_of_the_records_of_its_balls(model, tmp_path, monkeypatch):
    together = union_verdicts(config(model, tmp_path / "union.jsonl", union=UNION))
    single = [
        verdicts(config(model, tmp_path / "single.jsonl", p=p, eps=eps)) for p, eps in ((math.inf, 0.02), (2.0, 0.15))
    ]
    assert [record.index for record in together.records] == list(range(12))
    for record, *each in zip(together.records, *(found.records for found in single), strict=True):
        found = [one.verdict for one in each]
        order = [v for v in (Verdict.MISCLASSIFIED, Verdict.VULNERABLE, Verdict.UNKNOWN) if v in found]
        assert record.verdict == (order[0] if order else Verdict.ROBUST)
        assert (record.arithmetic is not None) == (record.verdict == Verdict.ROBUST)
    assert 0 < together.counts["robust"] < 12
    # Everything is there: nothing is computed again, in whatever order the balls are named.
    monkeypatch.setattr(CertifyTask, "solve", lambda *_, **__: pytest.fail("computed again"))
    assert union_verdicts(config(model, tmp_path / "union.jsonl", union=UNION)).counts == together.counts
    assert union_verdicts(config(model, tmp_path / "single.jsonl", union="2:0.15,inf:0.02")).counts == together.counts


def test_unions_from_the_command_line(model, tmp_path, capsys):
    flags = ["--data", "digits", "--points", "5", "--method", "crown", "--out", str(tmp_path / "records.jsonl")]
    assert run(["certify", str(model), *flags, "--union", UNION, "--show", "5"]) == 0
    shown = capsys.readouterr().out
    assert "l_inf 0.02 and l_2 0.15" in " ".join(shown.split())
    assert "ball" in shown
    assert run(["certify", str(model), *flags, "--union", UNION, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 6
    assert all(line["ball"] in ({"p": "inf", "eps": 0.02}, {"p": 2.0, "eps": 0.15}) for line in lines[:5])


@pytest.mark.parametrize("union", ["inf", "inf:x", "0.5:1", "2:-1", "2:inf", "2:0.1,2:0.1", "published", ""])
def test_wrong_unions_are_refused(union):
    with pytest.raises(InvalidInput, match="union must"):
        config(Path("net.safetensors"), None, union=union)


def test_published_radii():
    found = CertifyConfig(model=Path("net.mat"), data="gts", union="published")
    assert dict(found.balls) == {1.0: 3.0, 2.0: 0.2, math.inf: 4 / 255}

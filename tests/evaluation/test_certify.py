"""Verdicts on a data set: they do not depend on workers, batches or interruptions, and clocks are said to have stopped them."""

from __future__ import annotations

import copy
import dataclasses
import math
from contextlib import closing

import pytest
import torch

import relucert as rc
from relucert.core.errors import InvalidInput
from relucert.evaluation.certify import CertifyTask, decider, verdicts
from relucert.evaluation.config import CertifyConfig
from relucert.networks.architectures import mlp
from relucert.networks.network import Network
from relucert.records.store import RecordStore
from zoo import randomised


@pytest.fixture(scope="module")
def trained():
    data = rc.dataset("digits")
    net = Network(randomised(mlp((1, 8, 8), 10, [12, 10]), 1), (1, 8, 8)).train()
    optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(41):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(data.x_train), data.y_train).backward()
        optimiser.step()
    return net.eval()


@pytest.fixture
def prop(tmp_path, trained):
    rc.save(trained, tmp_path / "net.safetensors")
    return CertifyConfig(
        model=tmp_path / "net.safetensors", data="digits", p=math.inf, eps=0.1, method="auto(nodes=200)", points=40,
        batch=16, out=tmp_path / "records.jsonl",
    )  # fmt: skip


def facts(found):
    return {record.index: (record.verdict, record.by) for record in found.records}


def test_workers_and_batches_do_not_change_verdicts(prop, tmp_path):
    alone = verdicts(prop)
    assert alone.counts["robust"] > 0
    assert alone.counts["vulnerable"] > 0
    assert alone.counts["misclassified"] > 0
    shared = verdicts(dataclasses.replace(prop, workers=2, batch=5, out=tmp_path / "shared.jsonl"))
    assert facts(alone) == facts(shared)
    assert sum(alone.by.values()) == sum(alone.counts.values()) == alone.points == 40
    with RecordStore(tmp_path / "shared.jsonl") as store:
        for record in shared.records:
            if record.verdict == "vulnerable":
                net, data = rc.load(prop.model), rc.dataset("digits")
                witness = torch.from_numpy(store.array(record.key, "witness"))[None]
                assert int(net.predict(witness)) != record.label
                assert rc.Ball(math.inf, 0.1).contains(data.x_test[record.index][None], witness).all()


def test_a_stopped_run_keeps_every_verdict_it_has_told_of(prop, tmp_path):
    whole = verdicts(dataclasses.replace(prop, out=tmp_path / "whole.jsonl"))
    task, heard = CertifyTask(prop), []
    assert len(task) == 40
    with closing(task.records()) as records:
        for record in records:
            heard.append(record.index)
            if len(heard) == 13:
                break
    with RecordStore(prop.records) as store:
        assert sorted(record.index for record in store.records()) == sorted(heard)
    assert facts(verdicts(prop)) == facts(whole)


def test_clocks_are_said_to_have_stopped_a_search(prop):
    late = verdicts(dataclasses.replace(prop, timeout=1e-9))
    # The clock is looked at after the first verifier: what that proves is proved.
    assert late.by["crown"] == late.counts["robust"]
    assert late.counts["vulnerable"] == 0
    assert late.by["undecided (time)"] == late.counts["unknown"] > 0
    never = verdicts(dataclasses.replace(prop, run_timeout=1e-9))
    assert len(never.records) == 0
    assert never.robust_error == (0, 1)
    assert len(verdicts(prop).records) == 40  # what was not reached has no record that would stand in the way


def test_deciders_are_named_in_a_word(prop):
    found = verdicts(dataclasses.replace(prop, method="crown", points=20))
    assert set(map(decider, found.records)) <= {"prediction", "crown", "undecided (bound)"}
    old = dataclasses.replace(found.records[0], verdict="unknown", by=None, reason=None, arithmetic=None)
    assert decider(old) == "undecided (crown)"
    assert decider(dataclasses.replace(old, method="certify by auto as executed in 5 s")) == "undecided (auto)"
    assert decider(dataclasses.replace(old, reason="highs did not solve the program")) == "undecided (crown)"


def test_errors_of_workers_are_raised(prop):
    with pytest.raises(InvalidInput, match="workers must be at least 1, got 0"):
        dataclasses.replace(prop, workers=0)
    with pytest.raises(InvalidInput, match="p must be 1 or inf for method mip"):
        verdicts(dataclasses.replace(prop, p=2.0, eps=0.1, method="mip", workers=2))


def test_claims_of_a_solver_are_recorded_and_counted_as_no_proof(prop, tmp_path):
    claims = dataclasses.replace(
        prop, method="mip(trust='solver', tighten='crown')", eps=0.08, points=40, out=tmp_path / "claims.jsonl"
    )
    found = verdicts(claims)
    claimed = [record for record in found.records if record.claim]
    assert claimed
    assert {record.verdict for record in claimed} == {"unknown"}
    assert {record.reason for record in claimed} == {"robust on the word of highs alone"}
    assert found.by["robust on the word of highs"] == len(claimed)
    assert found.counts["unknown"] >= len(claimed)
    proved = verdicts(dataclasses.replace(claims, method="mip(tighten='crown')", out=tmp_path / "proved.jsonl"))
    robust = {record.index for record in proved.records if record.verdict == "robust"}
    assert {record.index for record in claimed} <= robust
    assert not any(record.claim for record in proved.records)


@pytest.fixture
def rounded(prop, trained):
    """A configuration whose network adds 1e6 to all logits: in float32 that rounds by more than small margins."""
    net = copy.deepcopy(trained)
    with torch.no_grad():
        net.module[-1].bias += 1e6
    rc.save(net, prop.model)
    return dataclasses.replace(prop, method="crown", eps=0.02)


def test_proofs_say_what_arithmetic_they_cover(rounded):
    real = verdicts(rounded)
    covers = {record.index: record.arithmetic for record in real.records if record.verdict == "robust"}
    assert set(covers.values()) == {"real", "executed"}
    assert real.summary()["executed"] == real.executed == list(covers.values()).count("executed")
    for record in real.records:
        assert (record.arithmetic is not None) == (record.verdict == "robust")
        if record.verdict == "robust":
            assert record.executed < record.margin
            assert (record.executed > 0) == (record.arithmetic == "executed")
            assert 0 < record.rounding < 10  # of a bound in float32, of numbers around 1e6
    strict = verdicts(dataclasses.replace(rounded, arithmetic="executed"))
    assert strict.counts["robust"] == strict.executed == real.executed
    missed = [record for record in strict.records if covers.get(record.index) == "real"]
    assert {(record.verdict, record.reason, decider(record)) for record in missed} == {
        ("unknown", "rounding", "undecided (rounding)")
    }


def test_a_record_answers_runs_of_its_own_arithmetic_alone(rounded):
    keys = {
        arithmetic: question_of(dataclasses.replace(rounded, arithmetic=arithmetic))
        for arithmetic in ("real", "executed")
    }
    assert keys["real"] != keys["executed"]
    assert keys["real"] == question_of(rounded)
    first = CertifyTask(rounded).question
    assert (
        first.method == "certify by crown(budget=536870912)"
    )  # as before proofs had an arithmetic: old stores stay valid
    assert CertifyTask(dataclasses.replace(rounded, timeout=5)).question.method == f"{first.method} in 5 s"
    verdicts(rounded)
    verdicts(dataclasses.replace(rounded, arithmetic="executed", workers=2))
    with RecordStore(rounded.records) as store:
        assert len(list(store.records())) == 80
    with pytest.raises(InvalidInput, match="arithmetic must be 'real' or 'executed', got 'exact'"):
        dataclasses.replace(rounded, arithmetic="exact")


def question_of(config):
    return CertifyTask(config).question.record(0).key

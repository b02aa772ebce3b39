import math
from contextlib import closing
from dataclasses import replace

import pytest
import torch

import relucert as rc
from relucert.core.errors import FileAccessError, InvalidInput
from relucert.evaluation import certify as certifying
from relucert.evaluation import evaluate as module
from relucert.evaluation.certify import verdicts
from relucert.evaluation.config import CertifyConfig, EvaluateConfig, RadiusConfig
from relucert.evaluation.evaluate import EvaluateTask, evaluate
from relucert.evaluation.radius import Radii, RadiusTask, radii
from relucert.networks.prediction import predictions
from relucert.records.record import Verdict
from relucert.records.store import RecordStore
from relucert.training.config import TrainConfig
from relucert.training.loop import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return train(TrainConfig(data="digits", epochs=3, evaluate_every=0, out=folder))


@pytest.fixture
def config(run, tmp_path):
    return EvaluateConfig(
        model=run.folder,
        data="digits",
        p=2,
        eps=0.5,
        points=50,
        batch=20,
        attack="pgd(steps=5)",
        out=tmp_path / "records.jsonl",
    )


def test_errors_are_those_of_the_network_and_its_attack(config, run):
    found = evaluate(config)
    data = rc.dataset("digits")
    assert found.test_error == int((predictions(run.net, data.x_test) != data.y_test).sum()) / len(data.y_test)
    store = RecordStore(config.records)
    records = [record for record in store.records() if record.method.startswith("pgd")]
    assert [record.index for record in records] == list(range(50))
    assert found.robust_error[0] == sum(record.verdict != Verdict.UNKNOWN for record in records) / 50
    for record in records:
        x, y = data.x_test[record.index], data.y_test[record.index]
        assert record.label == int(y)
        assert (record.prediction != record.label) == (record.verdict == Verdict.MISCLASSIFIED)
        if record.verdict == Verdict.VULNERABLE:
            witness = torch.from_numpy(store.array(record.key, "witness").copy())
            assert int(run.net.predict(witness[None])) != int(y)
            assert float((witness - x).norm()) <= record.upper * (1 + 1e-6) <= 0.5 * (1 + 1e-6)
            assert 0 <= float(witness.min()) <= float(witness.max()) <= 1


def test_an_evaluation_stopped_anywhere_ends_with_the_same_records(config, tmp_path):
    whole = evaluate(config)
    lines = {record.key: record for record in RecordStore(config.records).records()}
    for stop in (1, 20, 33):
        part = replace(config, out=tmp_path / f"stopped-{stop}.jsonl")

        with closing(EvaluateTask(part).records()) as records:
            for _ in range(stop):
                next(records)
        resumed = evaluate(part)
        assert {record.key: record for record in RecordStore(part.records).records()} == lines
        assert resumed.robust_error == whole.robust_error


class Backwards(RadiusTask):
    """Radii of which the last of a batch is known first."""

    def _solve(self, x, y, piece):
        yield from reversed(list(super()._solve(x, y, piece)))


def test_records_come_in_the_order_of_points_or_as_they_are_known(run, tmp_path):
    config = RadiusConfig(
        model=run.folder, data="digits", method="region(regions=1)", points=9, batch=5, out=tmp_path / "r.jsonl"
    )
    assert [record.index for record in Backwards(config).records({8, 6})] == [6, 8]
    known = list(Backwards(config).records(in_order=False))
    assert [record.index for record in known] == [6, 8, 4, 3, 2, 1, 0, 7, 5]
    ordered = sorted(known, key=lambda record: record.index)
    assert list(Backwards(config).records()) == ordered
    assert radii(config) == Radii.of(known, torch.float32)
    assert list(Backwards(config).records(in_order=False)) == ordered  # all are there


def test_some_points_alone_have_the_records_of_all(config, tmp_path):
    whole = {record.index: record for record in EvaluateTask(config).records()}
    only = {3, 25, 26}
    task = EvaluateTask(replace(config, out=tmp_path / "some.jsonl"))
    assert [record.index for record in task.records(only)] == [3, 25, 26]
    some = RecordStore(tmp_path / "some.jsonl")
    # Pieces are evaluated as a whole, so that the answers are the same.
    assert {record.index: record for record in some.records()} == {index: whole[index] for index in only}


def test_what_is_known_is_not_done_again(config, monkeypatch):
    first = evaluate(config)
    monkeypatch.setattr(module, "attack_points", lambda *a, **k: pytest.fail("attacked again"))
    again = evaluate(config)
    assert (again.test_error, again.robust_error) == (first.test_error, first.robust_error)


def test_radii_are_records_with_witnesses_and_a_summary(run, tmp_path):
    config = RadiusConfig(
        model=run.folder, data="digits", p=2, points=30, batch=10, method="region(regions=2)", out=tmp_path / "r.jsonl"
    )
    found = radii(config)
    data = rc.dataset("digits")
    expected = rc.radius(run.net, data.x_test[:10], data.y_test[:10], p=2, method=rc.Region(regions=2))
    assert [record.lower for record in found.records[:10]] == expected.lower.tolist()
    assert found.misclassified == sum(record.prediction != record.label for record in found.records)
    right = [record.lower for record in found.records if record.prediction == record.label]
    assert found.mean_lower == pytest.approx(sum(right) / len(right))
    store = RecordStore(config.records)
    for record in found.records:
        if record.verdict is None and math.isfinite(record.upper):
            witness = torch.from_numpy(store.array(record.key, "witness").copy())
            assert int(run.net.predict(witness[None])) != record.label
    predicted = radii(replace(config, labels=False))
    assert predicted.misclassified == 0
    assert len(RecordStore(config.records)) == 60


def test_verdicts_are_records_with_margins_and_a_summary(run, tmp_path, monkeypatch):
    config = CertifyConfig(
        model=run.folder, data="digits", p=2.0, eps=0.02, points=30, batch=10, method="kw", out=tmp_path / "c.jsonl"
    )
    found = verdicts(config)
    data = rc.dataset("digits")
    expected = rc.certify(run.net, data.x_test[:10], data.y_test[:10], rc.Ball(2, 0.02), "kw")
    assert [record.verdict for record in found.records[:10]] == expected.verdict
    assert [record.margin for record in found.records[:10]] == pytest.approx(expected.margin.tolist())
    assert sum(found.counts.values()) == 30
    assert found.robust_error[1] == pytest.approx(1 - found.counts["robust"] / 30)
    monkeypatch.setattr(certifying, "decide", lambda *a, **k: pytest.fail("certified again"))
    assert verdicts(config).counts == found.counts
    for change, message in [
        ({"eps": -1.0}, "eps must be a number >= 0"),
        ({"p": 3.0, "eps": None}, "eps must be given for p=3"),
        ({"batch": 0}, "batch must be at least 1"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            replace(config, **change)


def test_bad_questions_are_named(config, tmp_path):
    for change, message in [
        ({"eps": -1.0}, "eps must be a number >= 0, got -1.0"),
        ({"points": 0}, "points must be at least 1"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"p": 0.5}, "p must be a number >= 1"),
        ({"p": 3.0, "eps": None}, "eps must be given for p=3"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            replace(config, **change)
    with pytest.raises(InvalidInput, match=r"must end in \.jsonl"):
        evaluate(replace(config, out=tmp_path / "records.txt"))
    with pytest.raises(FileAccessError, match="nowhere"):
        evaluate(replace(config, out=tmp_path / "nowhere" / "records.jsonl"))


def test_regions_are_the_papers_distances_and_theorem(config, run):
    found = evaluate(config).regions
    data = rc.dataset("digits")
    x, y = data.x_test[:50], data.y_test[:50]
    with torch.no_grad():
        right = run.net.predict(x) == y
        seen = rc.distances(run.net, x, y, config.p)
        proved = rc.radius(run.net, x, y, config.p, method=rc.Region(regions=0))
    assert found.mean_d_b == pytest.approx(float(seen.region[right].mean()))
    assert found.mean_d_d == pytest.approx(float(seen.decision[right].mean()))
    assert found.certified == pytest.approx(float(((proved.lower >= config.radius) & right).float().mean()))
    assert found.exact == pytest.approx(float(proved.exact[right].float().mean()))
    assert evaluate(replace(config, regions=False)).regions is None


def test_arrays_are_evaluated_as_a_data_set_is(config, tmp_path):
    """The same network and points by path and as tensors: the same figures, and records that a second call reads."""
    data, net = rc.dataset("digits"), rc.load(config.model)
    x, y, out = data.x_test[:30], data.y_test[:30], tmp_path / "arrays.jsonl"
    ball = rc.Ball(config.norm, config.radius)
    found = rc.evaluate(net, x, y, ball, config.attack, records=out)
    by_path = evaluate(replace(config, points=30, batch=500, out=tmp_path / "path.jsonl"))
    assert found.robust_error == by_path.robust_error
    assert found.regions == by_path.regions
    count = len(RecordStore(out))
    assert rc.evaluate(net, x, y, ball, config.attack, records=out).robust_error == found.robust_error
    assert len(RecordStore(out)) == count


def test_mean_and_std_are_part_of_the_network(config, tmp_path):
    """A network behind a normalisation is the network of normalised inputs."""
    from relucert.evaluation._stream import Points

    (points, plain) = (Points.of(replace(config, mean=(0.25,), std=std)) for std in ((0.5,), None))
    net = rc.load(config.model)
    x = rc.dataset("digits").x_test[:5]
    torch.testing.assert_close(points.net(x), net((x - 0.25) / 0.5))
    torch.testing.assert_close(plain.net(x), net(x - 0.25))
    for given, message in (({"std": (0.0,)}, "std must be positive numbers"), ({"mean": (float("nan"),)}, "mean must")):
        with pytest.raises(ValueError, match=message):
            replace(config, **given)
    with pytest.raises(ValueError, match="mean must be a finite number or one for each channel"):
        Points.of(replace(config, mean=(0.1, 0.2)))

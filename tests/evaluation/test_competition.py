"""Lists of instances: results line by line, carried on after an interruption, and pages from complete results."""

from __future__ import annotations

from pathlib import Path

import pytest

from planted import planted
from relucert.core.errors import DamagedData, InvalidInput, UnsupportedLayer
from relucert.evaluation.competition import load_instance, read_instances, read_results, run_instances
from relucert.experiments.vnncomp import answers
from relucert.reports.vnncomp import page

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


def _list(folder: Path) -> Path:
    lines = ["onnx,vnnlib,seconds,verdict,n_unsat,n_sat,alpha_beta_crown_seconds"]
    for seed, safe in ((0, True), (1, False), (2, True)):
        onnx, vnnlib = planted(folder, seed, safe=safe)
        lines.append(f"{onnx.name},{vnnlib.name},20,{'unsat' if safe else 'sat'},1,1,6.5")
    lines.append("missing.onnx,0.vnnlib,20,sat,0,1,6.5")
    path = folder / "instances.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_list_is_run_and_carried_on(tmp_path: Path) -> None:
    path, out = _list(tmp_path), tmp_path / "results.csv"
    run = run_instances(path, out, counterexamples=tmp_path)
    assert next(run).word == "unsat"
    run.close()  # interrupted after the first
    with out.open("a") as file:
        file.write("half a li")
    with pytest.raises(InvalidInput, match="every instance"):
        answers(path, out)
    found = list(run_instances(path, out, workers=2, counterexamples=tmp_path))
    assert sorted(one.word for one in found) == ["error", "sat", "unsat", "unsat"]
    assert len(read_results(out)) == 4
    assert "does not exist" in next(one.by for one in found if one.word == "error")
    assert (tmp_path / "1_1.counterexample").read_text().startswith("((X_0 ")
    before = out.read_bytes()
    assert len(list(run_instances(path, out))) == 4
    assert out.read_bytes() == before
    text = page({"planted": answers(path, out)}, "a machine")
    assert "| planted | 4 | 1 | 2 | 0 | 0 | 1 | 0 |" in text
    assert "other hardware" in text
    assert "| planted | missing 0 | error | sat |" in text
    assert text.index("missing 0") < text.index("| planted | 0 0 | unsat | unsat |")


def test_lists_without_a_head_and_verdicts_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "instances.csv"
    path.write_text("onnx/a.onnx,vnnlib/p.vnnlib,116\n")
    (tmp_path / "verdicts.csv").write_text("onnx,vnnlib,verdict\na.onnx,p.vnnlib,sat\n")
    (one,) = read_instances(path)
    assert (one.limit, one.agreed) == (116.0, "sat")
    for line, words in (
        ("a.onnx,p.vnnlib\n", "line 1"),
        ("a.onnx,p.vnnlib,soon\n", "'soon'"),
        ("a,b,-1\n", "positive"),
    ):
        path.write_text(line)
        with pytest.raises(DamagedData, match=words):
            read_instances(path)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DamagedData, match="first line"):
        read_results(tmp_path / "other.csv")


def test_a_softmax_is_refused(tmp_path: Path) -> None:
    import onnx
    from onnx import helper

    path, vnnlib = planted(tmp_path, 0, safe=True)
    model = onnx.load(str(path))
    last = model.graph.output[0].name
    model.graph.node.append(helper.make_node("Softmax", [last], ["soft"], axis=-1))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("soft", 1, [None, 2]))
    onnx.save(model, str(path))
    with pytest.raises(UnsupportedLayer, match="dropped"):
        load_instance(path, vnnlib)

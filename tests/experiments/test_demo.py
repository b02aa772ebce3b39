"""The demo: seven networks, each judged in both norms, in one table. Training and evaluation are replaced by fixed answers."""

from __future__ import annotations

from types import SimpleNamespace

from relucert.experiments import demo


def test_runs_have_folders_of_their_own(tmp_path):
    configs = demo.runs(tmp_path)
    assert len({config.folder for config in configs}) == len(configs) == 7
    assert {config.epochs for config in configs} == {demo.EPOCHS}


def test_the_table_has_a_row_for_every_run_and_the_report_comes_last(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo.torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(demo, "train", lambda config: config)
    monkeypatch.setattr(
        demo,
        "evaluate",
        lambda config: SimpleNamespace(test_error=0.015, robust_error=(0.25 / config.p, 1.0), points=200, eps=0.1),
    )
    monkeypatch.setattr(
        demo, "verdicts", lambda config: SimpleNamespace(robust_error=(0.0, 0.375 if config.p == 2 else 0.5))
    )
    monkeypatch.setattr(demo, "radii", lambda config: None)
    written = []
    monkeypatch.setattr(demo, "report", written.append)
    monkeypatch.setenv("COLUMNS", "120")
    demo.demo(tmp_path)
    out = capsys.readouterr().out
    rows = [line.replace("\u2502", " ").split() for line in out.splitlines()]
    cells = ["98.5%", "100.0%", "50.0%", "87.5%", "62.5%"]
    assert ["plain", *cells] in rows
    assert [["mmr+at", norm, *cells] in rows for norm in ("l_inf", "l_2")] == [True, True]
    assert len(written[0].sources) == 7
    assert out.splitlines()[-1] == f"next: open {written[0].out.resolve().as_uri()} in a browser"

import contextlib
import dataclasses
import fcntl
import importlib
import io
import json
import os
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest

from relucert.cli._help import flags, subcommands
from relucert.cli.main import VERBS, main, run
from relucert.cli.train import PARAMETERS, current_flags, description
from relucert.data import dataset
from relucert.training.old_config import parameters
from relucert.training.schemes.registry import SCHEMES

SOURCE = Path(__file__).resolve().parents[2] / "src"
TRAIN = ["train", "--data", "digits", "--epochs", "1", "--evaluate-points", "20"]


def relucert(*arguments, **settings):
    environment = os.environ | {"PYTHONPATH": str(SOURCE), **settings}
    command = [sys.executable, "-c", "from relucert.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_help_lists_the_verbs_and_never_imports_torch():
    script = (
        "import sys; from relucert.cli.main import run, VERBS\n"
        "assert run(['--help']) == 0\n"
        "for verb in VERBS:\n"
        "    assert run([verb, '--help']) == run(['help', verb]) == 0\n"
        "heavy = {'torch', 'numpy', 'scipy', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for verb in VERBS:
        assert f"relucert {verb}" in done.stdout


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_fits_a_screen(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run([verb, "--help"] if verb else ["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert not verb or any(line.startswith(f"  relucert {verb}") for line in lines)  # an example


def test_train_and_evaluate_from_the_command_line(tmp_path, capsys):
    folder = str(tmp_path / "run")
    assert run([*TRAIN, "--out", folder]) == 0
    out = capsys.readouterr().out
    assert "test error" in out
    assert f"next: relucert certify {folder}" in out
    assert run(["evaluate", folder, "--points", "30"]) == 0
    assert "robust error" in capsys.readouterr().out
    assert run(["evaluate", folder, "--data", "digits", "--points", "40", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["points"] == 40
    assert 1 >= result["robust_error"][1] >= result["robust_error"][0] >= 0.9 * result["test_error"]
    assert result["regions"]["mean_d_b"] > 0
    lines = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    assert sum('"pgd(' in line for line in lines) == 40, "the thirty points of the first call are not done again"
    assert run([*TRAIN, "--out", folder, "--json"]) == 0
    assert "test_error" in json.loads(capsys.readouterr().out)


def test_own_networks_and_own_data_are_trained_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n"
        "def make(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, classes))\n"
    )
    data = dataset("digits")
    parts = {name: getattr(data, name)[:150].numpy() for name in ("x_train", "y_train", "x_test", "y_test")}
    np.savez(tmp_path / "mine.npz", **parts)
    shared = ["--epochs", "1", "--evaluate-points", "20", "--scheme", "mmr", "--eps", "0.1", "--json"]
    assert run(["train", "--data", "mine.npz", "--model", "my_nets:make", *shared]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["folder"] == "runs/mine-my_nets-make-mmr-inf"
    assert run(["train", "--data", "mine.npz", "--model", first["folder"], *shared, "--out", "next"]) == 0
    assert run(["train", "--data", "mine.npz", "--model", "fc-1x9", "--init", "next", *shared, "--out", "last"]) == 0
    capsys.readouterr()
    assert run(["certify", "last", "--points", "5", "--method", "ibp", "--json"]) == 0
    assert run(["train", "--data", "mine.npz", "--model", "cnn", "--init", "next", *shared, "--out", "none"]) == 2
    assert "init must hold a network of the architecture of model" in capsys.readouterr().err


def test_flags_of_earlier_versions_are_parameters_of_the_scheme(tmp_path, capsys):
    old = ["--scheme", "mmr+at", "--p", "2", "--lam", "0.5", "--gamma=0.3", "--attack-steps", "2", "--train-eps", "0.2"]
    assert run([*TRAIN, *old, "--out", str(tmp_path / "old"), "--json"]) == 0
    new = "mmr+at(lambda=0.5, gamma_B=0.3, gamma_D=0.3, attack_steps=2, eps=0.2)"
    assert run([*TRAIN, "--scheme", new, "--p", "2", "--out", str(tmp_path / "new"), "--json"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["pgd_error"] == second["pgd_error"]
    configs = [(tmp_path / name / "config.json").read_text() for name in ("old", "new")]
    assert configs[0] == configs[1]
    assert current_flags(["--scheme=ibp", "--kappa", "0.5", "--adversarial", "--epochs", "3"]) == [
        "--epochs", "3", "--scheme", "ibp(adversarial=True, attack_steps=None, eps=None, kappa=0.5)",
    ]  # fmt: skip
    assert current_flags(["--epochs", "3", "--scheme", "at"]) == ["--epochs", "3", "--scheme", "at"]
    assert current_flags(["--lam"]) == ["--lam"]


def test_help_of_train_names_every_scheme_and_parameter():
    text = description()
    for name, kind in SCHEMES.items():
        assert f"  {name} " in text
        assert parameters(kind) <= PARAMETERS.keys()
    assert all(f"  {name} " in text for name in PARAMETERS)
    assert max(map(len, text.splitlines())) <= 88
    assert text in help_of("help", "train")


def help_of(*arguments):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert run(list(arguments)) == 0
    return said.getvalue()


@pytest.mark.parametrize("verb", [None, *VERBS])
def test_help_fits_a_screen_and_has_an_example(verb):
    lines = help_of("--help" if verb is None else verb, "--help").splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 88
    assert any(line.startswith(("  relucert ", "example: relucert ")) for line in lines)


@pytest.mark.parametrize("verb", VERBS)
def test_help_explains_every_flag_in_a_sentence(verb):
    kind = importlib.import_module(f"relucert.cli.{verb}").CONFIG
    for part in subcommands(kind).values() or [kind]:
        found = flags(part)
        assert {flag.field for flag in found} == {field.name for field in dataclasses.fields(part)}
        for flag in found:
            assert flag.first[:1].isalnum() or flag.first[0] in '"./', flag
            assert flag.first.count("--no-") == 0, "what a flag switches off is said, not what is on"
    module = importlib.import_module(f"relucert.cli.{verb}")
    assert set(getattr(module, "COMMON", ())) <= {flag.field for flag in (() if subcommands(kind) else flags(kind))}


def test_examples_of_the_help_are_commands_of_these_verbs():
    for verb in VERBS:
        for example in importlib.import_module(f"relucert.cli.{verb}").EXAMPLES:
            program, *words = shlex.split(example)
            assert program == "relucert"
            assert words[0] == verb
            kind = importlib.import_module(f"relucert.cli.{verb}").CONFIG
            if not subcommands(kind):
                known = {word for flag in flags(kind) for word in flag.written.replace(",", " ").split()}
                assert {word for word in words if word.startswith("-")} <= known


def test_certify_from_the_command_line(tmp_path, capsys):
    folder = str(tmp_path / "run")
    assert run([*TRAIN, "--out", folder, "--json"]) == 0
    capsys.readouterr()
    assert run(["certify", folder, "--data", "digits", "--points", "12", "--eps", "0.001", "--method", "kw"]) == 0
    out = capsys.readouterr().out
    assert "robust error " in out
    assert " proofs also cover the network as it runs" in out
    assert len(out.splitlines()) < 16, "points are printed on request"
    assert (
        run(["certify", folder, "--data", "digits", "--points", "20", "--eps", "0.001", "--method", "kw", "--json"])
        == 0
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 21
    assert lines[-1]["summary"]["points"] == 20
    assert lines[-1]["summary"]["robust"] == sum(line["verdict"] == "robust" for line in lines[:-1]) > 10
    for line in lines[:-1]:
        assert (line["arithmetic"] is not None) == (line["verdict"] == "robust")
        if line["verdict"] == "robust":
            assert line["margin"] > line["executed"] > line["rounding"] > 0
    few = ["certify", folder, "--data", "digits", "--points", "5", "--method", "kw", "--show", "5"]
    assert run([*few, "--eps", "0.001", "--arithmetic", "executed"]) == 0
    out = capsys.readouterr().out
    assert "kw, as executed" in out
    assert "│ executed" in out
    assert run([*few, "--eps", "0.5"]) == 0
    assert "no: bound" in capsys.readouterr().out
    assert run([*few, "--eps", "0.4", "--timeout", "1e-9"]) == 0
    assert "no: time" in capsys.readouterr().out
    assert run(["radius", folder, "--data", "digits", "--points", "3", "--method", "ibp", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["lower"] > 0


MISTAKES = [
    ([], "usage: relucert VERB"),
    (["fly"], "there is no verb 'fly'"),
    (["train", "--epochs", "0"], "epochs must be at least 1, got 0"),
    (["train", "--eps", "-1"], "eps must be a positive number, got -1.0"),
    (["train", "--epochs", "many"], "--epochs must be a whole number, got 'many'. See relucert train --help"),
    (["train", "--epoch", "3"], "there is no flag --epoch; did you mean --epochs? See relucert train --help"),
    (["train", "--epochs"], "--epochs must have a value"),
    (["certify"], "MODEL must be given"),
    (["certify", "m", "--timeout", "x"], "--timeout must be a number, got 'x'"),
    (["certify", "m", "--arithmetic", "exact"], "--arithmetic must be one of real, executed, got 'exact'"),
    (["data", "lst"], "the command of data must be one of list, fetch, info, got 'lst'"),
    (["show", "{folder}/none.jsonl"], "sources must be run folders with records.jsonl or files of records"),
    (["show", "x.jsonl", "--verdict", "safe"], "verdict must be one of robust, vulnerable, unknown, misclassified"),
    (["merge", "{folder}/none.jsonl"], "sources must be run folders with records.jsonl or files of records"),
    (["compare", "{folder}/none.jsonl", "x"], "sources must be run folders with records.jsonl or files of records"),
    (["train", "--scheme", "mmr(gamma=0.1)"], "mmr has no parameter 'gamma'; it has gamma_b, gamma_d, k_b"),
    (["train", "--scheme", "magic"], "scheme must be one of plain, at, mmr, mmr-dd, mmr+at"),
    (["train", "--lam", "2"], "--lam must be left out for scheme plain, got 2"),
    (["train", "--scheme", "at", "--attack-steps", "some"], "--attack-steps must be a number, got 'some'"),
    (["train", "--data", "mnist", "--out", "{folder}/run"], "mnist"),
    (["train", "--data", "digits", "--out", "{folder}/broken.safetensors/run"], "cannot be made"),
    (["evaluate", "{folder}/broken.safetensors", "--data", "digits"], "is not a safetensors file, or it is damaged"),
    (["evaluate", "{folder}/nothing", "--data", "digits"], "does not exist"),
    (["evaluate", "{folder}", "--data", "digits"], "folder without model.safetensors"),
    (["evaluate", "{folder}", "--data", "digits", "--attack", "magic"], "method must be one of apgd, pgd"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_get_one_line_and_exit_code_2_and_leave_nothing_behind(
    tmp_path, capsys, monkeypatch, arguments, message
):
    (tmp_path / "broken.safetensors").write_bytes(b"hello")
    monkeypatch.setenv("RELUCERT_DATA", str(tmp_path / "data"))
    for proxy in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    with pytest.raises(SystemExit) as done:
        main([part.format(folder=tmp_path) for part in arguments])
    assert done.value.code == 2
    said = "".join(capsys.readouterr())
    assert message in " ".join(said.split())
    assert "Traceback" not in said
    assert sorted(file.name for file in tmp_path.rglob("*") if file.is_file()) == ["broken.safetensors"]


def test_a_mistake_is_plain_text_on_a_terminal_and_broken_between_words():
    """In a pseudo-terminal of 40 columns, where the parser draws colours."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    command = [sys.executable, "-c", "from relucert.cli import main; main()", "certify", "net.onnx"]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment | {"PYTHONPATH": str(SOURCE), "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while part := os.read(ours, 4096):
                said += part
    os.close(ours)
    lines = said.decode().replace("\r", "").splitlines()
    assert process.returncode == 2
    assert " ".join(lines) == (
        "relucert: error: data must be given for net.onnx, which is no run's folder. See relucert certify --help"
    )
    assert max(map(len, lines)) <= 40


def test_a_mistake_ends_the_process_with_exit_code_2():
    done = relucert("fly")
    assert done.returncode == 2
    assert "there is no verb 'fly'" in done.stderr


def test_networks_and_data_that_do_not_fit_are_named(tmp_path, capsys):
    from relucert.networks.architectures import build
    from relucert.networks.checkpoints import save

    save(build("fc1", (1, 4, 4), 10), tmp_path / "net.safetensors")
    assert run(["evaluate", str(tmp_path / "net.safetensors"), "--data", "digits"]) == 2
    assert "model takes inputs (1, 4, 4)" in capsys.readouterr().err


def test_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("relucert 0.")


@pytest.mark.parametrize("verb", VERBS)
def test_unknown_flags_end_with_2(verb):
    assert run([verb, "--no-such-flag"]) == 2


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]])
def test_whoever_stops_reading_leaves_no_traceback(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from relucert.cli import main; main()", *arguments]
    done = subprocess.run(
        command,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")

"""`rc.train` on modules and data of the user: every form of data, resumed bit for bit, observed, and clear where it refuses."""

from __future__ import annotations

import json
import os
import random
import signal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import relucert as rc
from relucert.core.errors import InvalidInput, RunError
from relucert.networks.checkpoints import digest
from relucert.training._saving import STATE_FILE
from relucert.training.config import TrainConfig

MARGIN = "lam=0.5, gamma_b=0.3, gamma_d=0.3"
SCHEMES = {
    "plain": 2, "at": 2, f"mmr({MARGIN})": 2, f"mmr+at({MARGIN}, attack_steps=2)": "inf", "mmr-dd(lam=1, gamma_d=0.3)": 1,
    "mmr-universal(lam_1=1, lam_inf=1, gamma_1=1, gamma_inf=0.2)": 2, "cross-lipschitz": 2, "kw": 2, "ibp": "inf",
    "crown-ibp": "inf", "rs(attack_steps=2)": "inf", "spectral": 2,
}  # fmt: skip


def module(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(36, 10)
    )


def arrays(count=200):
    data = rc.dataset("digits")
    return data.x_train[:count], data.y_train[:count]


class Noisy(Dataset):
    """Examples with noise from all three global generators, drawn at every access."""

    def __init__(self):
        self.x, self.y = arrays()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        noise = torch.rand(()) + np.random.rand() + random.random()  # noqa: NPY002
        return self.x[index] * (0.9 + 0.03 * float(noise)), int(self.y[index])


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(*arrays(), strict=True)


FORMS = {
    "tensors": lambda: arrays(),
    "numpy": lambda: tuple(part.numpy() for part in arrays()),
    "doubles": lambda: (arrays()[0].double().numpy(), arrays()[1].int().numpy()),
    "tensor dataset": lambda: TensorDataset(*arrays()),
    "dataset": Noisy,
    "loader": lambda: DataLoader(Noisy(), batch_size=64, shuffle=True),
    "loader with a generator": lambda: DataLoader(
        Noisy(), 64, shuffle=True, generator=torch.Generator().manual_seed(9)
    ),
    "loader that drops": lambda: DataLoader(Noisy(), batch_size=64, shuffle=True, drop_last=True),
}


def measured(run):
    return [
        {name: value for name, value in line.items() if name not in ("seconds", "versions")} for line in run.metrics
    ]


def interrupting(step):
    def callback(line):
        if line["step"] == step:
            os.kill(os.getpid(), signal.SIGINT)

    return callback


def trained(net, data, **settings):
    return rc.train(net, data, **{"epochs": 2, "batch": 64, "eps": 0.2, "evaluate_points": 20} | settings)


@pytest.mark.share(2)
@pytest.mark.parametrize("form", FORMS)
def test_a_stopped_run_ends_with_the_same_weights_on_every_form_of_data(form, tmp_path):
    settings = {"scheme": "at(attack_steps=2)", "p": 2, "validation": arrays(50)}
    whole = trained(module(), FORMS[form](), **settings, out=tmp_path / "whole")
    total = whole.metrics[-1]["step"]
    assert total == (6 if form == "loader that drops" else 8)
    for step in (2, total // 2, total // 2 + 1):
        with pytest.raises(KeyboardInterrupt, match=f"stopped after step {step} of {total}; the same command goes on"):
            # The weights that a run goes on with are those of its folder, whatever the module has.
            trained(
                module(step if step > 2 else 0), FORMS[form](), **settings, out=tmp_path / "run",
                step_callback=interrupting(step),
            )  # fmt: skip
        torch.manual_seed(step)
        random.seed(step)
    last = module(5)
    resumed = trained(last, FORMS[form](), **settings, out=tmp_path / "run")
    assert digest(resumed.net) == digest(whole.net)
    assert measured(resumed) == measured(whole)
    assert resumed.net.module is last
    assert not (tmp_path / "run" / STATE_FILE).exists()
    memory = trained(module(), FORMS[form](), **settings)
    assert digest(memory.net) == digest(whole.net)
    assert measured(memory) == measured(whole)
    assert memory.folder is None


@pytest.mark.share(4)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_trains_an_own_module_on_own_arrays(scheme, tmp_path):
    p = float(SCHEMES[scheme])
    whole = trained(module(), arrays(), scheme=scheme, p=p, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(module(), arrays(), scheme=scheme, p=p, out=tmp_path / "run", step_callback=interrupting(5))
    assert digest(trained(module(), arrays(), scheme=scheme, p=p, out=tmp_path / "run").net) == digest(whole.net)
    assert digest(whole.net) != digest(rc.Network(module(), (1, 8, 8)))


def test_training_learns_and_the_module_is_the_one_that_was_given():
    net, data = module(), rc.dataset("digits")
    run = rc.train(net, data, scheme="plain", epochs=8, batch=50, rate=0.01)
    assert run.last["test_error"] < 0.1
    assert not net.training
    with torch.no_grad():
        assert float((net(data.x_test).argmax(1) != data.y_test).float().mean()) == pytest.approx(
            run.last["test_error"]
        )


def test_numbers_of_all_forms_are_the_same():
    found = {form: digest(trained(module(), FORMS[form](), scheme="plain").net) for form in FORMS}
    assert len({found[form] for form in ("tensors", "numpy", "doubles", "tensor dataset")}) == 1
    assert found["loader"] != found["loader that drops"] != found["tensors"]


def test_a_finished_run_is_loaded_into_the_module_and_not_done_again(tmp_path):
    first = trained(module(), arrays(), out=tmp_path)
    lines, second = [], module(3)
    again = trained(second, arrays(), out=tmp_path, callback=lines.append)
    assert lines == []
    assert again.metrics == first.metrics
    pairs = zip(second.state_dict().values(), first.net.module.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    third = module(4)
    third.load_state_dict(load_file(tmp_path / "module.safetensors"))
    x = arrays(20)[0]
    torch.testing.assert_close(third.eval()(x), first.net(x))
    torch.testing.assert_close(rc.load(tmp_path)(x), first.net(x))


@pytest.mark.parametrize(
    ("data", "net", "said"),
    [
        (lambda: arrays(190), module, "another data"),
        (lambda: (arrays()[0], arrays()[1].flip(0)), module, "another data"),
        (arrays, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "another network"),
    ],
)
def test_a_folder_of_another_run_is_left_alone(tmp_path, data, net, said):
    trained(module(), arrays(), out=tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(RunError, match=rf"holds another run \({said}\)"):
        trained(net(), data(), out=tmp_path)
    assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_callbacks_see_every_epoch_every_evaluation_and_every_step(tmp_path):
    lines, steps = [], []
    run = trained(
        module(), arrays(), validation=arrays(50), scheme=f"mmr({MARGIN})", p=2, callback=lines.append,
        step_callback=steps.append,
    )  # fmt: skip
    assert [line["kind"] for line in lines] == ["epoch", "evaluation"] * 2
    assert lines == run.metrics[1:]
    assert [line["step"] for line in steps] == list(range(1, 9))
    assert [line["epoch"] for line in steps] == [1] * 4 + [2] * 4
    assert {"loss", "cross-entropy", "region", "decision", "rate"} <= steps[0].keys()
    sizes = np.array([64, 64, 64, 8]) / 200
    assert lines[0]["loss"] == pytest.approx(float(sizes @ [line["loss"] for line in steps[:4]]))


def test_an_error_in_a_callback_leaves_a_state_to_go_on_from(tmp_path):
    whole = trained(module(), arrays())

    def failing(line):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trained(module(), arrays(), out=tmp_path, callback=failing)
    lines = []
    assert digest(trained(module(7), arrays(), out=tmp_path, callback=lines.append).net) == digest(whole.net)
    assert [line["epoch"] for line in lines] == [2]


def test_the_box_is_that_of_the_data():
    x, y = torch.randn(64, 4), torch.arange(64) % 3
    table = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    assert rc.train(table, (x, y), scheme="at", p=2, eps=0.1, epochs=1).net.box is None
    assert trained(module(), arrays()).net.box == (0, 1)
    kept = rc.Network(module(), (1, 8, 8), mean=0.5, std=0.3)
    kept.box = None
    assert trained(kept, arrays()).net is kept
    assert kept.box is None


def test_frozen_and_tied_weights_stay_as_they_are(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
            self.second.weight = self.first.weight
            self.last.weight.requires_grad_(False)

        def forward(self, x):
            return self.last(F.relu(self.second(F.relu(self.first(x.flatten(1))))))

    net = Tied()
    frozen = net.last.weight.clone()
    trained(net, arrays(), out=tmp_path)
    assert torch.equal(net.last.weight, frozen)
    assert net.first.weight is net.second.weight
    other = Tied()
    trained(other, arrays(), out=tmp_path)
    assert torch.equal(other.second.weight, net.first.weight)


def test_first_weights_come_from_a_checkpoint(tmp_path):
    source = rc.Network(module(1), (1, 8, 8))
    rc.save(source, tmp_path / "first.safetensors")
    one, other = (trained(module(seed), arrays(), init=tmp_path / "first.safetensors", rate=1e-9) for seed in (2, 3))
    assert digest(one.net) == digest(other.net)
    weights = zip(one.net.module.parameters(), source.module.parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in weights)
    with pytest.raises(InvalidInput, match="init must hold a network of the architecture of model, got another one"):
        trained(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), arrays(), init=tmp_path / "first.safetensors")


def test_a_configuration_is_trained_as_before(tmp_path):
    config = TrainConfig(data="digits", epochs=1, evaluate_points=10, out=tmp_path / "run")
    lines = []
    run = rc.train(config, callback=lines.append)
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == config.to_json()
    assert [line["kind"] for line in lines] == ["epoch", "evaluation"]
    assert digest(rc.train(config).net) == digest(run.net)
    with pytest.raises(InvalidInput, match="must be left out where model is a TrainConfig"):
        rc.train(config, arrays())


@pytest.mark.parametrize(
    ("net", "data", "settings", "message"),
    [
        ("text", arrays, {}, "model must be an nn.Module, a Network or a TrainConfig, got str"),
        (module, lambda: [1, 2], {}, "data must be arrays .*, got a list of int, int"),
        (module, lambda: None, {}, "data must be arrays .*, got NoneType"),
        (module, lambda: Stream(), {}, "data must be arrays .*, got Stream"),
        (module, lambda: DataLoader(Stream(), 10), {}, "data must be a loader with a length"),
        (module, lambda: (arrays()[0].byte(), arrays()[1]), {}, r"x of data must hold floating-point .* x.float\(\) / 255"),
        (module, lambda: (arrays()[0], arrays()[1].float()), {}, r"y of data must hold whole numbers, .* y.long\(\)"),
        (module, lambda: (arrays()[0], arrays()[1][:5]), {}, r"data must have the shapes .*, got \(200, 1, 8, 8\) and \(5,\)"),
        (module, lambda: (arrays()[0][:0], arrays()[1][:0]), {}, "data must hold at least one example"),
        (module, lambda: (arrays()[0] * torch.nan, arrays()[1]), {}, "x of data must be finite, .* example 0"),
        (module, lambda: (arrays()[0], arrays()[1] + 5), {}, r"y must lie in 0\.\.9"),
        (module, arrays, {"scheme": "magic"}, "scheme must be one of plain"),
        (module, arrays, {"scheme": "at", "eps": None}, "eps must be given for p=inf"),
        (module, arrays, {"scheme": "mmr", "eps": None}, "lam must be given"),
        (module, arrays, {"learning_rate": 1.0}, "settings must be among .*, got learning_rate"),
        (module, arrays, {"data": "mnist"}, "multiple values for argument 'data'"),
        (module, arrays, {"validation": "x"}, "validation must be arrays"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_one_clear_line(net, data, settings, message):
    with pytest.raises((InvalidInput, TypeError), match=message):
        trained(net() if callable(net) else net, data(), **settings)


def test_a_loader_that_yields_less_than_its_length_is_an_error():
    class Short(DataLoader):
        def __len__(self):
            return 9

    with pytest.raises(RunError, match="data must yield 9 batches, as its length says, got 4"):
        trained(module(), Short(TensorDataset(*arrays()), 64))

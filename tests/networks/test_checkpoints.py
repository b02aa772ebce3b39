import json
import struct

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from relucert.core.errors import CheckpointError, FileAccessError
from relucert.interop.loading import load
from relucert.networks.architectures import mlp
from relucert.networks.checkpoints import _digest, digest, read, read_tensors, save
from relucert.networks.layers.linear import Linear
from relucert.networks.network import Network
from zoo import NETWORKS, inputs, network


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_network_comes_back_bit_for_bit(name, dtype, tmp_path):
    net = network(name, dtype)
    save(net, tmp_path / "net.safetensors", about={"epochs": 3})
    again, about = read(tmp_path / "net.safetensors")
    x = inputs(net)
    if name == "sequence":  # its values that are cut off come back as ReLUs, which round
        torch.testing.assert_close(again(x), net(x), rtol=8 * torch.finfo(dtype).eps, atol=64 * torch.finfo(dtype).eps)
    else:
        assert torch.equal(again(x), net(x))
    assert again.dtype == dtype
    assert not again.training
    assert about == {"epochs": 3}
    assert digest(again) == digest(net)
    assert [node.kind for node in again.graph] == [node.kind for node in net.graph]
    trainable = {"Parameter"} if list(net.parameters()) else set()
    assert {type(p).__name__ for p in again.parameters()} == trainable


def test_digest_tells_weights_apart_and_nothing_else():
    first, second = Network(mlp((4,), 3, [5]), (4,)), Network(mlp((4,), 3, [5]), (4,))
    assert digest(first) != digest(second)
    second.module.load_state_dict(first.module.state_dict())
    assert digest(first) == digest(second)
    functional = Network(nn.Sequential(nn.Identity(), *first.module, nn.Dropout()), (4,))
    assert digest(functional) == digest(first)
    assert digest(Network(first.module, (4,), mean=0.1)) != digest(first)


def test_tied_weights_stay_tied(tmp_path):
    shared = nn.Linear(4, 4)
    net = Network(nn.Sequential(shared, nn.ReLU(), shared), (4,)).eval()
    save(net, tmp_path / "net.safetensors")
    again = load(tmp_path / "net.safetensors")
    weights = [node.op.weight.value for node in again.graph if isinstance(node.op, Linear)]
    assert weights[0] is weights[1]
    assert torch.equal(again(inputs(net)), net(inputs(net)))


def test_batch_norm_can_be_trained_on(tmp_path):
    net = network("residual", torch.float32)
    save(net, tmp_path / "net.safetensors")
    again = load(tmp_path / "net.safetensors")
    norm = next(part for part in again.modules() if isinstance(part, nn.BatchNorm2d))
    before = norm.running_mean.clone()
    again.train()(inputs(net))
    assert not torch.equal(before, norm.running_mean)


def test_every_truncation_and_every_flipped_byte_is_noticed(tmp_path):
    net = network("fc")
    path = tmp_path / "net.safetensors"
    save(net, path)
    whole = path.read_bytes()
    expected = net(inputs(net))
    falsified = tmp_path / "broken.safetensors"
    for cut in [*range(0, len(whole), 37), len(whole) - 1]:
        falsified.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError, match=r"broken\.safetensors"):
            load(falsified)
    unharmed = 0
    for place in range(0, len(whole), 11):
        falsified.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            again = load(falsified)
        except CheckpointError:
            continue
        unharmed += 1  # the byte is not part of the network: the metadata's "about" or padding
        assert torch.equal(again(inputs(net)), expected)
    assert unharmed < 5


def test_foreign_files_get_a_clear_error(tmp_path):
    save_file({"weight": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(CheckpointError, match=r"no description of a network .* wrap it in relucert.Network"):
        load(tmp_path / "foreign.safetensors")
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(CheckpointError, match="not a safetensors file, or it is damaged"):
        load(tmp_path / "text.safetensors")
    (tmp_path / "net.pt").write_text("hello")
    with pytest.raises(CheckpointError, match=r"net\.pt is a pickle: .*torch\.load\('net\.pt', weights_only=True\)"):
        load(tmp_path / "net.pt")
    (tmp_path / "net.h5").write_text("hello")
    with pytest.raises(
        CheckpointError, match=r"must be a run's folder, a \.safetensors checkpoint, an \.onnx, \.onnx\.gz"
    ):
        load(tmp_path / "net.h5")
    with pytest.raises(FileAccessError, match="does not exist"):
        load(tmp_path / "missing.safetensors")
    with pytest.raises(FileAccessError, match=r"folder without model\.safetensors"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match=r"must end in \.safetensors"):
        save(network("fc"), tmp_path / "net.pt")
    with pytest.raises(FileAccessError, match="nowhere"):
        save(network("fc"), tmp_path / "nowhere" / "net.safetensors")


def _with_metadata(path, change):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    change(header["__metadata__"])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])


def test_descriptions_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "net.safetensors"
    for change, message in [
        (lambda m: m.update(version="9"), "has version 9 of the format"),
        (lambda m: m.update(network="{"), "its description cannot be read"),
        (lambda m: m.update(network=m["network"].replace("relu", "sigmoid")), "do not match the digest"),
        (lambda m: m.pop("digest"), "its description cannot be read"),
    ]:
        save(network("fc"), path)
        _with_metadata(path, change)
        with pytest.raises(CheckpointError, match=message):
            load(path)


def test_a_folder_that_holds_a_model_is_loaded(tmp_path):
    net = network("fc")
    save(net, tmp_path / "model.safetensors")
    assert digest(load(tmp_path)) == digest(net)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


# Descriptions that lie, with digests that fit.


def forged(path, change, name="cnn"):
    """A checkpoint whose description was changed, sealed with a digest that fits."""
    save(network(name), path)
    tensors = read_tensors(path)[1]

    def reseal(metadata):
        description = json.loads(metadata["network"])
        change(description)
        metadata.update(network=json.dumps(description), digest=_digest(description, tensors))

    _with_metadata(path, reseal)


def node(description, kind):
    return next(entry for entry in description["nodes"] if entry["kind"] == kind)


FORGED = {
    "input": (
        lambda d: (d.update(input_shape=[2**40]), d["nodes"][0].update(shape=[2**40])),
        "at most 134217728 numbers",
    ),
    "padding": (lambda d: node(d, "conv2d")["settings"].update(padding=[10**6, 10**6]), "node 1 must have shape"),
    "huge padding": (lambda d: node(d, "conv2d")["settings"].update(padding=[10**12, 0]), "settings below 2147483648"),
    "stride": (lambda d: node(d, "conv2d")["settings"].update(stride=[0, 0]), "does not fit its tensors"),
    "groups": (lambda d: node(d, "conv2d")["settings"].update(groups=-1), "does not fit its tensors"),
    "negative": (lambda d: node(d, "linear").update(inputs=[-1]), "must read earlier nodes"),
    "later": (lambda d: node(d, "relu").update(inputs=[9]), "must read earlier nodes"),
    "nothing": (lambda d: node(d, "relu").update(inputs=[]), "must read a node"),
    "tensor": (lambda d: node(d, "linear")["tensors"].update(weight="missing"), "must use tensors of the file"),
    "no tensor": (lambda d: node(d, "linear")["tensors"].clear(), "does not fit its tensors"),
    "shape": (lambda d: node(d, "linear").update(shape=[-1]), "whole numbers, at least 0"),
    "other shape": (lambda d: node(d, "linear").update(shape=[7]), "must have shape|does not fit its tensors"),
    "kind": (lambda d: node(d, "relu").update(kind="exec"), "unknown kind of layer"),
    "no kind": (lambda d: node(d, "relu").update(kind=None), "an object with a kind"),
    "settings": (lambda d: node(d, "relu").update(settings=None), "must have settings"),
    "slope": (lambda d: node(d, "relu")["settings"].update(slope=1e300), "settings below"),
    "empty": (lambda d: d.update(nodes=[]), "nodes must be a list of 2 to 10000"),
    "many": (lambda d: d.update(nodes=d["nodes"][:1] + d["nodes"][1:2] * 10_000), "nodes must be a list of 2 to 10000"),
    "trainable": (lambda d: d.update(trainable=3), "trainable must be texts"),
}


@pytest.mark.parametrize("lie", FORGED)
def test_descriptions_that_lie_are_refused_before_a_network_is_built(lie, tmp_path):
    change, message = FORGED[lie]
    path = tmp_path / "net.safetensors"
    forged(path, change)
    with pytest.raises(CheckpointError, match=rf"net\.safetensors: the description .*(?:{message})") as caught:
        load(path)
    assert caught.value.path == str(path)
    assert caught.value.entry == "description"
    assert "train and save the network again" in str(caught.value)


def test_a_pool_that_would_never_end_is_refused(tmp_path):
    """Every value has a bounded size, and the windows of a pool do not: the work is bounded, too."""
    path = tmp_path / "net.safetensors"

    def change(description):
        pool = node(description, "max_pool2d")
        pool["settings"].update(kernel=[2**15, 2**15])
        pool["shape"] = [3, 2**10, 2**10]

    forged(path, change, "max pool")
    with pytest.raises(CheckpointError, match="at most 137438953472 products together"):
        load(path)


def test_nested_and_long_headers_are_refused(tmp_path):
    path = tmp_path / "net.safetensors"
    for text, message in (("[" * 10**5, "nested at most 16 deep"), ("x" * 2**24 + " ", "at most 16777216 characters")):
        save(network("fc"), path)
        _with_metadata(path, lambda m, text=text: m.update(network=text))
        with pytest.raises(CheckpointError, match=message):
            load(path)
    for length in (2**26, 2**63):
        path.write_bytes(struct.pack("<Q", length) + b"{}")
        with pytest.raises(CheckpointError, match="its header must have at most 33554432 bytes"):
            load(path)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        load(path)

"""Weight files: however they are wrapped, without running code, and every weight in its place."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from reverie.data.preprocessing import Preprocessing
from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.model.folder import save_model
from reverie.nets import make_backbone
from reverie.nets.backbone import Architecture
from reverie.nets.external import build_network
from reverie.nets.weights import load_backbone, load_weights, read_weights


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))


WRAPPED = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}},
    "model": lambda state: {"model": state},
    "parallel": lambda state: {"state_dict": {f"module.{name}": value for name, value in state.items()}},
    "lightning": lambda state: {"state_dict": {f"model.{name}": value for name, value in state.items()}},
    "compiled": lambda state: {f"_orig_mod.module.{name}": value for name, value in state.items()},
    "older than the count of batches": lambda state: {n: v for n, v in state.items() if "num_batches" not in n},
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_weights_are_found_in_whatever_they_are_wrapped(tmp_path, wrap):
    theirs, ours = net(), net()
    torch.save(wrap(theirs.state_dict()), tmp_path / "w.pth")
    load_weights(ours, read_weights(tmp_path / "w.pth"), tmp_path / "w.pth")
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)


def test_safetensors_will_do(tmp_path):
    theirs = net()
    save_file(theirs.state_dict(), tmp_path / "w.safetensors")
    assert torch.equal(read_weights(tmp_path / "w.safetensors")["0.weight"], theirs[0].weight)


class Trap:
    sprung = False

    def __reduce__(self):
        return (setattr, (Trap, "sprung", True))


def test_a_file_that_would_run_code_is_refused_and_runs_none(tmp_path):
    with (tmp_path / "plain.pth").open("wb") as stream:
        pickle.dump({"w": Trap()}, stream, protocol=2)
    torch.save({"w": Trap()}, tmp_path / "zip.pth")
    torch.save(net(), tmp_path / "module.pth")
    for name in ("plain.pth", "zip.pth", "module.pth"):
        with pytest.raises(UserError, match="would run code"):
            read_weights(tmp_path / name)
    assert not Trap.sprung


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("content", [b"", b"not weights", None])
def test_a_file_without_weights_a_damaged_one_and_none_at_all_are_errors(tmp_path, suffix, content):
    file = tmp_path / f"w.{suffix}"
    if content is None:
        (save_file if suffix == "safetensors" else torch.save)(net().state_dict(), file)
        content = file.read_bytes()[:-100]
    file.write_bytes(content)
    with pytest.raises(UserError, match="no file of weights"):
        read_weights(file)
    with pytest.raises(UserError, match="cannot be read"):
        read_weights(tmp_path / f"missing.{suffix}")


@pytest.mark.parametrize("content", [[1, 2], {}, {"epoch": 3}, {"state_dict": {"a": 1}}])
def test_a_file_that_holds_no_state_dict_is_an_error(tmp_path, content):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(UserError, match="holds no state dict"):
        read_weights(tmp_path / "w.pth")


def test_a_torchscript_program_is_named_as_one_without_a_warning(tmp_path, recwarn):
    torch.jit.trace(net().eval(), torch.randn(1, 1, 8, 8)).save(tmp_path / "w.pt")
    recwarn.clear()
    with pytest.raises(UserError, match=r"is a TorchScript program\. Save its weights alone"):
        read_weights(tmp_path / "w.pt")
    assert not recwarn


def test_weights_of_another_network_are_refused_by_name_and_shape(tmp_path):
    file, module = tmp_path / "w.pth", net()
    state = module.state_dict()
    with pytest.raises(UserError, match=r"the file has no 0\.weight and 1 more"):
        load_weights(module, {name: value for name, value in state.items() if not name.startswith("0")}, file)
    with pytest.raises(UserError, match=r"the file has 7.weight besides"):
        load_weights(module, {**state, "7.weight": torch.zeros(1)}, file)
    with pytest.raises(
        UserError, match=r"the file has no 0\.weight and 5 more, but has net\.0\.weight and 7 more besides"
    ):
        load_weights(module, {**{f"net.{name}": value for name, value in state.items()}, "loss": torch.ones(3)}, file)
    with pytest.raises(UserError, match=r"0.weight is \[2, 3, 3, 3\] there, and \[2, 1, 3, 3\] in this"):
        load_weights(module, {**state, "0.weight": torch.zeros(2, 3, 3, 3)}, file)


def test_a_backbone_takes_the_weights_of_a_whole_network_whatever_classes_it_knew(tmp_path):
    theirs = build_network(Architecture.parse("timm/test_resnet"), 3, 7)
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    ours = make_backbone("timm/test_resnet", 3)
    load_backbone(ours, tmp_path / "w.pth")
    for name, value in ours.body.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name])
    with pytest.raises(UserError, match="not for resnet8"):
        load_backbone(make_backbone("resnet8", 3), tmp_path / "w.pth")


def test_networks_that_ask_for_the_version_of_their_weights_take_them(tmp_path):
    from torchvision.models import mnasnet0_5

    theirs = mnasnet0_5(num_classes=3)
    save_file({name: value.contiguous() for name, value in theirs.state_dict().items()}, tmp_path / "w.safetensors")
    ours = mnasnet0_5(num_classes=3)
    load_weights(ours, read_weights(tmp_path / "w.safetensors"), tmp_path / "w.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


# --- what an experiment begins with


def begun(tiny, file: Path, net: str = "resnet8", size: int = 8) -> TaskLearner:
    config = tiny("base", f"net.name={net}", f"net.weights={file}")
    return TaskLearner.fresh(config, Preprocessing(size, (0.4,), (0.3,)))


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize(("net", "head"), [("resnet8", ""), ("resnet18-cifar", "fc"), ("torchvision/resnet18", "fc")])
def test_an_experiment_begins_with_the_weights_of_its_network(tiny, tmp_path, net, head, suffix):
    """With the head that made other logits, or, for reverie's own networks, with none."""
    torch.manual_seed(5)
    there = make_backbone(net, 1)
    state = dict((there.body if head else there).state_dict())
    if head:
        state |= {f"{head}.weight": torch.zeros(7, there.feature_dim), f"{head}.bias": torch.zeros(7)}
    file = tmp_path / f"weights.{suffix}"
    if suffix == "pt":
        torch.save(state, file)
    else:
        save_file(state, file)
    backbone = begun(tiny, file, net).classifier.backbone
    for name, value in there.state_dict().items():
        assert torch.equal(value, backbone.state_dict()[name]), name


def test_an_experiment_begins_with_the_backbone_of_a_model_folder(tiny, tmp_path):
    made = TaskLearner.fresh(tiny("base", "net.name=resnet8", seed=3), Preprocessing(8, (0.4,), (0.3,)))
    made.classifier.grow(["a", "b"])
    save_model(made, tmp_path / "model")
    backbone = begun(tiny, tmp_path / "model" / "model.safetensors").classifier.backbone
    for name, value in made.classifier.backbone.state_dict().items():
        assert torch.equal(value, backbone.state_dict()[name]), name


def test_weights_of_another_network_or_that_were_changed_are_refused(tiny, tmp_path):
    torch.save(make_backbone("resnet14", 1).state_dict(), tmp_path / "other.pt")
    with pytest.raises(UserError, match=r"other\.pt are not of this network \(CifarResNet\)"):
        begun(tiny, tmp_path / "other.pt")
    config = tiny("base", "net.name=resnet14", f"net.weights={tmp_path / 'other.pt'}")
    TaskLearner.fresh(config, Preprocessing(8, (0.4,), (0.3,)))
    torch.save({}, tmp_path / "other.pt")
    with pytest.raises(UserError, match=r"other\.pt is not what it was when this run was configured"):
        TaskLearner.fresh(config, Preprocessing(8, (0.4,), (0.3,)))

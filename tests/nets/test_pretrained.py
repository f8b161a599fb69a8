"""Published weights: from the usual caches or a real server on this machine, never half a file and never another's."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reverie.errors import UserError
from reverie.model.folder import load_model
from reverie.model.job import learn_folder
from reverie.nets import pretrained
from reverie.nets.backbone import Architecture
from reverie.nets.pretrained import pretrained_file
from tests.support.images import write_jpeg
from tests.support.serving import Quiet, served

PRETRAINED = ("--pretrained", "--backbone", "timm/test_resnet", "--device", "cpu")
RESNET = Architecture.parse("torchvision/resnet18")


class Published:
    """Torchvision's entry of a network, at another address."""

    def __init__(self, url):
        self.url = url


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Weights of a small file on a server, as torchvision publishes them; and an empty cache."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    content = os.urandom(3000)
    name = f"resnet18-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    with served(tmp_path / "web") as address:
        (tmp_path / "web" / name).write_bytes(content)
        monkeypatch.setattr(pretrained, "torchvision_weights", lambda wanted: Published(f"{address}/{name}"))
        yield tmp_path / "web" / name


def test_weights_are_fetched_once_into_torchs_own_cache(published, tmp_path):
    calls = []
    file = pretrained_file(RESNET, lambda done, total: calls.append((done, total)))
    assert file == tmp_path / "hub" / "checkpoints" / published.name
    assert file.read_bytes() == published.read_bytes()
    assert calls[-1] == (3000, 3000)
    published.unlink()
    assert pretrained_file(RESNET) == file
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


def test_a_damaged_file_of_the_cache_is_fetched_again(published, tmp_path):
    file = pretrained_file(RESNET)
    file.write_bytes(b"half")
    assert pretrained_file(RESNET).read_bytes() == published.read_bytes()


def test_another_file_than_the_published_one_is_refused_and_not_kept(published, tmp_path):
    published.write_bytes(b"something else")
    with pytest.raises(UserError, match=r"resnet18 could not be downloaded: .*differs from the published one\. Fetch"):
        pretrained_file(RESNET)
    assert not [*(tmp_path / "hub" / "checkpoints").iterdir()]


def test_where_there_is_no_file_the_address_is_named(published, tmp_path):
    published.unlink()
    with pytest.raises(UserError, match=f"{published.name}: File not found.*give it as `weights`"):
        pretrained_file(RESNET)


def test_timm_publishes_nothing_for_some_networks():
    with pytest.raises(UserError, match="timm publishes no weights for beit3_giant_patch14_224"):
        pretrained_file(Architecture.parse("timm/beit3_giant_patch14_224"))


# --- a network of timm, from a server that answers as the Hugging Face hub does


class Hub(Quiet):
    """Each file is at NAME/resolve/REVISION/FILE, with its commit and its checksum in the headers."""

    def translate_path(self, path):
        return str(Path(self.directory) / Path(path).name)

    def end_headers(self):
        file = Path(self.translate_path(self.path))
        if file.is_file():
            self.send_header("ETag", f'"{hashlib.sha256(file.read_bytes()).hexdigest()}"')
            self.send_header("X-Repo-Commit", "0" * 40)
        super().end_headers()


@pytest.fixture
def photos(tmp_path):
    for label, name in enumerate(["cat", "dog"]):
        for number in range(8):
            write_jpeg(tmp_path / "photos" / name / f"{number}.jpg", label, number, 90, 80)
    return tmp_path / "photos"


def learn_in_a_process(photos, to, address, home):
    """What a person types, with a hub of our own."""
    return subprocess.run(
        [sys.executable, "-m", "reverie", "learn", photos, "--to", to, *PRETRAINED],
        env=os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"},
        capture_output=True,
        text=True,
    )


def test_learn_begins_with_timms_weights_and_leaves_them_as_they_are(photos, tmp_path):
    timm = pytest.importorskip("timm")
    from safetensors.torch import save_file

    theirs = {name: value.contiguous() for name, value in timm.create_model("test_resnet").state_dict().items()}
    with served(tmp_path / "web", Hub) as address:
        save_file(theirs, tmp_path / "web" / "model.safetensors")
        first = learn_in_a_process(photos, tmp_path / "new", address, tmp_path / "home")
        assert first.returncode == 0, first.stdout + first.stderr
        saved = load_model(tmp_path / "new")
        ours = saved.classifier.backbone.state_dict()
        assert torch.equal(ours["body.layer4.0.conv1.weight"], theirs["layer4.0.conv1.weight"])
        assert saved.config.method == "ranpac" and saved.classifier.preprocessing.size == 160
        digest = hashlib.sha256((tmp_path / "web" / "model.safetensors").read_bytes()).hexdigest()
        assert saved.ledger[-1].weights_sha256 == digest

        (blob,) = (tmp_path / "home").rglob(digest)
        blob.write_bytes(b"half")
        again = learn_in_a_process(photos, tmp_path / "again", address, tmp_path / "home")
        assert again.returncode == 2
        assert "is damaged. Delete it, and it is downloaded again." in again.stderr.replace("\n", " ")
        assert not (tmp_path / "again").exists()


def test_without_a_network_the_file_is_asked_for(photos, tmp_path):
    pytest.importorskip("timm")
    done = learn_in_a_process(photos, tmp_path / "new", "http://127.0.0.1:9", tmp_path / "home")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    said = " ".join(done.stderr.split())
    assert "could not be downloaded from timm/test_resnet.r160_in1k" in said and "--weights" in said


# --- what may not be asked for


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"old": "there"}, "`pretrained` is for the network of a first model; there has its own"),
        ({"weights": "file.pth"}, "Leave one out"),
        ({"backbone": "reverie/resnet8"}, "no pretrained weights of reverie/resnet8; there are for networks of"),
        ({"backbone": "resnet32"}, "timm has no network 'resnet32', nor has torchvision"),
    ],
)
def test_pretrained_is_for_a_first_model_and_a_network_of_a_library(photos, tmp_path, given, message):
    with pytest.raises(UserError, match=message):
        learn_folder(photos, tmp_path / "new", pretrained=True, **given)
    assert not (tmp_path / "new").exists()

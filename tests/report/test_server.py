"""The served page: to this machine only, nothing but the page, whatever becomes of the run."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

from reverie.errors import Interrupted, UserError
from reverie.report.run_reader import RunView
from reverie.report.server import ReportServer, Watched, watch
from reverie.runs.configure import configure
from reverie.runs.run import run
from tests.support.experiments import TINY, StopBeforeTask
from tests.support.processes import hear_ctrl_c


@contextmanager
def serving(*paths):
    with ReportServer(paths, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server, path, host=None):
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def news(server, seen=""):
    status, content = get(server, f"/news?seen={seen}")
    return json.loads(content) if status == 200 else status


def test_the_page_is_served_and_news_only_when_there_are_any(small_table):
    with serving(small_table) as server:
        status, page = get(server, "/")
        assert status == 200
        assert '"watching":true' in page
        told = news(server)
        assert told["html"] in page
        assert news(server, told["version"]) == 204


def test_it_listens_to_this_machine_alone(small_table):
    with serving(small_table / "abd-seed0") as server:
        host, port = server.server_address
        assert host == "127.0.0.1"
        assert server.socket.getsockname()[0] == "127.0.0.1"
        for name in ("evil.example", f"evil.example:{port}", "0.0.0.0:80"):  # a name that was made to point here
            assert get(server, "/", name)[0] == 403
            assert get(server, "/news", name)[0] == 403
        for name in (f"localhost:{port}", "localhost", "127.0.0.1"):  # browsers leave port 80 out
            assert get(server, "/", name)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/config.yaml",
        "/result.json",
        "/tasks/02/dreams.png",
        "/../abd-seed0/result.json",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/news/../../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "//[",
    ],
)
def test_no_file_is_served(small_table, path):
    with serving(small_table / "abd-seed0") as server:
        status, said = get(server, path)
        assert (status, said) == (404, "There is nothing else here.")


def test_nothing_can_be_sent_to_it(small_table):
    with serving(small_table / "abd-seed0") as server:
        connection = http.client.HTTPConnection(*server.server_address, timeout=30)
        connection.request("POST", "/", body="x", headers={"Host": f"127.0.0.1:{server.server_address[1]}"})
        assert connection.getresponse().status == 501


def test_it_follows_a_run_that_stops_goes_on_ends_is_deleted_and_comes_back(tiny, tmp_path):
    config, folder = tiny("base", "stream.take=2", "train.epochs=1"), tmp_path / "run"
    with serving(folder) as server:
        assert "not there" in news(server)["html"]
        with pytest.raises(Interrupted):
            run(config, folder, device="cpu", observer=StopBeforeTask(1))
        with (folder / "events.jsonl").open("ab") as file:
            file.write(b'{"event": "epo')  # killed while it wrote
        stopped = news(server)
        assert "1 of 2 tasks learned" in stopped["html"]
        assert news(server, stopped["version"]) == 204
        run(config, folder, device="cpu")
        ended = news(server, stopped["version"])
        assert "· finished" in ended["html"]
        shutil.rmtree(folder)
        gone = news(server, ended["version"])
        assert "not there" in gone["html"]
        run(config, folder, device="cpu")
        assert "· finished" in news(server, gone["version"])["html"]


def test_it_follows_a_process_that_is_killed_and_a_run_that_goes_on(tmp_path):
    folder, settings = tmp_path / "run", [*TINY, "stream.take=2", "train.epochs=6"]
    words = [sys.executable, "-m", "reverie", "run", "digits-5", "-m", "base", "--out", str(folder), "--device", "cpu"]
    words += [word for setting in settings for word in ("--set", setting)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        with serving(folder) as server:
            until = time.monotonic() + 60
            while "phase learn, epoch" not in news(server)["html"]:
                assert time.monotonic() < until
                time.sleep(0.05)
            process.kill()
            process.wait()
            killed = news(server)
            assert "The run is not finished" in killed["html"]
            run(configure("digits-5", "base", settings=settings), folder, device="cpu")
            assert "· finished" in news(server, killed["version"])["html"]
    finally:
        process.kill()
        process.wait()


def test_a_table_takes_in_runs_as_they_come_and_go(small_table, tmp_path):
    table = tmp_path / "table"
    shutil.copytree(small_table / "base-seed0", table / "base-seed0")
    with serving(table) as server:
        assert "1 of 1 runs finished" in news(server)["html"]
        shutil.copytree(small_table / "abd-seed0", table / "abd-seed0")
        assert "2 of 2 runs finished" in news(server)["html"]
        shutil.rmtree(table)
        assert "not there" in news(server)["html"]


def test_omega_appears_when_the_upper_bound_is_trained(small_table, tmp_path):
    run = tmp_path / "abd-seed0"
    shutil.copytree(small_table / "abd-seed0", run)
    result = json.loads((run / "result.json").read_text())
    figures = {**result["metrics"], "omega": None, "omega_up_to": None}
    (run / "result.json").write_text(json.dumps({**result, "upper_bound": None, "metrics": figures}))
    with serving(run) as server:
        assert "Omega needs the upper bound" in news(server)["html"]
        shutil.copytree(small_table / "upper-bounds", tmp_path / "upper-bounds")
        assert "Omega needs the upper bound" not in news(server)["html"]


def test_a_run_is_not_read_again_while_nothing_changes(small_table, monkeypatch):
    read, real = [], RunView.of
    monkeypatch.setattr(RunView, "of", lambda path: read.append(path) or real(path))
    watched = Watched([small_table])
    watched.look()
    watched.look()
    assert len(read) == 4


def test_a_large_sheet_is_packed_once_and_anew_when_it_has_changed(small_table, tmp_path, monkeypatch):
    packed, real, rng = [], Image.Image.thumbnail, np.random.default_rng()  # a sheet that nobody has packed before
    monkeypatch.setattr(Image.Image, "thumbnail", lambda image, sides: packed.append(sides) or real(image, sides))

    def draw_sheet():
        noise = rng.integers(0, 255, (400, 400, 3), dtype=np.uint8)
        Image.fromarray(noise).save(run / "tasks" / "02" / "dreams.png")

    run = tmp_path / "run"
    shutil.copytree(small_table / "abd-seed0", run)
    draw_sheet()
    with serving(run) as server:
        first = news(server)
        assert news(server, first["version"]) == 204
        (run / "result.json").unlink()  # other news, so that the run is read again
        assert "not finished" in news(server, first["version"])["html"]
        assert len(packed) == 1
        draw_sheet()
        news(server)
        assert len(packed) == 2


def test_a_reader_who_leaves_in_the_middle_does_no_harm(small_table, capsys):
    with serving(small_table) as server:
        for _ in range(3):
            with socket.create_connection(server.server_address) as connection:
                connection.sendall(b"GET / HTTP/1.0\r\nHost: 127.0.0.1:1\r\n\r\n")
        assert get(server, "/")[0] == 200
    assert "Traceback" not in capsys.readouterr().err


def test_a_port_that_is_taken_is_a_mistake(small_table):
    with serving(small_table) as server, pytest.raises(UserError, match="Choose another `port`"):
        ReportServer([small_table], server.server_address[1])
    with pytest.raises(UserError, match="Choose another `port`"):
        ReportServer([small_table], 99999999)


def test_called_in_python_it_tells_its_address_and_serves_until_ctrl_c(small_table):
    pages = []

    def visit(address):
        try:
            connection = http.client.HTTPConnection(address.split("/")[2], timeout=30)
            connection.request("GET", "/")
            pages.append(connection.getresponse().read())
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may have ignored
    try:
        watch(
            str(small_table / "abd-seed0"),
            0,
            ready=lambda address: threading.Thread(target=visit, args=(address,)).start(),
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert b"ABD on digits-5, seed 0" in pages[0]


def test_the_command_serves_until_it_is_stopped(small_table):
    words = [sys.executable, "-m", "reverie", "watch", str(small_table), "--port", "0"]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}, preexec_fn=hear_ctrl_c
    )
    try:
        address = process.stdout.readline().split()[0]
        port = int(address.rstrip("/").rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/")
        assert b"small-table" in connection.getresponse().read()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()

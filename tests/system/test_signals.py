"""A real process that is asked to end by real signals."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from reverie.system.signals import on_stop_signal, stop_signals
from tests.support.processes import hear_ctrl_c

CHILD = """
import signal, sys, time
from reverie.system.signals import on_stop_signal

heard = []
with on_stop_signal(lambda: heard.append("heard")):
    print("ready", flush=True)
    while len(heard) < 2:
        time.sleep(0.01)
        if len(heard) == 1:
            print("once", flush=True)
            heard.append("told")
print("done", flush=True)
time.sleep(60)
"""


def hear_all() -> None:
    """In a new process, whatever the shell said that runs these tests: in the background, or with nohup."""
    hear_ctrl_c()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


posix = pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")


@posix
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_calls_the_handler_instead_of_ending_the_process_and_then_ends_it_again(name):
    asked = getattr(signal, name)
    words = [sys.executable, "-c", CHILD]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, preexec_fn=hear_all, **pipes) as child:
        try:
            assert child.stdout.readline() == "ready\n"
            child.send_signal(asked)
            assert [child.stdout.readline() for _ in range(2)] == ["once\n", "done\n"]
            child.send_signal(asked)  # which is not heard any more
            child.wait(20)
        finally:
            child.kill()
    assert child.returncode == -asked


def test_handlers_are_those_of_before_also_after_work_that_failed():
    before = {number: signal.getsignal(number) for number in stop_signals()}
    with pytest.raises(ZeroDivisionError), on_stop_signal(lambda: None):
        assert all(signal.getsignal(number) != handler for number, handler in before.items())
        raise ZeroDivisionError
    assert {number: signal.getsignal(number) for number in before} == before


def test_what_the_handler_raises_ends_the_work():
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), on_stop_signal(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("it was heard")


@posix
def test_a_hang_up_that_must_not_matter_does_not():
    """As `nohup` has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in stop_signals()
        heard = []
        with on_stop_signal(lambda: heard.append(1)):
            os.kill(os.getpid(), signal.SIGHUP)
        assert heard == []
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert signal.SIGHUP in stop_signals()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_of_the_main_thread_which_cannot_be_asked_the_work_goes_on():
    done = []

    def work():
        with on_stop_signal(lambda: None):
            done.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [before]

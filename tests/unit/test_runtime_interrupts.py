"""Ctrl-C and SIGTERM, raised in this process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from flowctl.runtime.interrupts import Interrupts


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """Under nohup, or behind a shell's "&", signals are ignored, and then we let them be."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_raises_and_those_after_it_hurry(number: signal.Signals):
    interrupts = Interrupts()
    with interrupts.taken():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert not interrupts.is_hurried
        signal.raise_signal(number)
        assert interrupts.is_hurried


def test_while_held_even_the_first_only_hurries():
    interrupts = Interrupts()
    with interrupts.taken():
        interrupts.hold()
        signal.raise_signal(signal.SIGINT)
        assert interrupts.is_hurried
        interrupts.release()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_handlers_of_before_are_put_back():
    def mine(number, frame):
        raise AssertionError("not now")

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with Interrupts().taken():
            assert signal.getsignal(signal.SIGTERM) is not mine
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_the_process_ignores_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts().taken():
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_it_leaves_the_handlers_alone():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def look() -> None:
        with Interrupts().taken():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("is_held", [False, True], ids=["at work", "saving"])
def test_a_forked_process_ends_as_if_there_were_no_run(is_held: bool):
    interrupts = Interrupts()
    with interrupts.taken():
        if is_held:
            interrupts.hold()
        readable, writable = os.pipe()
        forked = os.fork()
        if not forked:
            os.write(writable, b".")  # a signal that comes before Python has settled is lost
            while True:
                pass  # handlers run between two steps
        os.read(readable, 1)
        os.kill(forked, signal.SIGTERM)
        _, status = os.waitpid(forked, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM

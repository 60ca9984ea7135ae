from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from flowctl.errors import AuthenticationError
from flowctl.wire import auth

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def _new_key() -> bytes:
    return secrets.token_bytes(auth.KEY_BYTES)


def _soon() -> float:
    return time.monotonic() + 5


def _in_thread(call: Callable[[], object]) -> Callable[[], BaseException | None]:
    """Run ``call``; the function returned waits and gives what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except (AuthenticationError, OSError) as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def wait() -> BaseException | None:
        thread.join()
        return raised[0] if raised else None

    return wait


def test_the_same_key_lets_both_pass(pair):
    key = _new_key()
    spout = _in_thread(lambda: auth.prove_as_spout(pair[0], key, deadline_s=_soon()))
    auth.prove_as_bolt(pair[1], key, deadline_s=_soon())
    assert spout() is None


def test_a_bolt_notices_a_spout_with_another_key_and_says_nothing_more(pair):
    spout = _in_thread(lambda: auth.prove_as_spout(pair[0], _new_key(), deadline_s=_soon()))
    key = _new_key()
    with pytest.raises(AuthenticationError) as caught:
        auth.prove_as_bolt(pair[1], key, deadline_s=_soon())
    pair[1].close()
    assert isinstance(spout(), OSError)
    assert key.hex() not in str(caught.value)
    assert repr(key) not in str(caught.value)


def test_a_spout_refuses_a_bolt_that_guesses(pair):
    spout = _in_thread(lambda: auth.prove_as_spout(pair[0], _new_key(), deadline_s=_soon()))
    pair[1].sendall(auth.MAGIC + bytes(auth.NONCE_BYTES) + bytes(auth.PROOF_BYTES))
    assert isinstance(spout(), AuthenticationError)


def test_the_spouts_own_proof_sent_back_to_it_is_refused(pair):
    spout = _in_thread(lambda: auth.prove_as_spout(pair[0], _new_key(), deadline_s=_soon()))
    pair[1].sendall(auth.MAGIC + bytes(auth.NONCE_BYTES))
    answer = auth.receive_exactly(
        pair[1], len(auth.MAGIC) + auth.NONCE_BYTES + auth.PROOF_BYTES, _soon()
    )
    pair[1].sendall(answer[-auth.PROOF_BYTES :])
    assert isinstance(spout(), AuthenticationError)


def test_a_recorded_exchange_is_refused(pair):
    key = _new_key()

    class Recorder:
        said = b""

        def __getattr__(self, name: str) -> object:
            return getattr(pair[1], name)

        def sendall(self, data: bytes) -> None:
            self.said += data
            pair[1].sendall(data)

    recorder = Recorder()
    spout = _in_thread(lambda: auth.prove_as_spout(pair[0], key, deadline_s=_soon()))
    auth.prove_as_bolt(recorder, key, deadline_s=_soon())  # type: ignore[arg-type]
    assert spout() is None
    again = _in_thread(lambda: auth.prove_as_spout(pair[0], key, deadline_s=_soon()))
    pair[1].sendall(recorder.said)
    assert isinstance(again(), AuthenticationError)


@pytest.mark.parametrize("role", [auth.prove_as_spout, auth.prove_as_bolt])
def test_another_protocol_is_refused_after_eight_bytes(pair, role):
    pair[1].sendall(b"GET / HT")
    with pytest.raises(AuthenticationError, match="protocol"):
        role(pair[0], _new_key(), deadline_s=_soon())


def test_the_deadline_is_for_the_whole_not_for_each_byte(pair):
    stop = threading.Event()

    def drip() -> None:
        for byte in auth.MAGIC + bytes(auth.NONCE_BYTES):
            if stop.wait(0.05):
                return
            pair[1].send(bytes([byte]))

    dripping = _in_thread(drip)
    with pytest.raises(TimeoutError):
        auth.prove_as_spout(pair[0], _new_key(), deadline_s=time.monotonic() + 0.2)
    stop.set()
    dripping()


@pytest.mark.parametrize("said", [b"", b"flow", auth.MAGIC + b"half a nonce"])
def test_a_peer_that_hangs_up_is_no_peer(pair, said):
    pair[1].sendall(said)
    pair[1].close()
    with pytest.raises(OSError):
        auth.prove_as_spout(pair[0], _new_key(), deadline_s=_soon())

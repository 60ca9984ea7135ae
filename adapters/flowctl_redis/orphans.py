"""Stops an embedded server that nobody has used for some seconds.

    python -I orphans.py CONNECTION DATA_DIR LOCK_INODE SERVER_PID

Users stop the server when they leave.  One that is killed can't, and there may be no next one; so
whoever starts a server also starts this process, in a session of its own.  It loads only the
standard library, as it stays as long as the server does.

Where the data directory was removed meanwhile, nobody can find the server any more, and nothing it
saves is kept: it is killed.  Told to shut down, it would also remove the socket of a server that
was started since at the same path.
"""

import contextlib
import fcntl
import os
import select
import signal
import socket
import sys

NAME = "flowctl-orphans"  # of its own connection, which is not a user's
# Long enough for a killed driver to be started again without a new server.
GRACE_S = 5
_LOOK_EVERY_S = 1.0
_ANSWER_WITHIN_S = 30.0  # a server that syncs to a slow disk answers late


def introduce(connection: socket.socket) -> None:
    """Tell the server that the connection is not a user's; whoever starts this process does it."""
    _ask(connection, "CLIENT", "SETNAME", NAME)


def main(connection: str, data_dir: str, lock_inode: str, pid: str) -> None:
    """Watch the server at the other end of a descriptor until it ends."""
    with socket.socket(fileno=int(connection)) as server:
        server.settimeout(_ANSWER_WITHIN_S)
        looks = 0
        while looks < GRACE_S or not _stop(server, data_dir):
            if select.select([server], [], [], _LOOK_EVERY_S)[0]:
                return  # it never sends unasked: it has closed the connection
            looks = 0 if _is_used(server) else looks + 1
            if looks and not _is_there(data_dir, int(lock_inode)):
                os.kill(int(pid), signal.SIGKILL)  # ours: it has just answered
                return


def _is_there(data_dir: str, lock_inode: int) -> bool:
    try:
        # No other file gets this number while the server holds the file.
        return os.stat(os.path.join(data_dir, "server.lock")).st_ino == lock_inode
    except FileNotFoundError:
        return False


def _is_used(server: socket.socket) -> bool:
    listed = _ask(server, "CLIENT", "LIST").splitlines()
    return any(" name=" in line and f" name={NAME} " not in line for line in listed)


def _stop(server: socket.socket, data_dir: str) -> bool:
    """Stop it unless somebody is about to use it; return whether it was told to stop."""
    try:
        lock = os.open(os.path.join(data_dir, "users.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return False  # removed just now: the next look sees that
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_used(server):
            return False
        _ask(server, "SHUTDOWN", "NOSAVE")  # NOSAVE is about snapshots; all that was saved is kept
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _ask(server: socket.socket, *words: str) -> str:
    """Return the answer's text; "" if there is none, as when the server ends."""
    parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
    server.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
    answer = b""
    while b"\r\n" not in answer:
        if not (more := server.recv(65536)):
            return ""
        answer += more
    head, _, rest = answer.partition(b"\r\n")
    if not head.startswith(b"$"):
        return head.decode("utf-8", "replace")
    while len(rest) < int(head[1:]) + 2:
        if not (more := server.recv(65536)):
            return ""
        rest += more
    return rest.decode("utf-8", "replace")


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # the server is gone
        main(*sys.argv[1:])

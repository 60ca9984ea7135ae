"""An S3 on loopback that checks keys: moto's server, which is started as a command of its own.

It is no dependency of ours, as it brings 60 packages: ``pipx install 'moto[server]'``, or name the
command in ``FLOWCTL_MOTO_SERVER``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from flowctl.bolts.batch import Batch

BUCKET = "logs"
MISSING = "moto_server is not there: pipx install 'moto[server]', or set FLOWCTL_MOTO_SERVER"
TOO_OLD = "this moto_server can't check the signatures of pyarrow: upgrade to 5.2.5 or newer"
_START_S = 60.0
_SIGNED = "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/{}/aws4_request"


def command() -> str | None:
    """Where moto's server is; None: nowhere."""
    return os.environ.get("FLOWCTL_MOTO_SERVER") or shutil.which("moto_server")


def store(port: int) -> Any:
    """A file system with the key that the environment of this process holds."""
    from pyarrow.fs import S3FileSystem

    return S3FileSystem(endpoint_override=f"127.0.0.1:{port}", scheme="http", region="us-east-1")


def can_check(server: S3) -> bool:
    """Whether this moto computes the signatures of pyarrow as pyarrow does: 5.2.1 does not."""
    from pyarrow.fs import FileSelector, S3FileSystem

    files = S3FileSystem(
        access_key=server.lister.name,
        secret_key=server.lister.secret,
        endpoint_override=f"127.0.0.1:{server.port}",
        scheme="http",
        region="us-east-1",
    )
    try:
        files.get_file_info(FileSelector(BUCKET))
    except OSError as error:
        if "SIGNATURE_DOES_NOT_MATCH" in str(error):
            return False
        raise
    return True


class Key(NamedTuple):
    """A key of a user."""

    name: str
    secret: str

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": self.name, "AWS_SECRET_ACCESS_KEY": self.secret}


class S3:
    """The server; ``reader`` may read objects, ``lister`` only see which there are."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        environment = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
        program = command()
        assert program is not None
        self._process = subprocess.Popen(
            [program, "-H", "127.0.0.1", "-p", str(self.port)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._await()
        self._send("PUT", f"/{BUCKET}")
        self.lister = self._user("lister", "s3:ListBucket")
        self.reader = self._user("reader", "s3:ListBucket", "s3:GetObject")
        self._checks(from_action=0)

    def put(self, name: str, data: bytes) -> None:
        """Put an object into the bucket."""
        self._checks(from_action=1_000_000)
        self._send("PUT", f"/{BUCKET}/{name}", data)
        self._checks(from_action=0)

    def let_all(self) -> None:
        """Check no keys any more."""
        self._checks(from_action=1_000_000_000)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _checks(self, *, from_action: int) -> None:
        self._send("POST", "/moto-api/reset-auth", str(from_action).encode())

    def _user(self, name: str, *actions: str) -> Key:
        """Make a user who may do ``actions``; return a key."""
        policy = [{"Effect": "Allow", "Action": list(actions), "Resource": "*"}]
        document = json.dumps({"Version": "2012-10-17", "Statement": policy})
        self._iam("CreateUser", UserName=name)
        self._iam("PutUserPolicy", UserName=name, PolicyName="p", PolicyDocument=document)
        made = self._iam("CreateAccessKey", UserName=name)
        found = re.findall(r"<(?:AccessKeyId|SecretAccessKey)>([^<]+)<", made)
        return Key(*found)

    def _iam(self, action: str, **parameters: str) -> str:
        body = urlencode({"Action": action, "Version": "2010-05-08", **parameters}).encode()
        return self._send("POST", "/", body, service="iam")

    def _send(self, method: str, path: str, body: bytes = b"", service: str = "s3") -> str:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", body or None, method=method
        )
        request.add_header("Authorization", _SIGNED.format(service))
        kind = "x-www-form-urlencoded" if service == "iam" else "octet-stream"
        request.add_header("Content-Type", f"application/{kind}")
        with urllib.request.urlopen(request, timeout=_START_S) as answer:
            text: str = answer.read().decode()
            return text

    def _await(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
                return
            except OSError:
                assert self._process.poll() is None, "moto's server ended"
                assert time.monotonic() < deadline_s, "moto's server does not listen"
                time.sleep(0.1)


class Journal:
    """Notes the lines that bolts process, whichever process they are in.

    With ``hold`` it goes on with its second batch only when there is a file of that name.
    """

    def __init__(self, place: Path, hold: str = "") -> None:
        self.place = place
        self.hold = hold
        self._batches = 0

    def __call__(self, batch: Batch) -> None:
        self._batches += 1
        while self.hold and self._batches > 1 and not (self.place / self.hold).exists():
            time.sleep(0.02)
        path = self.place / f"{batch.bolt}-{os.getpid()}-{threading.get_ident()}.seen"
        with path.open("a") as file:
            file.write("".join(f"{record.value}\n" for record in batch))

    def lines(self) -> list[str]:
        """All that was noted."""
        files = self.place.glob("*.seen")
        return sorted(line for file in files for line in file.read_text().splitlines())

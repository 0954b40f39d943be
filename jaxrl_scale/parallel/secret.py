"""The secret of a run, and how its processes show each other that they know it.

Anybody on the network can connect to the port where the processes of a run meet, so process 0
lets in only those that know the run's secret. The secret itself is never sent. Each side sends
the other a random text, a *challenge*, and answers with a *proof* that only somebody who knows
the secret can compute for this challenge:

- ``key``: the secret is a text, and a proof is its HMAC. The text is ``JAXRL_SECRET``, else it
  stands in the file ``JAXRL_SECRET_FILE``, else in a file that the first process of a user makes
  in the user's home folder and that only this user can read.
- ``munge``: under Slurm, a proof is a credential of munge, the service by which Slurm itself
  knows users: nobody else can make it, and only processes of the same user can read it. It needs
  no shared folder.

A variable of the environment comes first, then munge under Slurm, then the file in the home
folder. Process 0 chooses and the others follow.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from jaxrl_scale.errors import RunError, one_line

_SHORTEST = 16  # characters; a shorter secret could be guessed from one recorded proof
_COMMAND_SECONDS = 10.0  # munge answers in milliseconds
_WRITING_SECONDS = 5.0  # for which a reader waits for another process to write the file


class Secret(Protocol):
    """Something that only the processes of one run, or of one user, can do."""

    @property
    def way(self) -> str:
        """``key`` or ``munge``."""

    def prove(self, statement: bytes) -> bytes:
        """The proof that whoever says this knows the secret: one line."""

    def check(self, statement: bytes, proof: bytes) -> bool:
        """Whether ``proof`` was made for this statement by somebody who knows the secret."""


class Key(NamedTuple):
    """A secret text."""

    text: bytes
    way: str = "key"

    def prove(self, statement: bytes) -> bytes:
        return hmac.new(self.text, statement, hashlib.sha256).hexdigest().encode()

    def check(self, statement: bytes, proof: bytes) -> bool:
        return hmac.compare_digest(self.prove(statement), proof)


class Munge(NamedTuple):
    """The commands ``munge`` and ``unmunge`` of a Slurm cluster."""

    way: str = "munge"

    def prove(self, statement: bytes) -> bytes:
        command = ["munge", f"--restrict-uid={os.geteuid()}"]
        return _output(command, _digest(statement)).strip()

    def check(self, statement: bytes, proof: bytes) -> bool:
        try:
            said = _output(["unmunge", "--numeric", "--keys=UID"], proof)
        except RunError:  # forged, too old, read before, or not for this user
            return False
        who, _, what = said.partition(b"\n\n")
        own = f"UID:{os.geteuid()}".encode()
        return b"".join(who.split()) == own and hmac.compare_digest(what, _digest(statement))


def _given(environment: Mapping[str, str]) -> list[str]:
    return [name for name in ("JAXRL_SECRET", "JAXRL_SECRET_FILE") if environment.get(name)]


def check_given(environment: Mapping[str, str]) -> None:
    """Raise a `RunError` where the user gives a secret that is none."""
    if _given(environment):
        choose(environment, "key")


def choose(environment: Mapping[str, str], way: str | None = None) -> Secret:
    """The secret of this process's run.

    Args:
      environment: `os.environ`, or what stands in for it.
      way: the way that process 0 told; `None` in process 0, which chooses.
    """
    given = _given(environment)
    if way == "munge" or (way is None and not given and _munge_works(environment)):
        return Munge()
    if "JAXRL_SECRET" in given:
        return _key(environment["JAXRL_SECRET"], "JAXRL_SECRET")
    if "JAXRL_SECRET_FILE" in given:
        return _read(Path(environment["JAXRL_SECRET_FILE"]))
    return _of_user(environment)


def _digest(statement: bytes) -> bytes:
    return hashlib.sha256(statement).hexdigest().encode()


def _munge_works(environment: Mapping[str, str]) -> bool:
    if "SLURM_JOB_ID" not in environment or not shutil.which("unmunge"):
        return False
    try:
        return Munge().check(b"a trial", Munge().prove(b"a trial"))
    except RunError:
        return False


def _output(command: list[str], text: bytes) -> bytes:
    """What a command prints when it reads ``text``; `RunError` where it fails."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, timeout=_COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(f"{command[0]} does not work: {error}") from None
    if done.returncode != 0:
        raise RunError(f"{command[0]} does not work: {one_line(done.stderr.decode('latin-1'))}")
    return done.stdout


def _key(text: str, where: str) -> Key:
    if len(text) < _SHORTEST:
        raise RunError(f"{where} should hold at least {_SHORTEST} characters")
    return Key(text.encode())


def _read(path: Path) -> Key:
    """The secret in a file that only its owner can read."""
    end = time.monotonic() + _WRITING_SECONDS
    while True:
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                mode, text = os.fstat(file.fileno()).st_mode, file.read(4096)
        except OSError as error:
            raise RunError(f"cannot read the run's secret in {path}: {error.strerror}") from None
        if mode & 0o077:
            raise RunError(
                f"others can read the run's secret in {path}; `chmod 600` it, "
                "or give all processes the same JAXRL_SECRET"
            )
        if text.endswith("\n") or time.monotonic() > end:
            return _key(text.strip(), str(path))
        time.sleep(0.05)  # another process has just made the file, and writes it now


def _of_user(environment: Mapping[str, str]) -> Key:
    """The secret that all processes of one user share: in the home folder, else, where that
    cannot be written, in a folder of this machine."""
    homes = [Path(environment.get("HOME") or os.path.expanduser("~")) / ".config" / "jaxrl_scale"]
    homes.append(Path(tempfile.gettempdir()) / f"jaxrl_scale-{os.geteuid()}")
    for folder in filter(Path.is_absolute, homes):
        path = folder / "secret"
        with contextlib.suppress(OSError):
            if not path.exists():
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _write_new(path)
            state = folder.lstat()
            if state.st_uid == os.geteuid() and not state.st_mode & 0o022:  # nobody else's
                return _read(path)
    raise RunError(
        f"no secret can be kept in {' or '.join(map(str, homes))}; "
        "give all processes of the run the same JAXRL_SECRET"
    )


def _write_new(path: Path) -> None:
    """Write a new secret, unless another process was faster."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    try:
        with open(descriptor, "w") as file:
            file.write(f"{secrets.token_hex(32)}\n")
    except OSError:  # a full disk, which would leave an empty secret to all later runs
        path.unlink()
        raise

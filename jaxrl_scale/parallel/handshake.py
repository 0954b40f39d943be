"""How two processes of a run recognize each other, and the messages in which they talk.

Whoever connects to process 0 has to introduce itself before anything else it says is read:

1. Process 0 sends the way in which both prove that they know the secret, and a challenge.
2. The other process sends a proof for this challenge, its own challenge, and who it is.
3. Process 0 sends a proof for that challenge. Now both know with whom they talk.

Whoever does not do this in time, in few bytes and with a right proof is a stranger. A message is
its length in four bytes and then JSON; in an introduction it is a line of text.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from asyncio import StreamReader, StreamWriter
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxrl_scale.errors import RunError
from jaxrl_scale.parallel.secret import Secret, choose

INTRODUCTION_SECONDS = 5.0
"""How long a connection may take to introduce itself. A process of the run takes milliseconds, and
tries again where its machine was too busy."""
INTRODUCTION_BYTES = 1024
"""Length of the longest message in an introduction; a credential of munge has about 300."""
LONGEST_MESSAGE = 2**26  # bytes
_GREETING = b"jaxrl_scale"
_REFUSAL = b"?"


class Stranger(Exception):
    """Whoever connected is no process of this run; the message says how that showed."""


class Hello(NamedTuple):
    """Who a process is."""

    process: int
    of: int  # processes of its run
    name: str  # of its machine, for people
    machine: str  # equal for processes on one machine


async def admit(reader: StreamReader, writer: StreamWriter, secret: Secret) -> Hello:
    """Process 0's side: who has connected. Raises `Stranger`, `OSError` or `EOFError`."""
    challenge = secrets.token_hex(16).encode()
    _write(writer, b" ".join([_GREETING, secret.way.encode(), challenge]))
    proof, _, claim = (await _read(reader, INTRODUCTION_BYTES)).partition(b" ")
    if not await asyncio.to_thread(secret.check, b"member %b %b" % (challenge, claim), proof):
        _write(writer, _REFUSAL)
        await writer.drain()
        raise Stranger("it does not know the run's secret")
    answer, _, said = claim.partition(b" ")
    try:
        process, of, name, machine = json.loads(said)
    except (ValueError, TypeError, RecursionError):
        raise Stranger("it does not say who it is") from None
    hello = Hello(process, of, name, machine)
    if tuple(map(type, hello)) != (int, int, str, str):
        raise Stranger("it does not say who it is")
    _write(writer, await asyncio.to_thread(secret.prove, b"leader %b %b" % (answer, challenge)))
    return hello


async def introduce(
    reader: StreamReader, writer: StreamWriter, hello: Hello, environment: Mapping[str, str]
) -> None:
    """The other processes' side. Raises `Stranger` where process 0 does not answer, `RunError`
    where it has another secret, `OSError` or `EOFError`."""
    greeting = (await _read(reader, INTRODUCTION_BYTES)).split(b" ")
    if len(greeting) != 3 or greeting[0] != _GREETING or greeting[1] not in (b"key", b"munge"):
        raise Stranger("another program listens there")
    secret, challenge = choose(environment, greeting[1].decode()), secrets.token_hex(16).encode()
    claim = challenge + b" " + json.dumps(hello).encode()
    proof = await asyncio.to_thread(secret.prove, b"member %b %b" % (greeting[2], claim))
    _write(writer, proof + b" " + claim)
    answer = await _read(reader, INTRODUCTION_BYTES)
    statement = b"leader %b %b" % (challenge, greeting[2])
    if not await asyncio.to_thread(secret.check, statement, answer):
        raise RunError(
            "process 0 and this process have different secrets; where they do not share a home "
            "folder, give all processes the same JAXRL_SECRET (see launch/README.md)"
        )


# --- messages -------------------------------------------------------------------------------


def write(writer: StreamWriter, message: dict[str, Any]) -> None:
    """Send a message to a process of the run."""
    _write(writer, json.dumps(message).encode())


async def read(reader: StreamReader) -> dict[str, Any]:
    """The next message of a process of the run; `EOFError` where its connection is closed."""
    return json.loads(await _read(reader, LONGEST_MESSAGE))


def _write(writer: StreamWriter, message: bytes) -> None:
    writer.write(len(message).to_bytes(4, "big") + message)


async def _read(reader: StreamReader, longest: int) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > longest:
        raise Stranger(f"it sent a message of {size:,} bytes")
    return await reader.readexactly(size)

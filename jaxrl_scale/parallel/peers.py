"""The connection between the processes of a run.

`join` meets the other processes at process 0. Their connections stay open beside those of JAX,
and carry what JAX cannot: small JSON messages (`Peers.gather`), heartbeats, and the reason why a
process failed. A process that dies, that is silent for longer than the heartbeat or that meets an
error is named on the standard error of every process, and every process ends with a status that
tells a scheduler whether it makes sense to start again. JAX by itself ends in an abort that names
nobody, or waits for ever.

Only processes that know the run's secret are let in (`jaxrl_scale.parallel.handshake`). As soon as
all have come, nobody listens any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
import traceback
from asyncio import StreamReader, StreamWriter
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, NoReturn

import jax

from jaxrl_scale.config import Launch
from jaxrl_scale.errors import BUG, INTERRUPTED, LOST, MISTAKE, RunError, in_words, one_line
from jaxrl_scale.parallel import handshake
from jaxrl_scale.parallel.cluster import Cluster
from jaxrl_scale.parallel.handshake import Hello, Stranger
from jaxrl_scale.parallel.machine import machine_id, node_name
from jaxrl_scale.parallel.secret import check_given, choose

_SPARE = 64  # connections that may be introducing themselves, beside one of each process
_LAST = "done"


class Failure(NamedTuple):
    """Why all processes end."""

    process: int | None  # that failed; None where another process found it out
    message: str
    status: int


class Peers:
    """The connection of this process to the others of its run. With one process every method
    returns at once.

    Processes 1, 2, … are connected to process 0, the leader, which is connected to all of them. A
    thread of its own reads and writes, so that it answers while XLA compiles or computes.
    """

    def __init__(self, cluster: Cluster = Cluster(), heartbeat: float = 20.0):  # noqa: B008
        self.process_id, self.num_processes = cluster.process_id, cluster.num_processes
        self.cluster, self.heartbeat = cluster, heartbeat
        self.names = [node_name()] * cluster.num_processes  # of each process's machine
        self.machines = [machine_id()] * cluster.num_processes
        self.advice = ""  # how the run can be continued
        self._before_end: Callable[[], None] = lambda: None
        self._after_mistake: Callable[[], None] = lambda: None
        self._closing = False  # all have come to `close`: nobody is missed any more
        self._over = False  # a failure is known
        self._ending = threading.Lock()
        self._writers: dict[int, StreamWriter] = {}
        self._heard: dict[int, float] = {}  # when, by process
        # By thread and process, what was given and is not answered yet; only the leader's is used.
        self._given: dict[str, dict[int, deque[dict[str, Any]]]] = defaultdict(
            lambda: {k: deque() for k in range(self.num_processes)}
        )
        self._answers: dict[str, Future[list[Any]]] = {}  # by thread
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def leader(self) -> bool:
        """Process 0, which alone writes logs, plots and summaries."""
        return self.process_id == 0

    @property
    def several(self) -> bool:
        """Whether the run has more than one process."""
        return self.num_processes > 1

    @property
    def together(self) -> bool:
        """Whether all processes are on one machine."""
        return len(set(self.machines)) == 1

    def name(self, process_id: int | None = None) -> str:
        """``process 2 of 4 on node7``"""
        k = self.process_id if process_id is None else process_id
        return f"process {k} of {self.num_processes} on {self.names[k]}"

    def gather(self, name: str, value: Any, thread: str = "main") -> list[Any]:
        """Return the ``value`` (JSON data) of every process, by process, when all have called this.

        Every process must make the same calls in the same order; one that differs ends all of
        them with an error that quotes both names. Threads of a process that run side by side
        have no order between them, so each thread that calls this has a name of its own, the
        same in every process.
        """
        value = json.loads(json.dumps(value))  # what is no JSON data is an error here
        if not self.several:
            return [value]
        answer: Future[list[Any]] = Future()
        if self._answers.setdefault(thread, answer) is not answer:
            raise RuntimeError(f"two threads gather as {thread!r} at once")
        message = {"gather": name, "thread": thread, "value": value}
        if self.leader:
            self._loop.call_soon_threadsafe(self._receive, 0, message)
        else:
            self._loop.call_soon_threadsafe(self._send, 0, message)
        return answer.result()

    def barrier(self, name: str, thread: str = "main") -> None:
        """Return when every process has come to this call; see `gather`."""
        self.gather(name, None, thread)

    def check_alike(self, mine: Mapping[str, str]) -> None:
        """Raise a `RunError` where this process was started with other settings than process 0."""
        first = self.gather("settings", dict(mine) if self.leader else None)[0]
        for key in (*first, *mine):
            if mine.get(key) != first.get(key):
                raise RunError(
                    f"this process was started with {key}={mine.get(key)}, process 0 with "
                    f"{key}={first.get(key)}; all should be started alike"
                )

    def prepare_end(self, advice: str, release: Callable[[], None]) -> None:
        """From now on, before this process is ended because of another: call ``release``, which
        gives the terminal back, and print ``advice``, which says how the run can be continued."""
        self.advice, self._before_end = advice, release

    def say(self, text: str) -> None:
        """Show a line on standard error, and on that of process 0, where people look. Any thread
        may call it."""
        text = f"{self.name()}: {text}" if self.several else text
        _print(text)
        if not self.leader:
            self._loop.call_soon_threadsafe(self._send, 0, {"say": text})

    def after_mistake(self, undo: Callable[[], None]) -> None:
        """From now on, call ``undo`` where a mistake that any process has noticed ends this one."""
        self._after_mistake = undo

    @contextlib.contextmanager
    def end_together(self) -> Iterator[None]:
        """An error inside of this block ends all processes of the run, with its message and
        status. With one process the error goes on to the caller."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if not self.several:
                raise
            if isinstance(error, RunError):
                self.fail(str(error), error.status)
            if isinstance(error, KeyboardInterrupt):
                self.fail("interrupted; what was saved stays saved", INTERRUPTED)
            if isinstance(error, jax.errors.JaxRuntimeError):
                self.await_verdict()
            traceback.print_exc()
            self.fail(f"{type(error).__name__}: {one_line(error)[:300]}", BUG)

    def fail(self, message: str, status: int) -> NoReturn:
        """Tell all processes why this one cannot go on, and end them all, at once, with
        ``status``."""
        failure = Failure(self.process_id, message, status)
        if self.several and not self._closing:
            told = asyncio.run_coroutine_threadsafe(self._end_all(failure), self._loop)
            with contextlib.suppress(TimeoutError):
                told.result(2)
                self.await_verdict()  # another failure came first
        self._end(failure)

    def await_verdict(self) -> None:
        """Called when JAX failed where it needs the other processes: mostly one was lost, which the
        other thread notices within milliseconds. It then names that process and ends this one."""
        time.sleep(5.0)

    def close(self) -> None:
        """Close the connection when every process has come to this; then none is missed."""
        self.barrier(_LAST)
        if self.several:
            self._stop()

    # --- in the thread of the connection: meeting -------------------------------------------

    def _start(self, meeting: Coroutine[Any, Any, None]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="peers", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(meeting, self._loop).result()
        except BaseException:
            self._closing = True
            self._stop()
            raise
        self._loop.call_soon_threadsafe(self._keep, self._watch())

    def _stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)  # the loop itself holds tasks only weakly
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _meet_as_leader(self, timeout: float) -> None:
        secret, arrived = choose(os.environ), asyncio.Event()
        waiting: dict[StreamWriter, None] = {}  # who has not introduced itself, longest first
        strangers: list[str] = []
        refused: list[str] = []

        async def welcome(reader: StreamReader, writer: StreamWriter) -> None:
            waiting[writer] = None
            if len(waiting) > self.num_processes + _SPARE:
                next(iter(waiting)).transport.abort()
            try:
                introduced = handshake.admit(reader, writer, secret)
                hello = await asyncio.wait_for(introduced, handshake.INTRODUCTION_SECONDS)
            except (Stranger, TimeoutError, OSError, EOFError) as error:
                writer.close()
                if isinstance(error, Stranger | TimeoutError) and not strangers:
                    strangers.append(str(error))
                    _warn_of_stranger(writer, str(error) or "it did not introduce itself in time")
                return
            finally:
                del waiting[writer]
            if refusal := self._seat(hello, reader, writer):
                refused.append(refusal)
                handshake.write(writer, {"refused": f"{self.name()} refuses it: {refusal}"})
                writer.close()
            elif len(self._writers) == self.num_processes - 1:
                arrived.set()

        server = await self._listen(welcome)
        try:
            await asyncio.wait_for(arrived.wait(), timeout)
        except TimeoutError:
            missing = [k for k in range(1, self.num_processes) if k not in self._writers]
            message = (
                f"{_enumerate('process', missing)} of {self.num_processes} did not come to "
                f"{self.cluster.address(self.cluster.port)} within {timeout:g} s (--start_timeout)"
                + (f"; one that came was refused: {refused[0]}" if refused else "")
            )
            self._over = True
            await self._tell({"failed": Failure(0, message, LOST)})
            raise RunError(message, LOST) from None
        finally:
            server.close()
            for writer in waiting:
                writer.transport.abort()
        await self._tell({"welcome": [self.names, self.machines]})

    async def _listen(self, welcome: Callable[..., Any]) -> asyncio.Server:
        host, port = self.cluster.host, self.cluster.port
        try:
            return await asyncio.start_server(
                welcome,
                host if self.cluster.is_local else None,  # None: on all networks of the machine
                port,
                reuse_address=True,
                backlog=self.num_processes + _SPARE,
            )
        except OSError as error:
            raise RunError(
                f"process 0 cannot listen on port {port}: {_reason(error)}; "
                "another --coordinator=HOST:PORT may be free",
                LOST,
            ) from None

    def _seat(self, hello: Hello, reader: StreamReader, writer: StreamWriter) -> str:
        """Begin to talk with a process that knows the secret; else why not."""
        k = hello.process
        if hello.of != self.num_processes or not 0 < k < self.num_processes:
            return f"it is process {k} of {hello.of}, this run has {self.num_processes}"
        if k in self._writers:
            return f"another process on {self.names[k]} is process {k} already"
        self.names[k], self.machines[k] = hello.name, hello.machine
        self._talk(k, reader, writer)
        return ""

    def _talk(self, k: int, reader: StreamReader, writer: StreamWriter) -> None:
        self._writers[k], self._heard[k] = writer, time.monotonic()
        self._keep(self._read(k, reader))

    async def _meet_as_member(self, timeout: float) -> None:
        check_given(os.environ)  # before it waits for process 0
        address = self.cluster.address(self.cluster.port)
        end, reason = time.monotonic() + timeout, "it did not answer"
        while True:
            try:
                left = max(0.1, end - time.monotonic())
                reader, writer = await asyncio.wait_for(self._knock(), left)
                break
            except TimeoutError:
                pass
            except EOFError:
                reason = "it hung up"
            except OSError as error:  # not there yet, or a name that nobody knows yet
                reason = _reason(error)
            except Stranger as error:
                reason = str(error)
            if time.monotonic() > end:
                raise RunError(
                    f"process 0 could not be reached at {address} within {timeout:g} s "
                    f"(--start_timeout): {reason}",
                    LOST,
                )
            await asyncio.sleep(0.2)
        self._writers[0] = writer
        try:
            # The leader gives up after its own time-out, which may have begun later.
            first = await asyncio.wait_for(handshake.read(reader), timeout + 30)
        except (TimeoutError, OSError, EOFError):
            raise RunError(f"process 0 at {address} went away", LOST) from None
        if "refused" in first:
            raise RunError(first["refused"])
        if "failed" in first:
            failure = Failure(*first["failed"])
            raise RunError(failure.message, failure.status)
        self.names, self.machines = first["welcome"]
        self._talk(0, reader, writer)

    async def _knock(self) -> tuple[StreamReader, StreamWriter]:
        """Connect to process 0, which shows that it knows the secret, as this process does."""
        reader, writer = await asyncio.open_connection(self.cluster.host, self.cluster.port)
        hello = Hello(self.process_id, self.num_processes, node_name(), machine_id())
        try:
            introduced = handshake.introduce(reader, writer, hello, os.environ)
            await asyncio.wait_for(introduced, 2 * handshake.INTRODUCTION_SECONDS)
        except BaseException:
            writer.close()
            raise
        return reader, writer

    # --- in the thread of the connection: talking -------------------------------------------

    async def _read(self, k: int, reader: StreamReader) -> None:
        why = "its connection closed"
        try:
            while True:
                message = await handshake.read(reader)
                self._heard[k] = time.monotonic()
                self._receive(k, message)
        except EOFError:
            pass
        except (OSError, ValueError, Stranger) as error:
            why = str(error)
        await self._lost(k, why)

    def _receive(self, k: int, message: dict[str, Any]) -> None:
        """One of four: what a process gives or gets in a `gather`, a failure, a line for people,
        or a heartbeat."""
        if "gather" in message and self.leader:
            self._given[message["thread"]][k].append(message)
            self._answer_all(message["thread"])
        elif "gather" in message:
            self._answer(message)
        elif "failed" in message:
            self._keep(self._end_all(Failure(*message["failed"]), but=k))
        elif "say" in message:
            _print(message["say"])

    def _answer_all(self, thread: str) -> None:
        """Of the leader: where all processes have given something, send it to all."""
        given = self._given[thread]
        if not all(given.values()):
            return
        first = [given[k].popleft() for k in range(self.num_processes)]
        names = [message["gather"] for message in first]
        for k, name in enumerate(names):
            if name != names[0]:
                message = f"{self.name(k)} is at {name!r} while {self.name(0)} is at {names[0]!r}"
                self._keep(self._end_all(Failure(None, message, BUG)))
                return
        answer = {**first[0], "value": [message["value"] for message in first]}
        for writer in self._writers.values():
            handshake.write(writer, answer)
        self._answer(answer)

    def _answer(self, message: dict[str, Any]) -> None:
        self._closing |= message["gather"] == _LAST
        self._answers.pop(message["thread"]).set_result(message["value"])

    async def _lost(self, k: int, why: str) -> None:
        if not self._closing:
            message = f"{self.name(k)} was lost: {why}{self.advice}"
            await self._end_all(Failure(None, message, LOST), but=k)

    async def _end_all(self, failure: Failure, but: int | None = None) -> None:
        """Tell the failure to all that this process is connected to, and end it.

        Several failures may be noticed at once. Only the first is reported: the others are
        processes that it made end.
        """
        if not self._over:
            self._over = True
            await self._tell({"failed": failure}, but)
            self._end(failure)

    async def _watch(self) -> None:
        """Send heartbeats, and listen for those of the others."""
        pause, before = min(1.0, self.heartbeat / 4), time.monotonic()
        # Since they arrived, which may be minutes apart, they had nothing to say.
        self._heard = dict.fromkeys(self._heard, before)
        while not self._closing:
            await self._tell({"beat": 1})
            await asyncio.sleep(pause)
            now = time.monotonic()
            if now - before > pause + self.heartbeat / 2:  # this process was itself suspended
                self._heard = dict.fromkeys(self._heard, now)
            before = now
            for k, heard in list(self._heard.items()):
                if now - heard > self.heartbeat:
                    await self._lost(k, f"silent for {self.heartbeat:g} s (--heartbeat)")

    async def _tell(self, message: dict[str, Any], but: int | None = None) -> None:
        """Send a message to all that this process is connected to, and wait for 1 s at most."""
        writers = [writer for k, writer in self._writers.items() if k != but]
        for writer in writers:
            handshake.write(writer, message)
        drained = [writer.drain() for writer in writers]
        with contextlib.suppress(TimeoutError, OSError):
            await asyncio.wait_for(asyncio.gather(*drained, return_exceptions=True), 1)

    def _send(self, k: int, message: dict[str, Any]) -> None:
        handshake.write(self._writers[k], message)

    async def _hang_up(self) -> None:
        """Send what is still to be sent, and end every task."""
        for writer in self._writers.values():
            writer.close()
        for writer in self._writers.values():
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        for task in self._tasks:
            task.cancel()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=1)

    def _end(self, failure: Failure) -> NoReturn:
        """End this process at once: JAX's own way out waits for all the others."""
        self._ending.acquire()  # never released: one message, one status
        with contextlib.suppress(Exception):
            self._before_end()
        with contextlib.suppress(Exception):
            if failure.status == MISTAKE:
                self._after_mistake()
        k = failure.process
        by = "" if k is None or k == self.process_id else f"ended by {self.name(k)}: "
        whose = f"{self.name()}: " if self.several else ""
        _print(f"error: {whose}{by}{failure.message}")
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
            sys.stdout.flush()
        os._exit(failure.status)


def join(cluster: Cluster, launch: Launch) -> Peers:
    """Meet the other processes; with one process there is nobody to meet.

    Raises `RunError` that names the processes which did not come within ``start_timeout``.
    """
    peers = Peers(cluster, launch.heartbeat)
    if peers.several:
        meet = peers._meet_as_leader if peers.leader else peers._meet_as_member
        try:
            peers._start(meet(launch.start_timeout))
        except RunError as error:
            raise RunError(f"{peers.name()}: {error}", error.status) from None
    return peers


def _print(text: str) -> None:
    """Print a line to standard error. Where it cannot be written, as to a full disk or a closed
    pipe, which may be why this process ends, what the others wait for goes on all the same."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _warn_of_stranger(writer: StreamWriter, why: str) -> None:
    address = (writer.get_extra_info("peername") or ["an unknown address"])[0]
    _print(
        f"warning: somebody at {address} connected to this run and was turned away: {why} "
        "(told once; the run goes on)"
    )


def _enumerate(what: str, numbers: Sequence[int]) -> str:
    """``process 3``, ``processes 1, 2 and 5``"""
    return f"{what}{'es' * (len(numbers) > 1)} {in_words([*map(str, numbers)])}"


def _reason(error: OSError) -> str:
    """In the system's words; asyncio has its own, and no word for what was wrong."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)

"""The processes of a run: how many there are, which one this is, and what becomes of the others.

`find` tells where a process stands: from flags, the environment or the launcher. `join` meets
the others at process 0. That connection stays open beside JAX's own, for what JAX has no words
for: small data that all exchange (`Hosts.gather`), and a watch. Whoever dies, falls silent for
longer than the heartbeat or meets an error is named on the standard error of every process, and
every process ends with a status that tells a scheduler whether starting again makes sense. JAX
by itself ends in an abort that names nobody, or waits for ever.
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
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn

import jax

from jaxrl_scale.config import Launch
from jaxrl_scale.errors import INTERRUPTED, LOST, RunError, one_line
from jaxrl_scale.parallel.cluster import Cluster
from jaxrl_scale.parallel.machine import machine_id, node_name

BUG = 1
"""Exit status after an error that nobody foresaw, shown with its traceback."""
_LONGEST_MESSAGE = 2**26  # bytes
_LAST = "done"


# --- the link -------------------------------------------------------------------------------


class Hosts:
    """The link of this process to the others of its run; of one process a link to nobody.

    A thread of its own reads and writes it, so that it answers while XLA compiles or computes.
    Lines of JSON: members talk to process 0 (the leader), which talks to all.
    """

    def __init__(self, cluster: Cluster = Cluster(), heartbeat: float = 20.0):  # noqa: B008
        self.process_id, self.num_processes = cluster.process_id, cluster.num_processes
        self.cluster, self.heartbeat = cluster, heartbeat
        self.names = [node_name()] * cluster.num_processes
        self.machines = [machine_id()] * cluster.num_processes
        self._advice = ""
        self._before_end: Callable[[], None] = lambda: None
        self._closing = False
        self._over = False  # an end was met or heard of
        self._ending = threading.Lock()
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._heard: dict[int, float] = {}
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
        """More than one process."""
        return self.num_processes > 1

    @property
    def together(self) -> bool:
        """All on one machine."""
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
        self._advice, self._before_end = advice, release

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
        """Tell all processes why this one cannot go on, and end them all with ``status``."""
        failure = {"process": self.process_id, "message": message, "status": status}
        if not self._closing:
            told = asyncio.run_coroutine_threadsafe(self._announce(failure), self._loop)
            with contextlib.suppress(TimeoutError):
                if not told.result(2):
                    self.await_verdict()
        self._end(f"{self.name()}: {message}", status)

    def await_verdict(self, seconds: float = 5.0) -> None:
        """Called when a collective failed: the watch mostly knows within milliseconds who was
        lost, and then ends this process."""
        time.sleep(seconds)

    def close(self) -> None:
        """End the link when every process has come to this: from then on nobody is missed."""
        self.barrier(_LAST)
        if self.several:
            asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    # --- in the thread of the link ----------------------------------------------------------

    def _start(self, meeting: Coroutine[Any, Any, None]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hosts", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(meeting, self._loop).result()
        self._loop.call_soon_threadsafe(self._keep, self._watch())

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)  # the loop itself holds tasks only weakly
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _meet_as_leader(self, timeout: float) -> None:
        host, port = self.cluster.host, self.cluster.port
        arrived = asyncio.Event()

        async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                hello = json.loads(await reader.readline())
                k, number, name, on = (hello[x] for x in ("process", "of", "name", "machine"))
            except (ValueError, KeyError, TypeError, OSError):
                writer.close()  # nobody of ours
                return
            if number != self.num_processes or not 0 < k < number:
                reason = f"it is process {k} of {number}, this run has {self.num_processes}"
            elif k in self._writers:
                reason = f"another process on {self.names[k]} is process {k} already"
            else:
                self.names[k], self.machines[k] = name, on
                self._writers[k], self._heard[k] = writer, time.monotonic()
                if len(self._writers) == number - 1:
                    arrived.set()
                await self._read(k, reader)
                return
            writer.write(_line({"refused": f"{self.name()} refuses it: {reason}"}))
            await writer.drain()
            writer.close()

        try:
            self._server = await asyncio.start_server(
                welcome, None, port, limit=_LONGEST_MESSAGE, reuse_address=True
            )
        except OSError as error:
            raise RunError(
                f"process 0 cannot listen on port {port}: {_reason(error)}; "
                "another --coordinator=HOST:PORT may be free",
                LOST,
            ) from None
        try:
            await asyncio.wait_for(arrived.wait(), timeout)
        except TimeoutError:
            missing = [k for k in range(1, self.num_processes) if k not in self._writers]
            message = (
                f"{_enumerate('process', missing)} of {self.num_processes} did not come to "
                f"{host}:{port} within {timeout:g} s (--start_timeout)"
            )
            await self._announce({"process": 0, "message": message, "status": LOST})
            raise RunError(message, LOST) from None
        await self._tell({"welcome": [self.names, self.machines]})

    async def _meet_as_member(self, timeout: float) -> None:
        host, port = self.cluster.host, self.cluster.port
        end, reason = time.monotonic() + timeout, "it did not answer"
        while True:
            try:
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(host, port, limit=_LONGEST_MESSAGE),
                    max(0.1, end - time.monotonic()),
                )
                break
            except TimeoutError:
                pass
            except OSError as error:  # not there yet, or a name that nobody knows yet
                reason = _reason(error)
            if time.monotonic() > end:
                raise RunError(
                    f"process 0 could not be reached at {host}:{port} within {timeout:g} s "
                    f"(--start_timeout): {reason}",
                    LOST,
                )
            await asyncio.sleep(0.2)
        me = {"process": self.process_id, "of": self.num_processes}
        writer.write(_line({**me, "name": node_name(), "machine": machine_id()}))
        try:
            # The leader gives up after its own time-out, which may have begun later.
            first = json.loads(await asyncio.wait_for(reader.readline(), timeout + 30))
        except (ValueError, TimeoutError, OSError):
            raise RunError(f"process 0 at {host}:{port} went away", LOST) from None
        if "refused" in first:
            raise RunError(first["refused"])
        if "failed" in first:
            raise RunError(first["failed"]["message"], first["failed"]["status"])
        self.names, self.machines = first["welcome"]
        self._writers[0], self._heard[0] = writer, time.monotonic()
        self._keep(self._read(0, reader))

    async def _read(self, k: int, reader: asyncio.StreamReader) -> None:
        why = "its connection closed"
        try:
            while line := await reader.readline():
                self._heard[k] = time.monotonic()
                self._receive(k, json.loads(line))
        except (OSError, ValueError) as error:
            why = str(error)
        await self._lost(k, why)

    def _receive(self, k: int, message: dict[str, Any]) -> None:
        if "gather" in message and self.leader:
            self._given[message["thread"]][k].append(message)
            self._answer_all(message["thread"])
        elif "gather" in message:
            self._answer(message)
        elif "failed" in message and self._is_first_end():
            self._keep(self._follow(message["failed"]))

    def _answer_all(self, thread: str) -> None:
        """Of the leader: send everybody everything, where all have given something."""
        given = self._given[thread]
        if not all(given.values()):
            return
        first = [given[process].popleft() for process in range(self.num_processes)]
        for process, message in enumerate(first):
            if message["gather"] != first[0]["gather"]:
                self._keep(self._end_out_of_step(process, message["gather"], first[0]["gather"]))
                return
        answer = {**first[0], "value": [message["value"] for message in first]}
        for process in self._writers:
            self._send(process, answer)
        self._answer(answer)

    def _answer(self, message: dict[str, Any]) -> None:
        self._closing |= message["gather"] == _LAST
        self._answers.pop(message["thread"]).set_result(message["value"])

    async def _end_out_of_step(self, process: int, there: str, here: str) -> None:
        message = f"{self.name(process)} is at {there!r} while {self.name(0)} is at {here!r}"
        if await self._announce({"process": None, "message": message, "status": BUG}):
            self._end(f"{self.name()}: {message}", BUG)

    def _is_first_end(self) -> bool:
        """The first end that is met or heard of is the one that counts and is told. Those after
        it are its consequences: who is told ends, and its connection closes."""
        first, self._over = not self._over, True
        return first

    async def _announce(self, failure: dict[str, Any]) -> bool:
        """Of this process; False where another end came first."""
        first = self._is_first_end()
        if first:
            await self._tell({"failed": failure})
        return first

    async def _follow(self, failure: dict[str, Any]) -> None:
        if self.leader:
            await self._tell({"failed": failure}, but=failure["process"])
        message = failure["message"]
        if failure["process"] is not None:
            message = f"ended by {self.name(failure['process'])}: {message}"
        self._end(f"{self.name()}: {message}", failure["status"])

    async def _lost(self, k: int, why: str) -> None:
        if self._closing or not self._is_first_end():
            return
        message = f"{self.name(k)} was lost: {why}{self._advice}"
        if self.leader:  # only it is connected to everybody
            lost = {"process": None, "message": message, "status": LOST}
            del self._writers[k]
            await self._tell({"failed": lost})
        self._end(f"{self.name()}: {message}", LOST)

    async def _watch(self) -> None:
        """Beat, and listen to the others' beats."""
        pause, before = min(1.0, self.heartbeat / 4), time.monotonic()
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

    async def _hang_up(self) -> None:
        """Send what is still to be sent, and end every task."""
        for writer in self._writers.values():
            writer.close()
        for writer in self._writers.values():
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        for task in list(self._tasks):
            task.cancel()
        if self.leader:
            self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    def _send(self, k: int, message: dict[str, Any]) -> None:
        self._writers[k].write(_line(message))

    async def _tell(self, message: dict[str, Any], but: int | None = None) -> None:
        """To all that this process is connected to."""
        for k in self._writers.keys() - {but}:
            self._send(k, message)
        drained = [writer.drain() for writer in self._writers.values()]
        with contextlib.suppress(TimeoutError, OSError):
            await asyncio.wait_for(asyncio.gather(*drained, return_exceptions=True), 1)

    def _end(self, message: str, status: int) -> NoReturn:
        """End this process at once: JAX's own way out waits for all the others."""
        self._ending.acquire()  # never released: one message, one status
        with contextlib.suppress(Exception):
            self._before_end()
        print(f"error: {message}", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(status)


def join(cluster: Cluster, launch: Launch) -> Hosts:
    """Meet the other processes; of one process, nobody.

    Raises `RunError` that names the processes which did not come within ``start_timeout``.
    """
    hosts = Hosts(cluster, launch.heartbeat)
    if hosts.several:
        meet = hosts._meet_as_leader if hosts.leader else hosts._meet_as_member
        try:
            hosts._start(meet(launch.start_timeout))
        except RunError as error:
            raise RunError(f"{_who(cluster)}: {error}", error.status) from None
    return hosts


def _who(cluster: Cluster) -> str:
    return f"process {cluster.process_id} of {cluster.num_processes} on {node_name()}"


def _enumerate(what: str, numbers: Sequence[int]) -> str:
    """``process 3``, ``processes 1, 2 and 5``"""
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    return f"{what}es {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _reason(error: OSError) -> str:
    """In the system's words; asyncio has its own, and no word for what was wrong."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"

"""The policy of another run, from which a run begins: ``--init_from``.

A run is then a function of its config, its seed and this policy, whose digest is recorded. Once the
run has saved a checkpoint, it needs the other run no more.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_scale import algos
from jaxrl_scale.config import Config, files
from jaxrl_scale.errors import RunError
from jaxrl_scale.learning import torsos
from jaxrl_scale.learning.networks import Weights
from jaxrl_scale.loop import state
from jaxrl_scale.loop.state import Agents
from jaxrl_scale.options import traced
from jaxrl_scale.parallel.peers import Peers
from jaxrl_scale.parallel.sums import local_pool
from jaxrl_scale.records import checkpoint, digest, past_run, pieces, run_directory
from jaxrl_scale.types import ActionSpace, Box, EnvSpec
from jaxrl_scale.user_code import is_own


class Origin(NamedTuple):
    """From which policies the agents of a run begin."""

    agents: Agents | None
    """The agents, with the weights that they begin from; None: those of the config."""
    record: dict[str, Any]
    """For ``run.json``: the other run's directory, its iteration, and the digest of the arrays that
    were taken; empty where there is no other run."""

    @property
    def note(self) -> str | None:
        """A line for the user."""
        if not self.record:
            return None
        path = run_directory.short(Path(self.record["run_dir"]))
        return f"begins from the policy of {path} at iteration {self.record['iteration']}"


def find(
    config: Config, spec: EnvSpec, agents: Agents | None, resume: str | Path | None, peers: Peers
) -> Origin:
    """The policies that the run's ``init_from`` names, if it begins and has none saved yet.

    Args:
      resume: the directory of the run, if it was started before. Before its first checkpoint it
        starts again from the same policies.

    Raises:
      RunError: there is no such run or checkpoint, its policies do not fit, or they are not those
        that the run was started from.
    """
    if config.init_from is None:
        return Origin(agents, {})
    known = _known(resume) if peers.leader else None
    saved, before = peers.gather("origin of the run", known)[0]
    if saved:
        return Origin(agents, {})
    named = Path(before["run_dir"] if before else config.init_from)
    path = run_directory.expanded(named).absolute()
    agents = state.agents(config) if agents is None else agents
    policies, record = _read(config, spec, path, len(agents.seeds))
    if before and before["digest"] != record["digest"]:
        raise RunError(
            f"{path} has another policy than the one that this run began from: the newest "
            f"checkpoint is of iteration {record['iteration']}, that one was of "
            f"{before['iteration']}; start a new run"
        )
    if len({*peers.gather("digest of the origin", record["digest"])}) > 1:
        raise RunError(f"the processes of this run find different checkpoints in {path}")
    return Origin(agents._replace(weights=policies), record)


def policy(config: Config) -> dict[str, Any]:
    """The policy from which runs of one agent, with this ``init_from``, begin now: its iteration
    and the digest of its arrays. Raises a `RunError` as `find` does, and where that run has several
    agents."""
    spec = config.make_env().spec
    path = run_directory.expanded(Path(config.init_from or "")).absolute()
    _, record = _read(config, spec, path, 1)
    return {name: record[name] for name in ("iteration", "digest")}


def _known(resume: str | Path | None) -> tuple[bool, dict[str, Any] | None]:
    """Whether a run has saved a checkpoint, and what it recorded of its origin."""
    if resume is None:
        return False, None
    starts = run_directory.read_starts(Path(resume))
    found = [start["init_from"] for start in starts if start.get("init_from")]
    saved = checkpoint.newest(Path(resume) / "checkpoints") is not None
    return saved, found[0] if found else None


_TAKEN = "shared/algo/"


def is_taken(name: str) -> bool:
    """Whether an array of a checkpoint is one of the policy's. The parameters of an algorithm of
    one's own may be one array, ``shared/algo/params`` itself."""
    return f"{name}/".startswith((f"{_TAKEN}params/", f"{_TAKEN}observation/"))


def _read(
    config: Config, spec: EnvSpec, path: Path, num_agents: int
) -> tuple[Weights, dict[str, Any]]:
    """The weights of so many agents, ``[P, ...]``, and what is to be recorded of them."""
    what = f"init_from={run_directory.short(path)}"
    try:
        other = files.read_config(path / "config.json")
    except RunError as error:
        raise RunError(f"{what}: {error}") from None
    found = checkpoint.restore_some(
        path / "checkpoints",
        is_taken,
        lambda text: print(text, file=sys.stderr),
    )
    if found is None:
        raise RunError(f"{what} {past_run.lacks_checkpoint(path)}")
    iteration, arrays, meta = found
    arrays = {name.removeprefix(_TAKEN): x for name, x in arrays.items()}
    wanted = weights(config, spec)
    named = pieces.named_leaves(wanted)
    _check_fit(what, config, other, spec, arrays, named)
    there = len(next(iter(arrays.values())))
    if there not in (1, num_agents):
        counts = "1 agent" if num_agents == 1 else f"1 or {num_agents} agents"
        raise RunError(
            f"{what} has {there} agents and this run {num_agents}; it should have {counts}"
        )
    if failed := meta["progress"]["failed"]:
        first = min(map(int, failed))  # the keys of JSON are texts
        raise RunError(f"{what}: the loss or another metric of agent {first} is not finite there")
    leaves = [np.broadcast_to(arrays[name], (num_agents, *x.shape)) for name, x in named.items()]
    record = {"run_dir": str(path), "iteration": iteration, "digest": digest.of_arrays(arrays)}
    return jax.tree.unflatten(jax.tree.structure(wanted), leaves), record


def weights(config: Config, spec: EnvSpec) -> Weights:
    """Shapes and dtypes of what an agent of this config begins with. Raises a `RunError` where the
    algorithm or the network does not fit the environment. No device is used."""
    algo = algos.make(config, spec, local_pool(config.num_shards))

    def begin() -> Any:
        return algo.init_shared(jax.random.key(0), traced(config.algo))

    shared = jax.eval_shape(begin)
    return Weights(shared.params, shared.observation)


def _check_fit(
    what: str,
    config: Config,
    other: Config,
    spec: EnvSpec,
    arrays: dict[str, np.ndarray],
    wanted: dict[str, Any],
) -> None:
    """Raise a `RunError` unless the other run's arrays are weights of this run's policy."""

    def shape(x: Any, dropped: int) -> str:
        return "missing" if x is None else str(list(x.shape[dropped:]))

    normalized = [
        any(f"{name}/".startswith("observation/") for name in x) for x in (arrays, wanted)
    ]
    if normalized[0] != normalized[1]:
        advice = f"try --algo.normalize_observations={str(normalized[0]).lower()}"
        if not hasattr(config.algo, "normalize_observations"):  # one of one's own
            advice = f"that of {config.algo.name} does{' not' if normalized[0] else ''}"
        raise RunError(
            f"{what}: its policy {'sees' if normalized[0] else 'does not see'} normalized "
            f"observations; {advice}"
        )
    for name in [*wanted, *arrays]:
        shapes = shape(arrays.get(name), 1), shape(wanted.get(name), 0)
        if shapes[0] != shapes[1]:
            raise RunError(
                f"{what}: the policy of that run ({other.algo.name} in {other.env}) is none of "
                f"this one ({config.algo.name} in {config.env}): {name} is {shapes[0]} there and "
                f"{shapes[1]} here"
            )
    if (config.env, config.env_kwargs) != (other.env, other.env_kwargs):
        _check_spaces(what, other, spec)
    if not is_own(config.network) and not is_own(other.network):
        theirs, ours = (torsos.design(x, spec).features.activation for x in (other, config))
        if theirs != ours:
            raise RunError(f"{what}: its activation is {theirs}; try --activation={theirs}")


def _check_spaces(what: str, other: Config, spec: EnvSpec) -> None:
    """Raise a `RunError` where the other run's policy sees or does something else, although its
    arrays have the shapes of this one's. Those for one of five actions are those for one of two and
    one of three; bounds may differ. Of bytes, and of nothing else, networks make numbers from 0 to
    1. An environment that cannot be made here is not compared."""
    try:
        there = other.make_env().spec
    except RunError:
        return
    if _choices(there.action) != _choices(spec.action):
        raise RunError(
            f"{what}: the policy of that run chooses actions of {there.action} in {other.env}; "
            f"here they are of {spec.action}"
        )
    theirs, ours = (np.dtype(each.observation_dtype) for each in (there, spec))
    if (theirs == np.uint8) != (ours == np.uint8):
        raise RunError(
            f"{what}: the policy of that run sees observations of {theirs} in {other.env}; here "
            f"they are of {ours}"
        )


def _choices(space: ActionSpace) -> tuple[bool, tuple[int, ...]]:
    """What a policy chooses: whether numbers of a `Box`, with its shape, or the sizes of parts."""
    return (True, space.shape) if isinstance(space, Box) else (False, space.sizes)

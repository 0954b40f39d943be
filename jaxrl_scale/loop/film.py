"""What episodes look like, picture by picture."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.envs.draw import side_by_side
from jaxrl_scale.errors import RunError
from jaxrl_scale.loop import host_rollout, rollout
from jaxrl_scale.loop.evaluator import LONGEST_EPISODE
from jaxrl_scale.types import Environment, HostEnvironment, Key
from jaxrl_scale.user_code import errors_in_one_line

LONGEST_VIDEO = 1_000
"""Frames of a video of a game on the host, where a game may have a hundred thousand."""

Act = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""``(obs [n, ...], is_first [n]) -> action [n, ...]``, called step by step."""

Pictures = Generator[tuple[np.ndarray, np.ndarray]]
"""Step by step, what ``n`` environments look like, ``[n, height, width, 3]`` uint8, and which of
their first episodes are over, ``[n]`` bool."""


def frames(env: Environment | HostEnvironment, pictures: Pictures) -> list[np.ndarray]:
    """The frames, ``[height, width, 3]`` each, that show all environments side by side. One whose
    episode has ended stands still until all have."""
    made, shown, over = [], None, np.zeros(1, bool)
    with closing(pictures):
        for seen, done in pictures:
            if shown is not None and seen.shape != shown.shape:
                raise _of_two_sizes(env, shown[0], seen[0])
            shown = seen if shown is None else np.where(over[:, None, None, None], shown, seen)
            over = done
            made.append(side_by_side(shown))
    return made


def on_devices(env: Environment, act: Act, key_reset: Key, key_steps: Key, games: int) -> Pictures:
    """Play so many episodes. Raises a `RunError` where the environment cannot be drawn."""
    render = getattr(env, "render", None)
    if render is None:
        raise RunError(
            f"{env.spec.id} has no method render(state) that draws it, so there can be no video"
        )
    game = jax.jit(lambda key: rollout.reset(env, key, games))(key_reset)
    step = jax.jit(lambda keys, game, action: rollout.step(env, keys, game, action))

    def drawn() -> np.ndarray:
        state = jax.tree.map(np.asarray, game.state)
        states = [jax.tree.map(lambda x, k=k: x[k], state) for k in range(games)]
        pictures = [_picture(env, partial(render, state)) for state in states]
        for picture in pictures:
            if picture.shape != pictures[0].shape:
                raise _of_two_sizes(env, pictures[0], picture)
        return np.stack(pictures)

    done = np.zeros(games, bool)
    yield drawn(), done
    for t in range(env.spec.max_episode_steps or LONGEST_EPISODE):
        action = act(np.asarray(game.obs), np.asarray(game.is_first))
        keys = jax.random.split(jax.random.fold_in(key_steps, t), (games, 2))
        game, _ = step(keys, game, jnp.asarray(action))
        done = done | np.asarray(game.ended)
        yield drawn(), done
        if done.all():
            return


def on_host(env: HostEnvironment, act: Act, seed: int, games: int) -> Pictures:
    """As `on_devices`, at most the first `LONGEST_VIDEO` pictures. Game k has ``seed + k``."""
    seeds = (seed + np.arange(games)) % 2**31
    played = host_rollout.play(env, lambda t, *seen: act(*seen), seeds, 1, LONGEST_VIDEO)
    with closing(played):
        for simulator, _, done in itertools.islice(played, LONGEST_VIDEO):
            render = getattr(simulator, "render", None)
            if render is None:
                raise RunError(
                    f"{env.spec.id} has no simulator with render(), so there can be no video"
                )
            yield _picture(env, render, games), done


def _picture(env: Any, render: Callable[[], Any], games: int | None = None) -> np.ndarray:
    """What an environment, which may be the user's, looks like, or so many games of it, checked."""
    what = f"{env.spec.id}: render"
    with errors_in_one_line(what):
        picture = np.asarray(render())
    several = () if games is None else (games,)
    fits = picture.dtype == np.uint8 and picture.ndim == len(several) + 3 and picture.size
    if not fits or picture.shape[:-3] != several or picture.shape[-1] != 3:
        shape = ", ".join(map(str, picture.shape))
        wanted = ", ".join(map(str, (*several, "height", "width", 3)))
        raise RunError(
            f"{what} returned {picture.dtype} [{shape}]; it should return uint8 [{wanted}]"
        )
    return picture


def _of_two_sizes(env: Any, *pictures: np.ndarray) -> RunError:
    sizes = " and ".join(str(list(picture.shape)) for picture in pictures)
    return RunError(
        f"{env.spec.id}: render returned pictures of two sizes, {sizes}; all should have one"
    )

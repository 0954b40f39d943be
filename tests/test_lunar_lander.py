"""LunarLander against Gymnasium's, whose physics is Box2D, and its parts against hand-worked
numbers.

Both get the same numbers: what Gymnasium draws in an episode is drawn again from its seed.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from gymnasium.utils import seeding
from running import AS_USERS, differing

from jaxrl_scale import envs
from jaxrl_scale.envs import lunar_lander_physics as physics
from jaxrl_scale.envs import rigid_body
from jaxrl_scale.envs.lunar_lander import INITIAL_RANDOM, LunarLander, LunarLanderState
from jaxrl_scale.envs.rigid_body import Motion, Polygon, Vec

LANES = 24  # environments at once, everywhere: a step compiles for seconds, for each size
STEPS = 70  # of a flight; none has touched the ground after 50
PLAIN, WINDY = LunarLander(), LunarLander(continuous=True, enable_wind=True)
PRECISE = LunarLander(velocity_iterations=200, position_iterations=60)


# --- ours -------------------------------------------------------------------------------


@functools.cache
def starting(env):
    return jax.jit(jax.vmap(env.start))


@functools.cache
def moving(env):
    return jax.jit(jax.vmap(env.move))


def in_lanes(f, *trees):
    """``f`` on `LANES` elements after the other."""
    number = len(jax.tree.leaves(trees)[0])
    assert number % LANES == 0
    parts = [
        f(*jax.tree.map(lambda x, first=first: x[first : first + LANES], trees))
        for first in range(0, number, LANES)
    ]
    return jax.tree.map(lambda *some: np.concatenate(some), *parts)


def stacked(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def replayed(env, state, actions, noise):
    """Time steps ``[N, T]`` of ours and the last state."""
    out = []
    for k in range(actions.shape[1]):
        state, time_step = in_lanes(moving(env), state, actions[:, k], noise[:, k])
        out.append(time_step)
    return state, jax.tree.map(lambda *some: np.stack(some, axis=1), *out)


def moved(state, *, to=None, by=(0.0, 0.0), turned=0.0, velocity=(0.0, 0.0)):
    """The landers in other places: ``to`` is for the hull's centre of mass, ``turned`` about
    it in rad, and all bodies get the one velocity. Numbers or ``[N]``."""
    motion = jax.tree.map(np.asarray, state.world.motion)
    cos, sin = np.cos(turned), np.sin(turned)
    x0, y0 = motion.center.x[:, :1], motion.center.y[:, :1]
    dx, dy = motion.center.x - x0, motion.center.y - y0
    x1, y1 = (x0, y0) if to is None else to
    column = [np.reshape(np.broadcast_to(b, len(x0)), (-1, 1)) for b in (*by, *velocity)]
    center = Vec(
        x1 + column[0] + cos * dx - sin * dy,
        y1 + column[1] + sin * dx + cos * dy,
    )
    speed = Vec(column[2] + 0 * dx, column[3] + 0 * dx)
    motion = Motion(center, motion.angle + turned, speed, 0 * dx)
    motion = jax.tree.map(lambda x: x.astype(np.float32), motion)
    return state._replace(world=state.world._replace(motion=motion))


def above_flat_ground(gap, velocity=(0.0, 0.0)):
    """Landers upright, their feet ``gap`` (m, ``[LANES]``) above the ground."""
    heights = np.full((LANES, 12), physics.HEIGHT / 4, np.float32)
    state, _ = starting(PLAIN)(heights, np.zeros((LANES, 2), np.float32))
    angle = np.asarray(state.world.motion.angle[:, 1])
    half = np.array([2, 8]) / physics.SCALE  # of a leg
    foot = state.world.motion.center.y[:, 1] - half[1] * np.cos(angle) - half[0] * np.sin(angle)
    return moved(state, by=(0.0, gap - (foot - state.ground[:, 5])), velocity=velocity)


def left_alone(state, steps):
    """States and time steps, each as a list, with the engines off."""
    idle, calm = np.zeros(LANES, np.int32), np.zeros((LANES, 2), np.float32)
    states, out = [], []
    for _ in range(steps):
        state, time_step = moving(PLAIN)(state, idle, calm)
        states.append(state)
        out.append(time_step)
    return states, out


# --- Gymnasium's ------------------------------------------------------------------------


def judge(**options):
    """Gymnasium's environment; the test is skipped where Box2D is not installed."""
    pytest.importorskip("Box2D")
    return gymnasium.make("LunarLander-v3", **options).unwrapped


def patient_judge(monkeypatch, rounds=3000, **options):
    """`judge` whose Box2D is given more rounds to solve for velocities than Gymnasium's 180,
    which leave a joint at its limit unsolved now and then."""
    box2d = pytest.importorskip("Box2D")

    class World(box2d.b2World):
        def Step(self, duration, velocity_rounds, position_rounds):
            super().Step(duration, rounds, position_rounds)

    monkeypatch.setattr(box2d, "b2World", World)
    return judge(**options)


@pytest.fixture
def converged(monkeypatch):
    return patient_judge(monkeypatch)


def heuristic(env, obs):
    from gymnasium.envs.box2d import lunar_lander

    return lunar_lander.heuristic(env, obs)


class Drawn(NamedTuple):
    """The random numbers of an episode."""

    heights: np.ndarray  # [12]
    force: np.ndarray  # [2]
    wind: np.ndarray  # [2]
    noise: np.ndarray  # [T, 2]


def drawn(seed, steps=0, wind=False):
    rng, _ = seeding.np_random(seed)
    heights = rng.uniform(0, physics.HEIGHT / 2, 12)
    force = rng.uniform(-INITIAL_RANDOM, INITIAL_RANDOM, 2)
    begins = [rng.integers(-9999, 9999) if wind else 0 for _ in range(2)]
    rng.uniform(-1, 1, 2)  # for the step that Gymnasium hides in a reset
    noise = rng.uniform(-1, 1, (steps, 2))
    return Drawn(
        heights.astype(np.float32),
        force.astype(np.float32),
        np.array(begins, np.int32),
        noise.astype(np.float32),
    )


def state_of(env):
    """Our state with what Gymnasium's consists of now."""
    bodies = [env.lander, *env.legs]

    def vec(points):
        return Vec(*np.array([tuple(p) for p in points], np.float32).T)

    motion = Motion(
        vec(body.worldCenter for body in bodies),
        np.array([body.angle for body in bodies], np.float32),
        vec(body.linearVelocity for body in bodies),
        np.array([body.angularVelocity for body in bodies], np.float32),
    )
    # Box2D keeps the impulses of motor and limit apart.
    torques = [leg.joint.GetMotorTorque(1.0) + leg.joint.GetReactionTorque(1.0) for leg in env.legs]
    ground = ground_of(env)
    return LunarLanderState(
        physics.World(
            motion,
            np.array(torques, np.float32),
            contacts_of(env, motion, ground),
            np.bool_(False),
            np.float32(0),
        ),
        ground=ground,
        legs_down=np.array([bool(leg.ground_contact) for leg in env.legs]),
        shaping=np.float32(env.prev_shaping),
        engines=np.zeros(2, np.float32),
        wind_index=np.int32(0),
        torque_index=np.int32(0),
    )


def contacts_of(env, motion, ground):
    """The contacts of Gymnasium's legs, with the impulses that Box2D remembers.

    Its points are named otherwise than ours, so each is given to our nearest.
    """
    corner = np.clip(np.round(motion.center.x[1:] / physics.CHUNK), 1, 9).astype(np.int32)
    edge = np.stack([corner - corner % 2, corner - 1 + corner % 2])  # the even one, the odd one
    touching = np.zeros((2, 2), bool)
    key = np.full((2, 2, 2), -1, np.int32)
    impulses = np.zeros((2, 2, 2, 2), np.float32)  # along normal and tangent
    found = None
    for leg, body in enumerate(env.legs):
        for contact in (at.contact for at in body.contacts if at.contact.touching):
            number = round(contact.fixtureA.shape.vertices[0][0] / physics.CHUNK)
            slot = number % 2
            if edge[slot, leg] != number:
                continue
            found = found or jax.tree.map(np.asarray, manifolds(motion, ground))
            touching[slot, leg] = True
            world = contact.worldManifold.points
            for point in range(contact.manifold.pointCount):
                ours = np.hypot(
                    found.point.x[:, slot, leg] - world[point][0],
                    found.point.y[:, slot, leg] - world[point][1],
                ).argmin()
                theirs = contact.manifold.points[point]
                key[ours, slot, leg] = found.key[ours, slot, leg]
                impulses[:, ours, slot, leg] = theirs.normalImpulse, theirs.tangentImpulse
    return physics.Contacts(edge, touching, key, impulses[0], impulses[1])


@jax.jit
def manifolds(motion, ground):
    """Of both legs with the edges below them."""
    legs = slice(1, 3)
    _, v1, v2 = physics.edges(ground, motion.center.x[legs])
    turned = rigid_body.rotation(motion.angle)
    corners, normals = rigid_body.outline(physics.LEG, motion.center[legs], turned[legs])
    return rigid_body.collide(corners[:, None], normals[:, None], motion.center[legs], v1, v2)


def ground_of(env):
    corners = [polygon[0] for polygon in env.sky_polys] + [env.sky_polys[-1][1]]
    return np.array([y for _, y in corners], np.float32)


class Flight(NamedTuple):
    """Gymnasium's, until something touches the ground."""

    drawn: Drawn
    actions: np.ndarray  # [T]
    obs: np.ndarray  # [T, 8]
    reward: np.ndarray  # [T]
    aloft: np.ndarray  # [T] bool: it has not touched


def flight(env, seed, actions):
    out = Flight(
        drawn(seed, STEPS, env.enable_wind),
        actions,
        np.zeros((STEPS, 8)),
        np.zeros(STEPS),
        np.zeros(STEPS, bool),
    )
    env.reset(seed=seed)
    for k, action in enumerate(actions):
        obs, reward, terminated, _, _ = env.step(action)
        if terminated or obs[6] or obs[7]:
            break
        out.obs[k], out.reward[k], out.aloft[k] = obs, reward, True
    return out


class Errors(NamedTuple):
    """The greatest of each flight, ``[N]``."""

    obs: np.ndarray
    reward: np.ndarray


def errors_of(env, flights):
    """Of our flights with the same random numbers and actions."""
    flights = stacked(flights)
    assert flights.aloft.sum(1).min() > 45, "there is something to see"
    state, _ = in_lanes(starting(env), *flights.drawn[:3])
    _, ours = replayed(env, state, flights.actions, flights.drawn.noise)
    obs = np.abs(ours.obs - flights.obs).max(2)
    reward = np.abs(ours.reward - flights.reward)
    return Errors(*(np.where(flights.aloft, error, 0).max(1) for error in (obs, reward)))


class Moment(NamedTuple):
    """One step of Gymnasium's."""

    before: LunarLanderState
    action: Any
    noise: np.ndarray
    after: LunarLanderState
    obs: np.ndarray
    reward: float


def moments(env, seed, policy, continuous_collision=True):
    """An episode without its last step."""
    obs, _ = env.reset(seed=seed)
    env.world.continuousPhysics = continuous_collision
    before = state_of(env)
    for noise in drawn(seed, 400).noise:
        action = np.int32(policy(env, obs))
        obs, reward, terminated, _, _ = env.step(action)
        if terminated:
            return
        after = state_of(env)
        yield Moment(before, action, noise, after, obs, reward)
        before = after


def first_touch(episode):
    """Which step was the first that a leg ended on the ground."""
    return next((k for k, moment in enumerate(episode) if moment.obs[6:].any()), None)


def contact_moments(env, policy, seeds, each):
    """The first steps ``each`` episode begins on the ground with, as one `Moment` ``[N]``."""
    found = []
    for seed in seeds:
        episode = list(moments(env, seed, policy))
        touch = first_touch(episode)
        if touch is not None:
            found += episode[touch + 1 : touch + 1 + each]
    return stacked(found[: len(found) // LANES * LANES])


# --- shapes, joints and parameters ------------------------------------------------------


def test_masses_shapes_and_joints_are_those_of_box2d():
    env = judge()
    env.reset(seed=0)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)
    for number, body in enumerate([env.lander, *env.legs]):
        center = np.array(tuple(body.localCenter))
        close(physics.MASS[number], body.mass)
        close(physics.CENTER[number], center)
        # Box2D tells the inertia about the body's origin.
        close(physics.INERTIA[number], body.inertia - body.mass * center @ center)
        ours = {tuple(np.round(c, 5)) for c in (physics.HULL, physics.LEG)[number > 0].corners}
        assert ours == {tuple(np.round(c, 5)) for c in body.fixtures[0].shape.vertices}
    for number, leg in enumerate(env.legs):
        joint = leg.joint
        close(physics.ANCHOR[0], tuple(joint.GetLocalAnchorA()))
        close(physics.ANCHOR[1 + number], tuple(joint.GetLocalAnchorB()))
        close(physics.REST_ANGLE[number], joint.GetReferenceAngle())
        close(physics.LIMITS[number], joint.limits)
        close(physics.MOTOR_SPEED[number], joint.motorSpeed)
        close(physics.MOTOR_IMPULSE, joint.GetMaxMotorTorque() * physics.DT)
        assert joint.motorEnabled
        assert joint.limitEnabled


def test_the_friction_is_that_of_a_contact_in_box2d():
    env = judge()
    obs, _ = env.reset(seed=0)
    while not obs[6:].any():
        obs, *_ = env.step(0)
    contacts = [at.contact for leg in env.legs for at in leg.contacts if at.contact.touching]
    assert contacts
    for contact in contacts:
        np.testing.assert_allclose(physics.FRICTION, contact.friction, rtol=1e-6)
        assert contact.restitution == 0


@pytest.mark.parametrize("gravity", [0.0, 1.0, -12.0, math.nan])
def test_a_gravity_that_gymnasium_refuses_is_refused_in_one_line(gravity):
    with pytest.raises(ValueError, match=r"gravity=.* should be between -12 and 0") as caught:
        envs.make("LunarLander-v3", gravity=gravity)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("parameter", [{"wind_power": 20.5}, {"turbulence_power": -0.1}])
def test_a_wind_that_gymnasium_warns_of_is_warned_of(parameter):
    with pytest.warns(UserWarning, match=f"{next(iter(parameter))} is recommended"):
        envs.make("LunarLander-v3", enable_wind=True, **parameter)


# --- beginning and flight ---------------------------------------------------------------


class Told(LunarLander):
    """Returns what it draws instead of what comes of it."""

    def start(self, heights, force, wind=None):
        return heights, force, wind

    def move(self, state, action, noise):
        return noise


def test_what_is_drawn_is_uniform_between_gymnasiums_ends_and_all_of_it_by_itself():
    keys = jax.random.split(jax.random.key(0), 4000)
    heights, force, wind = jax.vmap(Told(enable_wind=True).reset)(keys)
    noise = jax.vmap(lambda key: Told().step(key, None, 0))(keys)
    ends = {0: physics.HEIGHT / 2, -INITIAL_RANDOM: INITIAL_RANDOM, -9999: 9999, -1: 1}
    parts = [
        (np.asarray(x, float) - low) / (high - low)
        for x, (low, high) in zip((heights, force, wind, noise), ends.items(), strict=True)
    ]
    assert [part.shape[1] for part in parts] == [12, 2, 2, 2]
    for column in np.concatenate(parts, 1).T:
        assert scipy.stats.kstest(column, "uniform").pvalue > 1e-4
    of_a_reset = np.corrcoef(np.concatenate(parts[:3], 1).T)
    assert np.abs(of_a_reset - np.eye(16)).max() < 0.1
    assert Told().reset(keys[0])[2] is None


@pytest.mark.parametrize("rounds", [180, 3000])
def test_an_episode_begins_where_gymnasiums_begins(rounds, monkeypatch):
    env = patient_judge(monkeypatch, rounds)
    forces = np.stack([drawn(seed).force for seed in range(2_000)])
    corners = itertools.product((-1, 1), (-1, 1))
    extreme = {int(np.argmax(forces @ np.array(corner))) for corner in corners}
    assert np.abs(forces[sorted(extreme)]).min() > 0.9 * INITIAL_RANDOM
    seeds = [*extreme, *range(3 * LANES - len(extreme))]
    theirs = []
    for seed in seeds:
        obs, _ = env.reset(seed=seed)
        theirs.append((state_of(env), obs))
    theirs, obs = stacked(theirs)
    numbers = stacked([drawn(seed) for seed in seeds])
    ours, our_obs = in_lanes(starting(PLAIN), *numbers[:3])

    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5)
    close(our_obs, obs)
    close(ours.ground, theirs.ground)
    ours, theirs = ours.world, theirs.world
    close(ours.torque, theirs.torque)
    legs = [world.motion.spin[:, 1:] for world in (ours, theirs)]
    close(*legs, atol=5e-5 if rounds == 180 else 1e-5)
    spins = [world.motion.spin[:, 0] for world in (ours, theirs)]
    close(*spins)
    jax.tree.map(close, ours.motion._replace(spin=0), theirs.motion._replace(spin=0))


def test_a_flight_follows_gymnasiums():
    env, rng = judge(), np.random.default_rng(0)
    flights = [flight(env, s, rng.integers(0, 4, STEPS).astype(np.int32)) for s in range(3 * LANES)]
    errors = errors_of(PLAIN, flights)
    assert np.median(errors.obs) < 1e-4
    assert errors.obs.max() < 1e-2  # a few, by one and the same number: see the next test
    assert np.median(errors.reward) < 5e-3  # a hundred times the differences of observations
    assert np.quantile(errors.reward, 0.9) < 2e-2


def test_every_flight_follows_box2d_when_it_converges(converged):
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 4, (2 * LANES, STEPS)).astype(np.int32)
    errors = errors_of(PLAIN, [flight(converged, seed, a) for seed, a in enumerate(actions)])
    assert errors.obs.max() < 2e-4
    assert errors.reward.max() < 2e-2


def test_flights_in_the_wind_with_continuous_actions_follow_box2d(monkeypatch):
    env = patient_judge(monkeypatch, continuous=True, enable_wind=True)
    rng = np.random.default_rng(1)
    actions = rng.uniform(-1.5, 1.5, (2 * LANES, STEPS, 2)).astype(np.float32)
    actions[:, ::7] = np.round(actions[:, ::7] * 2) / 2  # just where the engines start
    flights = [flight(env, seed, a) for seed, a in enumerate(actions)]
    errors = errors_of(WINDY, flights)
    assert np.median(errors.obs) < 1e-4
    assert errors.obs.max() < 2e-4
    assert errors.reward.max() < 2e-2
    other = [f._replace(drawn=f.drawn._replace(wind=f.drawn.wind + 50)) for f in flights]
    assert np.median(errors_of(WINDY, other).obs) > 1e-2, "the wind was felt"


def test_the_wind_pauses_while_a_leg_is_down():
    state = above_flat_ground(np.full(LANES, 1.0))
    down = np.zeros((LANES, 2), bool)
    down[1, 0] = down[2, 1] = down[3, :] = True
    begin = np.full(LANES, 7, np.int32)
    state = state._replace(legs_down=down, wind_index=begin, torque_index=-begin)
    idle = np.zeros((LANES, 2), np.float32)
    new, _ = moving(WINDY)(state, idle, idle)
    np.testing.assert_array_equal(new.wind_index[:5], [8, 7, 7, 7, 8])
    np.testing.assert_array_equal(new.torque_index[:5], [-6, -7, -7, -7, -6])
    speed = np.asarray(new.world.motion.velocity.x[:, 0])
    assert np.abs(speed[[0, 4]]).min() > 1e-3
    assert np.abs(speed[1:4]).max() < 1e-4


# --- continuous actions -----------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_action_that_is_not_finite_is_refused(bad):
    state = jax.eval_shape(WINDY.reset, jax.random.key(0))[0]  # it is not looked at
    for action in (np.array([0.0, bad], np.float32), jnp.array([bad, 0.0])):
        with pytest.raises(ValueError, match=r"an action is two finite numbers"):
            WINDY.step(jax.random.key(0), state, action)


def test_in_compiled_code_infinity_is_full_power_and_nan_is_none():
    state = above_flat_ground(np.full(LANES, 1.0))
    actions = np.zeros((LANES, 2), np.float32)
    pairs = [
        ((math.inf, math.inf), (1, 1)),
        ((-math.inf, -math.inf), (-1, -1)),
        ((math.nan, 0.8), (-1, 0.8)),
        ((0.3, math.nan), (0.3, 0)),
    ]
    for number, pair in enumerate(pairs):
        actions[2 * number : 2 * number + 2] = pair
    new, out = moving(WINDY)(state, actions, np.full((LANES, 2), 0.5, np.float32))
    for leaf in jax.tree.leaves((new, out)):
        assert np.isfinite(leaf).all()
        for number in range(len(pairs)):
            np.testing.assert_array_equal(leaf[2 * number], leaf[2 * number + 1])
    speed = np.asarray(new.world.motion.velocity.x[:, 0])
    assert len(np.unique(speed[[0, 2, 4, 6]])) == 4, "the actions differed"


# --- contacts ---------------------------------------------------------------------------


def random_policy(env, obs):
    return int(np.random.default_rng(obs.view(np.uint32)).integers(4))


def hull_errors(env, found):
    """Of the hull's velocity and spin after one step, and which flags of legs are equal."""
    new, ours = in_lanes(moving(env), found.before, found.action, found.noise)
    parts = [
        np.abs(get(new.world.motion)[:, 0] - get(found.after.world.motion)[:, 0])
        for get in (lambda m: m.velocity.x, lambda m: m.velocity.y, lambda m: m.spin)
    ]
    error, equal = np.max(parts, axis=0), (ours.obs[:, 6:] == found.obs[:, 6:]).all(1)
    quantiles = np.quantile(error, [0.5, 0.75, 0.9, 0.95, 1])
    print(  # for pytest -s
        f"{len(error)} contact steps: hull velocity (m/s) and spin (rad/s) differ by at most "
        + ", ".join(f"{x:.2g}" for x in quantiles)
        + f" at 50, 75, 90, 95, 100 %; flags equal in {equal.mean():.1%}"
    )
    return error, equal


def change_of(found):
    """Of the hull's vertical velocity (m/s)."""
    before, after = found.before.world.motion, found.after.world.motion
    return np.abs(after.velocity.y[:, 0] - before.velocity.y[:, 0])


def test_a_hard_contact_is_solved_as_box2d_does_when_it_converges(converged):
    """Random play: legs hit the ground at up to 12 m/s, slide, and are at their limits."""
    found = contact_moments(converged, random_policy, range(90), each=8)
    assert len(found.reward) > 80
    assert np.quantile(change_of(found), 0.95) > 3
    error, equal = hull_errors(PRECISE, found)
    assert np.median(error) < 1e-4
    assert np.quantile(error, 0.9) < 2e-3
    assert equal.mean() > 0.9


def test_a_soft_contact_is_solved_as_box2d_does_when_it_converges(converged):
    found = contact_moments(converged, heuristic, range(12), each=24)
    assert len(found.reward) > 200
    error, equal = hull_errors(PRECISE, found)
    assert np.median(error) < 1e-4
    assert np.quantile(error, 0.9) < 5e-3
    assert equal.mean() > 0.97


def test_a_contact_is_solved_nearly_as_in_gymnasium():
    """Box2D stops before it converges."""
    found = contact_moments(judge(), heuristic, range(16), each=24)
    assert len(found.reward) > 300
    error, equal = hull_errors(PLAIN, found)
    assert np.median(error) < 0.03
    assert np.quantile(error, 0.9) < 0.3
    assert equal.mean() > 0.97


def test_a_landing_follows_box2d_when_it_converges(converged):
    """From before the first contact on. Without Box2D's continuous collision, since only
    contacts without it can be compared in detail: where ours has one, a flight goes apart."""
    length, found = 20, []
    for seed in range(LANES + 4):
        episode = list(moments(converged, seed, heuristic, continuous_collision=False))
        touch = first_touch(episode)
        if touch is not None and touch + length < len(episode):
            found.append(stacked(episode[touch - 1 : touch - 1 + length]))
    found = stacked(found[:LANES])
    start = jax.tree.map(lambda x: x[:, 0], found.before)
    _, ours = replayed(PRECISE, start, found.action, found.noise)
    error = np.abs(ours.obs - found.obs)[..., :6].max(2)
    assert np.median(error[:, :6].max(1)) < 1e-3
    assert np.median(error.max(1)) < 1e-2
    flags = np.abs(ours.obs - found.obs)[..., 6:].max(2)
    assert flags.mean() < 0.1


# --- flags of legs ----------------------------------------------------------------------


@functools.cache
def at_rest():
    """Landers from a few centimetres up until they sleep: states, and time steps ``[T, N]``."""
    return left_alone(above_flat_ground(np.linspace(0.01, 0.05, LANES)), 150)


def test_a_flag_of_a_leg_changes_with_events_only():
    """Gymnasium's rule: an end of a contact lowers it, then a begin does not count; a begin
    raises it; and else it stays, whether the leg touches or not."""
    states, _ = at_rest()
    state = states[40]
    assert np.asarray(state.legs_down).all()
    contacts = jax.tree.map(np.array, state.world.contacts)
    assert contacts.touching.any(1).all()
    down = np.array(state.legs_down)
    contacts.edge[0, :, 0] -= 2  # was on other edges: a contact ends and one begins
    down[1] = False  # no event
    contacts.touching[2, :, 1] = False  # was in the air: a contact begins
    down[2, 1] = False
    shaping = state.shaping + 10 * (down.sum(1) - 2)
    state = state._replace(world=state.world._replace(contacts=contacts), legs_down=down)
    after, out = left_alone(state._replace(shaping=shaping), 2)
    expected = [[0, 1], [0, 0], [1, 1], [1, 1]]
    np.testing.assert_array_equal(out[0].obs[:4, 6:], expected)
    np.testing.assert_array_equal(out[1].obs[:4, 6:], expected)
    np.testing.assert_array_equal(after[0].legs_down[:4], np.array(expected, bool))
    # Ten points are paid for each leg that comes down, and taken back.
    np.testing.assert_allclose(out[0].reward[:4], [-10, 0, 10, 0], atol=1)


def test_the_flag_of_a_leg_that_leaves_the_ground_is_lowered():
    states, _ = at_rest()
    risen = moved(states[40], by=(0.0, 0.2))
    _, out = left_alone(risen, 1)
    np.testing.assert_array_equal(out[0].obs[:, 6:], 0)


def test_a_leg_that_enters_the_ground_in_mid_step_is_stopped_there_and_its_flag_raised():
    speed = np.where(np.arange(LANES) % 2, -3.0, -0.1)
    state = above_flat_ground(np.full(LANES, 0.04), (0.0, speed))
    states, out = left_alone(state, 1)
    fast = speed < -1
    np.testing.assert_array_equal(out[0].obs[:, 6], fast)
    np.testing.assert_array_equal(out[0].obs[:, 7], fast)
    np.testing.assert_array_equal(states[0].legs_down, np.stack([fast, fast], 1))
    fallen = np.asarray(state.world.motion.center.y - states[0].world.motion.center.y)
    assert fallen[fast, 0].min() > 0.06, "the hull goes on"
    assert fallen[fast, 1:].max() < 0.055, "the legs do not"
    assert not np.asarray(out[0].terminated).any()


def test_a_lander_that_slides_is_slowed_by_friction():
    states, _ = at_rest()
    sliding, _ = left_alone(moved(states[50], velocity=(1.5, 0.0)), 40)
    speed = np.array([state.world.motion.velocity.x[:, 0] for state in sliding])
    lost = speed[9] - speed[39]  # once both legs slide
    np.testing.assert_allclose(lost, 30 * physics.DT * 10.0 * physics.FRICTION, rtol=0.1)


# --- ends of episodes -------------------------------------------------------------------


def is_calm(motion):
    """As Box2D has it, each of the bodies: at most 1 cm/s and 2°/s."""
    speed = np.hypot(motion.velocity.x, motion.velocity.y)
    return ((speed <= 0.01) & (np.abs(motion.spin) <= math.radians(2))).all(1)


def test_a_lander_at_rest_sleeps_after_half_a_second_and_that_is_success():
    states, out = at_rest()
    terminated = np.stack([o.terminated for o in out])
    reward = np.stack([o.reward for o in out])
    calm = np.stack([is_calm(state.world.motion) for state in states])
    assert terminated.any(0).all()
    first = terminated.argmax(0)
    for lane, k in enumerate(first):
        assert reward[k, lane] == 100
        moved_last = np.flatnonzero(~calm[: k + 1, lane]).max()
        assert 25 <= k - moved_last <= 28  # a bit more where a leg is still being pushed out
    assert np.abs(reward[1 : first.min()]).max() < 30
    np.testing.assert_array_equal(np.asarray(out[int(first.max())].obs[:, 6:]), 1)


def test_a_lander_on_its_head_has_crashed():
    state = above_flat_ground(np.full(LANES, 0.0))
    upside_down = moved(state, turned=math.pi, by=(0.0, np.linspace(0.0, 0.3, LANES)))
    _, out = left_alone(upside_down, 40)
    terminated = np.stack([o.terminated for o in out])
    assert terminated.any(0).all()
    first = terminated.argmax(0)
    assert first.min() > 1
    np.testing.assert_array_equal(
        np.stack([o.reward for o in out])[first, np.arange(LANES)], -100.0
    )


def test_a_lander_that_leaves_the_picture_is_lost():
    state = above_flat_ground(np.full(LANES, 5.0))
    side = np.where(np.arange(LANES) % 2, 1.0, -1.0)
    x = physics.WIDTH / 2 * (1 + side * np.linspace(0.95, 0.999, LANES))
    state = moved(state, to=(x[:, None], 8.0), velocity=(10.0 * side, 0.0))
    _, out = left_alone(state, 3)
    seen = np.stack([o.obs[:, 0] for o in out])
    terminated = np.stack([o.terminated for o in out])
    np.testing.assert_array_equal(terminated, np.abs(seen) >= 1)
    assert terminated.any()
    assert not terminated.all()
    np.testing.assert_array_equal(np.stack([o.reward for o in out])[terminated], -100.0)


# --- what the solver remembers ----------------------------------------------------------


def test_one_round_is_enough_for_a_lander_at_rest_since_impulses_are_remembered():
    states, _ = at_rest()
    one_round = moving(LunarLander(velocity_iterations=1))
    idle, calm = np.zeros(LANES, np.int32), np.zeros((LANES, 2), np.float32)

    def speed(state):
        _, out = one_round(state, idle, calm)
        return np.abs(out.obs[:, 2:6]).max(1)

    state = states[60]
    assert speed(state).max() < 3e-3
    contacts = state.world.contacts
    forgotten = contacts._replace(normal=0 * contacts.normal, tangent=0 * contacts.tangent)
    assert speed(state._replace(world=state.world._replace(contacts=forgotten))).min() > 1e-2


# --- batches ----------------------------------------------------------------------------


@pytest.mark.as_users
def test_a_lander_does_the_same_in_a_batch_of_any_size():
    """To the last bit, since a run must not depend on where its environments are placed: two of
    them by themselves, and the same two among those of three agents."""
    rng = np.random.default_rng(3)
    numbers = stacked([drawn(seed) for seed in range(LANES)])
    state, _ = starting(PLAIN)(*numbers[:3])
    actions = rng.integers(0, 4, (150, LANES)).astype(np.int32)
    noise = rng.uniform(-1, 1, (150, LANES, 2)).astype(np.float32)

    def unroll(step, state, part):
        history = []
        for action, some in zip(actions, noise, strict=True):
            state, out = step(state, part(action), part(some))
            history.append((state, out))
        return stacked(history)

    def by_agent(x):
        return x.reshape(3, LANES // 3, *x.shape[1:])

    move = jax.jit(jax.vmap(jax.vmap(PLAIN.move)), compiler_options=AS_USERS)
    agents = unroll(move, jax.tree.map(by_agent, state), by_agent)
    assert agents[0].world.contacts.touching.sum() > 100, "there were contacts"
    place = slice(5, 7)
    move = jax.jit(jax.vmap(PLAIN.move), compiler_options=AS_USERS)
    apart = unroll(move, jax.tree.map(lambda x: x[place], state), lambda x: x[place])
    together = jax.tree.map(lambda x: x.reshape(len(x), LANES, *x.shape[3:]), agents)
    assert differing(apart, jax.tree.map(lambda x: x[:, place], together)) == []


# --- pictures ---------------------------------------------------------------------------


@pytest.fixture
def filmed(monkeypatch):
    """Gymnasium's after a flight without engines."""
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("SDL_AUDIODRIVER", "dummy")
    env = judge(render_mode="rgb_array")
    env.reset(seed=4)
    for _ in range(30):
        env.step(0)
    yield env
    env.close()


def test_a_picture_is_that_of_gymnasium(filmed):
    """Nearly: edges are smoothed in another way, and Gymnasium rounds to whole pixels."""
    ours, theirs = PLAIN.render(state_of(filmed)), filmed.render()
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert np.abs(ours.astype(int) - theirs).mean() < 3


def test_a_flame_is_drawn_where_an_engine_fires(filmed):
    state = state_of(filmed)
    dark = PLAIN.render(state).astype(int)
    place = [state.world.motion.center.x[0], state.world.motion.center.y[0]] * np.array(
        [physics.SCALE, physics.SCALE]
    )
    row, column = 400 - place[1], place[0]

    def flame(engines):
        lit = PLAIN.render(state._replace(engines=np.array(engines, np.float32))).astype(int)
        changed = np.argwhere((lit != dark).any(2))
        red = lit[..., 0] - lit[..., 1:].max(2) > 60
        return changed - [row, column], red.sum() - (dark[..., 0] - dark[..., 1:].max(2) > 60).sum()

    below, red = flame([1.0, 0.0])
    assert red > 20
    assert below[:, 0].min() > 0, "under the hull"
    assert np.abs(below).max() < 60
    for side in (-1.0, 1.0):
        beside, red = flame([0.0, side])
        assert red > 20
        assert np.median(beside[:, 1]) * side < -10, "away from where it pushes"


# --- rigid bodies -----------------------------------------------------------------------


def test_mass_properties_of_a_square_and_of_a_triangle():
    square = Polygon(((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)), density=2.0)
    mass, center, inertia = square.mass_properties
    np.testing.assert_allclose([mass, *center, inertia], [2, 1 / 2, 1 / 2, 2 / 6], rtol=1e-12)
    # A right triangle with legs 3 and 4: inertia m (a² + b²) / 18 about its centre of mass.
    triangle = Polygon(((0.0, 0.0), (3.0, 0.0), (0.0, 4.0)), density=1.0)
    mass, center, inertia = triangle.mass_properties
    np.testing.assert_allclose([mass, *center, inertia], [6, 1, 4 / 3, 6 * 25 / 18], rtol=1e-12)
    np.testing.assert_allclose(triangle.normals, [(0, -1), (0.8, 0.6), (-1, 0)], atol=1e-12)


def solved_with_joints(masses, inertias, offset, force, torques):
    """Velocities of three free bodies (x, y, ω each) and two joints, as one linear system;
    the force is on the first body, at the pin."""
    weights = np.diag([w for m, i in zip(masses, inertias, strict=True) for w in (m, m, i)])
    pinned = np.zeros((4, 9))  # the velocity of the pin seen from a leg less that from the hull
    for leg in (1, 2):
        for body, sign in ((leg, 1), (0, -1)):
            x, y = offset[body]
            rows = pinned[2 * leg - 2 : 2 * leg, 3 * body : 3 * body + 3]
            rows += sign * np.array([[1, 0, y], [0, 1, -x]])
    impulse = np.zeros(9)
    impulse[:2] = force
    impulse[2::3] = torques
    impulse[2] += -offset[0][0] * force[1] + offset[0][1] * force[0]
    system = np.block([[weights, pinned.T], [pinned, np.zeros((4, 4))]])
    v = np.linalg.solve(system, np.concatenate([impulse, np.zeros(4)]))[:9]
    x, y = offset[0]
    return np.array([v[0] + y * v[2], v[1] - x * v[2], v[2], v[5], v[8]])


def test_pinned_bodies_respond_as_free_bodies_with_joints_do():
    rng = np.random.default_rng(0)
    for _ in range(20):
        masses, inertias = rng.uniform(0.1, 5, 3), rng.uniform(0.01, 1, 3)
        offset, force, torques = (
            rng.uniform(-1, 1, (3, 2)),
            rng.normal(size=2),
            rng.normal(size=3),
        )
        with jax.enable_x64(True):
            columns = Vec(*map(jnp.asarray, offset.T))
            system = rigid_body.pin(list(masses), list(inertias), columns)
            ours = rigid_body.respond(system, Vec(*map(jnp.asarray, force)), list(torques))
        theirs = solved_with_joints(masses, inertias, offset, force, torques)
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


BOX = Polygon(((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)), density=1.0)


def contact(center, angle=0.0, ends=((-2.0, 0.0), (2.0, 0.0))):
    """Of a unit box with an edge of the ground."""
    center = Vec(*map(jnp.float32, center))
    corners, normals = rigid_body.outline(BOX, center, rigid_body.rotation(jnp.float32(angle)))
    v1, v2 = (Vec(*map(jnp.float32, end)) for end in ends)
    found = rigid_body.collide(corners, normals, center, v1, v2)
    return jax.tree.map(np.asarray, found)


def points_of(found):
    """Those that touch, from left to right: x, y, separation."""
    points = np.stack([found.point.x, found.point.y, found.separation], axis=1)[found.valid]
    return points[np.argsort(points[:, 0])]


@pytest.mark.parametrize("ends", [((-2.0, 0.0), (2.0, 0.0)), ((2.0, 0.0), (-2.0, 0.0))])
@pytest.mark.parametrize("height", [0.51, 0.49])
def test_a_box_flat_on_the_ground_touches_it_at_two_corners(height, ends):
    found = contact((0.3, height), ends=ends)
    gap = height - 0.5
    expected = [(-0.2, gap, gap), (0.8, gap, gap)]
    np.testing.assert_allclose(points_of(found), expected, atol=1e-6)
    np.testing.assert_allclose([found.normal.x, found.normal.y], [0, 1], atol=1e-6)
    assert found.on_ground


def test_a_box_that_stands_over_the_end_of_the_ground_touches_it_up_to_there():
    found = contact((1.8, 0.49))
    np.testing.assert_allclose(
        points_of(found), [(1.3, -0.01, -0.01), (2, -0.01, -0.01)], atol=1e-6
    )
    assert found.key[0] != found.key[1]


def test_a_tilted_box_touches_the_ground_with_its_lowest_corner():
    angle = 0.1  # against the clock: on its lower left corner
    reach = Vec(
        0.5 * math.cos(angle) - 0.5 * math.sin(angle), 0.5 * math.cos(angle) + 0.5 * math.sin(angle)
    )
    found = contact((0.0, reach.y - 0.01), angle)
    np.testing.assert_allclose(points_of(found), [(-reach.x, -0.01, -0.01)], atol=1e-6)
    np.testing.assert_allclose([found.normal.x, found.normal.y], [0, 1], atol=1e-6)


@pytest.mark.parametrize("center", [(0.0, 0.53), (2.6, 0.3), (-2.6, 0.49), (2.51, 0.51)])
def test_a_box_above_the_ground_or_beside_it_does_not_touch_it(center):
    """Not even with a corner nearer to the end of the edge than the skins are thick: planes
    clip there (b2ClipSegmentToLine)."""
    assert not contact(center).valid.any()


def test_the_end_of_an_edge_that_pokes_into_a_box_pushes_its_side():
    found = contact((0.49, 0.3), ends=((-2.0, 0.0), (0.0, 0.0)))
    np.testing.assert_allclose(points_of(found), [(0, 0, -0.01)], atol=1e-6)
    np.testing.assert_allclose([found.normal.x, found.normal.y], [1, 0], atol=1e-6)
    assert not found.on_ground


STORM = {"enable_wind": True, "wind_power": 20.0, "turbulence_power": 2.0}


def test_rounds_that_only_a_gpu_makes_change_nothing(monkeypatch):
    """There all rounds of a solver are made: after the last that was needed they leave every
    environment as it is."""
    keys = jax.random.split(jax.random.key(5), 64)

    def flown():
        jax.clear_caches()  # what was traced for the other kind of loop
        state, _ = jax.jit(jax.vmap(PLAIN.reset))(keys)
        step = jax.jit(jax.vmap(PLAIN.step))
        for number in range(90):  # until most have landed, or crashed
            action = jax.random.randint(jax.random.key(number), (64,), 0, 4)
            state, seen = step(keys, state, action)
        return seen.obs

    early = flown()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    made = []
    loop = jax.lax.fori_loop
    monkeypatch.setattr(jax.lax, "fori_loop", lambda *a, **k: made.append(a[1]) or loop(*a, **k))
    np.testing.assert_allclose(early, flown(), rtol=0, atol=1e-3)
    assert {20, 32, 8, 4} <= {*made}


@pytest.mark.parametrize("options", [{}, {"gravity": -0.01}, {"gravity": -11.99}, STORM])
def test_an_episode_begins_with_rounds_to_spare(options, monkeypatch):
    """The first step needs fewer than it may have: with twice as many it has the same bits."""
    reset, fall = LunarLander(**options).reset, physics.fall
    keys = jax.random.split(jax.random.key(6), 10_000)

    def begun():
        jax.clear_caches()
        return jax.jit(jax.vmap(reset))(keys)

    once = begun()
    monkeypatch.setattr(physics, "fall", lambda world, gravity, *n: fall(world, gravity, 64, 16))
    assert differing(once, begun()) == []
    for few in ((10, 8), (32, 1)):
        monkeypatch.setattr(physics, "fall", lambda *given, few=few: fall(*given[:2], *few))
        assert differing(once, begun()) != []

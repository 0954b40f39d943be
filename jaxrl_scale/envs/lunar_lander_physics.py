"""The physics of LunarLander: a hull and two legs on springs above rough ground.

One step follows Box2D's (b2World::Step, version 2.3.10), with its parts in the same order:
contacts, velocities, positions, sleep, continuous collision. These are the differences:

- The joints are solved exactly (`rigid_body.Pinned`). The iterations find only the impulses of
  motors, limits and contacts, and they are over-relaxed. In 20 rounds they reach what Box2D would
  reach in thousands; its 180 rounds are not quite enough for a hard impact.
- A leg that hits the ground within a step (b2World::SolveTOI) goes on from there after impacts at
  single points, at times that are found by interpolation. A hull that hits the ground has crashed
  and is not moved any more.
- The floor below the ground and Box2D's limits on velocity (100 m/s and 79 rad/s) are left out,
  because no flight reaches them. The hull's contacts apply no forces, because the first one ends
  the episode.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_scale.envs.rigid_body import (
    SKIN,
    Manifold,
    Motion,
    Pinned,
    Polygon,
    Vec,
    argmax,
    collide,
    constants,
    cross,
    dot,
    least,
    once,
    outline,
    perp,
    pick,
    pin,
    repeat,
    respond,
    rotation,
    separate,
    turn,
    turn_back,
    where,
)
from jaxrl_scale.types import Array

SCALE = 30.0  # pixels per metre
DT = 1 / 50  # s per step
WIDTH, HEIGHT = 600 / SCALE, 400 / SCALE  # m, the size of the visible part of the world
CHUNK = WIDTH / 10  # m between two corners of the ground

HULL = Polygon(
    tuple(
        (x / SCALE, y / SCALE)
        for x, y in ((17, -10), (17, 0), (14, 17), (-14, 17), (-17, 0), (-17, -10))
    ),
    density=5.0,
)
LEG = Polygon(
    tuple((x / SCALE, y / SCALE) for x, y in ((-2, -8), (2, -8), (2, 8), (-2, 8))), density=1.0
)
# Bodies in this order: the hull, the leg on the right, the leg on the left. Box2D visits
# what it made last first; so do the loops below.
MASS, CENTER, INERTIA = zip(*(shape.mass_properties for shape in (HULL, LEG, LEG)), strict=True)
ANCHOR = ((0.0, 0.0), (-20 / SCALE, 18 / SCALE), (20 / SCALE, 18 / SCALE))
"""The pin in the frame of each body. Both joints are at the hull's origin."""
ARM = tuple((a[0] - c[0], a[1] - c[1]) for a, c in zip(ANCHOR, CENTER, strict=True))
"""From each centre of mass to the pin."""

REST_ANGLE = (-0.05, 0.05)  # rad, of each leg to the hull where its joint counts as 0
LIMITS = ((0.4, 0.9), (-0.9, -0.4))  # rad, of the joints
MOTOR_SPEED = (-0.3, 0.3)  # rad/s
MOTOR_IMPULSE = 40 * DT  # N m s, the most per step
FRICTION = math.sqrt(0.1 * 0.2)  # of ground and leg

_LINEAR_SLOP = 0.005  # m: how far shapes may overlap and joints may come apart
_ANGULAR_SLOP = math.radians(2)  # rad: the same for the limits of joints
_MENDED = 0.2  # the part of an overlap that one round corrects
_MAX_SHIFT = 0.2  # m per round
_MAX_TURN = math.radians(8)  # rad per round
_CALM_SPEED, _CALM_SPIN = 0.01, math.radians(2)  # m/s, rad/s
_CALM_TIME = 0.5  # s
_RELAXATION = 1.5  # of the velocity rounds; 1 is plain Gauss-Seidel
_STOP = 0.0144  # m from the ground, where b2Island::SolveTOI's position rounds leave a leg
_MAX_HITS = 4  # of one leg in one step
_CONVERGED = 1e-6  # N s: a round that changes no impulse by more was the last

_LEGS = slice(1, 3)
_POINTS = [(slot, point) for slot in (0, 1) for point in (0, 1)]
_INDICES = [(point, slot, leg) for point in (0, 1) for slot in (0, 1) for leg in (0, 1)]


class Contacts(NamedTuple):
    """What is kept of the legs' contacts, for events and for a warm start of the solver.

    A leg is near at most two edges of the ground: ``slot`` 0 is for the edge with an even index,
    ``slot`` 1 for the edge with an odd index.
    """

    edge: Array  # [slot, leg] int32
    touching: Array  # [slot, leg] bool
    key: Array  # [point, slot, leg] int32, -1 where none touches
    normal: Array  # [point, slot, leg] N s
    tangent: Array  # [point, slot, leg] N s


class World(NamedTuple):
    """The bodies in motion, and what the solver keeps from one step to the next."""

    motion: Motion  # [3]
    torque: Array  # [2] N m s, of motor and limit together, on each leg
    contacts: Contacts
    hull_touching: Array  # bool: found at the end of a step, and counted in the next
    calm: Array  # s without motion


class Events(NamedTuple):
    """The events that Box2D would report during a step."""

    crashed: Array  # bool: the hull touches the ground
    lost: Array  # [2] bool: a leg lost a contact
    gained: Array  # [2] bool: a leg made one
    hit: Array  # [2] bool: a leg made one within the step, after those that were lost
    asleep: Array  # bool: nothing moves


class _Limited(NamedTuple):
    """Which joints are at a limit when the step begins, ``[leg]``."""

    lower: Array
    upper: Array


class _Row(NamedTuple):
    """One direction of all contact points, ``[point, slot, leg]``."""

    direction: Vec  # [slot, leg]
    lever: Array  # m, of the direction about the pin
    column: Array  # [5, point, slot, leg] generalised velocities per N s
    share: Array  # N s per m/s, over-relaxed, 0 where nothing touches


def at_rest(center: Vec, angle: Array) -> World:
    """Bodies in the air, at rest, at the given poses (``[3, ...]``)."""
    zero = jnp.zeros_like(angle)
    impulses = jnp.zeros((2, 2, 2, *angle.shape[1:]), angle.dtype)
    none = jnp.full(impulses.shape, -1, jnp.int32)
    contacts = Contacts(none[0], none[0] >= 0, none, impulses, impulses)
    motion = Motion(center, angle, Vec(zero, zero), zero)
    return World(motion, zero[_LEGS], contacts, zero[0] > 0, zero[0])


def fall(world: World, gravity: float, velocity_rounds: int, position_rounds: int) -> World:
    """Make one step far above the ground."""
    motion = _accelerated(world.motion, gravity)
    turned = rotation(motion.angle)
    system = _pinned(turned)
    limited = _limited(motion.angle)
    velocity, spin, torque, _ = _solve_velocities(
        system, motion, limited, world.torque, None, world.contacts, velocity_rounds
    )
    center, angle, _ = _solve_positions(
        motion.center + velocity * DT, motion.angle + spin * DT, limited, None, position_rounds
    )
    return world._replace(motion=Motion(center, angle, velocity, spin), torque=torque)


def advance(
    world: World, ground: Array, gravity: float, velocity_rounds: int, position_rounds: int
) -> tuple[World, Events]:
    """Make one step, after all impulses of the engines and the wind have been applied.

    ``ground``: the heights of its 11 corners in m, ``[11, ...]``.
    """
    motion = _accelerated(world.motion, gravity)
    turned = rotation(motion.angle)

    edge, v1, v2 = edges(ground, motion.center.x[_LEGS])
    corners, normals = outline(LEG, motion.center[_LEGS], turned[_LEGS])
    manifold = collide(corners[:, None], normals[:, None], motion.center[_LEGS], v1, v2)
    contacts, lost, gained = _recognise(world.contacts, edge, manifold)

    system = _pinned(turned)
    limited = _limited(motion.angle)
    velocity, spin, torque, contacts = _solve_velocities(
        system, motion, limited, world.torque, manifold, contacts, velocity_rounds
    )
    center, angle, solved = _solve_positions(
        motion.center + velocity * DT,
        motion.angle + spin * DT,
        limited,
        _in_legs(manifold, motion.center[_LEGS], turned[_LEGS]),
        position_rounds,
    )
    still = (dot(velocity, velocity) <= _CALM_SPEED**2) & (spin * spin <= _CALM_SPIN**2)
    calm = jnp.where(still[0] & still[1] & still[2], world.calm + DT, 0)

    _, hull_v1, hull_v2 = edges(ground, center.x[0])
    corners, normals = outline(HULL, center[0], rotation(angle[0]))
    hull_gap = separate(corners[:, None], normals[:, None], center[0], hull_v1, hull_v2).gap
    hull_gap = least(hull_gap)
    end = Motion(center, angle, velocity, spin)
    end, hit = _stop_at_ground(motion, end, contacts.touching, v1, v2)

    events = Events(
        crashed=world.hull_touching | (hull_gap < _LINEAR_SLOP),
        lost=lost[0] | lost[1],
        gained=gained[0] | gained[1],
        hit=hit[0] | hit[1],
        asleep=(calm >= _CALM_TIME) & solved,
    )
    contacts = contacts._replace(touching=contacts.touching | hit)
    return World(end, torque, contacts, hull_gap <= SKIN, calm), events


def edges(ground: Array, x: Array) -> tuple[Array, Vec, Vec]:
    """The two edges of the ground nearest to ``x``: indices ``[slot, ...]`` and both ends."""
    corner = jnp.clip(jnp.round(x / CHUNK), 1, 9)
    left, middle, right = (
        pick([ground[k + offset] for k in range(1, 10)], corner - 1) for offset in (-1, 0, 1)
    )
    odd_first = corner % 2 == 0  # the left edge has the odd index, but the even comes first
    edge = once(jnp.stack([jnp.where(odd_first, corner, corner - 1),
                           jnp.where(odd_first, corner - 1, corner)]))  # fmt: skip
    start = jnp.stack([jnp.where(odd_first, middle, left), jnp.where(odd_first, left, middle)])
    end = jnp.stack([jnp.where(odd_first, right, middle), jnp.where(odd_first, middle, right)])
    v1, v2 = Vec(edge * CHUNK, start), Vec((edge + 1) * CHUNK, end)
    return edge.astype(jnp.int32), once(v1), once(v2)


def _accelerated(motion: Motion, gravity: float) -> Motion:
    velocity = Vec(motion.velocity.x, motion.velocity.y + DT * gravity)
    return motion._replace(velocity=velocity)


def _pinned(turned: Vec) -> Pinned:
    return pin(MASS, INERTIA, once(-turn(turned, constants(ARM, turned.x[0]))))


def _with_legs(bodies: Any, legs: Any) -> Any:
    """Arrays ``[3, ...]`` of all bodies with those of the legs ``[2, ...]`` put in."""
    return jax.tree.map(lambda all, two: jnp.concatenate([all[:1], two]), bodies, legs)


def _limited(angle: Array) -> _Limited:
    joint = [angle[1 + leg] - angle[0] - REST_ANGLE[leg] for leg in (0, 1)]
    return _Limited(
        lower=jnp.stack([joint[leg] <= LIMITS[leg][0] for leg in (0, 1)]),
        upper=jnp.stack([joint[leg] >= LIMITS[leg][1] for leg in (0, 1)]),
    )


def _recognise(old: Contacts, edge: Array, manifold: Manifold) -> tuple[Contacts, Array, Array]:
    """The present contacts, with the impulses of those that were there before, and the events since
    (b2Contact::Update): which contacts were lost and which were gained, ``[slot, leg]``."""
    same_edge = old.edge == edge
    key = jnp.where(manifold.valid, manifold.key, -1)
    known = [same_edge & manifold.valid & (old.key[point] == key) for point in (0, 1)]
    normal, tangent = (
        jnp.where(known[0], impulse[0], 0) + jnp.where(known[1], impulse[1], 0)
        for impulse in (old.normal, old.tangent)
    )
    touching = manifold.valid[0] | manifold.valid[1]
    lost = old.touching & ~(touching & same_edge)
    gained = touching & ~(old.touching & same_edge)
    return Contacts(edge, touching, key, once(normal), once(tangent)), lost, gained


# --- velocities --------------------------------------------------------------------------------


def _solve_velocities(
    system: Pinned,
    motion: Motion,
    limited: _Limited,
    torque: Array,
    manifold: Manifold | None,
    contacts: Contacts,
    rounds: int,
) -> tuple[Vec, Array, Array, Contacts]:
    """Find the impulses of motors, limits and contacts by projected Gauss-Seidel with a warm start.

    Each environment stops its iterations by itself, so that it does not depend on the others in its
    batch.

    Returns:
      Velocities and spins ``[3]``, torques, and the contacts with their impulses.
    """
    zero = jnp.zeros_like(motion.angle[0])
    one = jnp.ones_like(zero)
    v = _generalised(system, motion)
    joints = [
        respond(system, Vec(zero, zero), [-one, *((one, zero) if leg == 0 else (zero, one))])
        for leg in (0, 1)
    ]
    joint_share = [once(_RELAXATION / (joints[leg][3 + leg] - joints[leg][2])) for leg in (0, 1)]
    for leg in (0, 1):
        v = v + joints[leg] * torque[leg]

    edge_contacts = [] if manifold is None else [(leg, slot) for leg in (1, 0) for slot in (0, 1)]
    if manifold is not None:
        normals, tangents = _rows(system, motion.center, manifold)
        for at in [(point, slot, leg) for leg in (1, 0) for slot, point in _POINTS]:
            v = v + normals.column[:, *at] * contacts.normal[at]
            v = v + tangents.column[:, *at] * contacts.tangent[at]

    def one_round(carry: tuple) -> tuple:
        count, active, v, torque, normal, tangent = carry
        torques = [torque[0], torque[1]]
        normal_impulses = {at: normal[at] for at in _INDICES}
        tangent_impulses = {at: tangent[at] for at in _INDICES}
        change = zero

        def apply(column: Array, old: Array, new: Array) -> Array:
            nonlocal v, change
            new = once(jnp.where(active, new, old))
            step = new - old
            v = v + column * step
            change = jnp.maximum(change, jnp.abs(step))
            return new

        for leg in (1, 0):
            rate, old = v[3 + leg] - v[2], torques[leg]
            to_speed = old - (rate - MOTOR_SPEED[leg]) * joint_share[leg]
            to_stop = old - rate * joint_share[leg]
            new = jnp.clip(to_speed, -MOTOR_IMPULSE, MOTOR_IMPULSE)
            new = jnp.where(limited.lower[leg], jnp.maximum(new, to_stop), new)
            new = jnp.where(limited.upper[leg], jnp.minimum(new, to_stop), new)
            torques[leg] = apply(joints[leg], old, new)
        for leg, slot in edge_contacts:
            for point in (0, 1):  # friction first, because the normal impulses are more important
                at = point, slot, leg
                old, reach = tangent_impulses[at], FRICTION * normal_impulses[at]
                new = old - _rate(tangents, at, v) * tangents.share[at]
                new = jnp.clip(new, -reach, reach)
                tangent_impulses[at] = apply(tangents.column[:, *at], old, new)
            for point in (0, 1):
                at = point, slot, leg
                old = normal_impulses[at]
                new = jnp.maximum(old - _rate(normals, at, v) * normals.share[at], 0)
                normal_impulses[at] = apply(normals.column[:, *at], old, new)
        count = count + 1
        active = active & (change > _CONVERGED)
        if edge_contacts:
            normal, tangent = _unrolled(normal_impulses), _unrolled(tangent_impulses)
        return count, active, v, jnp.stack(torques), normal, tangent

    active = jnp.ones(zero.shape, bool)
    start = (jnp.int32(0), active, v, torque, contacts.normal, contacts.tangent)
    _, _, v, torque, normal, tangent = repeat(rounds, one_round, start)
    spin, swing = v[2:], perp(system.offset)
    velocity = Vec(v[0] + spin * swing.x, v[1] + spin * swing.y)
    return velocity, spin, torque, contacts._replace(normal=normal, tangent=tangent)


def _generalised(system: Pinned, motion: Motion) -> Array:
    """The motion of the pinned system that has the momentum of the separate bodies."""
    weights = constants(list(zip(MASS, INERTIA, strict=True)), motion.angle[0])
    momentum = motion.velocity * weights.x
    angular = weights.y * motion.spin + dot(perp(system.offset), momentum)
    total = Vec(*(m[0] + m[1] + m[2] for m in (momentum.x, momentum.y)))
    return respond(system, total, [angular[0], angular[1], angular[2]])


def _rows(system: Pinned, center: Vec, manifold: Manifold) -> tuple[_Row, _Row]:
    """The rows along the normals and along the tangents."""
    surface = manifold.point - manifold.normal * (0.5 * manifold.separation)
    arm = once(surface - (center[_LEGS] - system.offset[_LEGS]))  # from the pin
    right = jnp.arange(2).reshape(2, *(1,) * (center.x.ndim - 1)) == 0

    def along(direction: Vec) -> _Row:
        lever = cross(arm, direction)
        torques = [jnp.zeros_like(lever), where(right, lever, 0), where(right, 0, lever)]
        column = respond(system, direction, torques)
        spin = jnp.where(right, column[3], column[4])
        rate = direction.x * column[0] + direction.y * column[1] + lever * spin
        return _Row(direction, lever, column, jnp.where(manifold.valid, _RELAXATION / rate, 0))

    normal = manifold.normal
    return along(normal), along(Vec(normal.y, -normal.x))


def _rate(row: _Row, at: tuple[int, int, int], v: Array) -> Array:
    """The speed of a contact point in the direction of a row."""
    _, slot, leg = at
    direction = row.direction[slot, leg]
    return direction.x * v[0] + direction.y * v[1] + row.lever[at] * v[3 + leg]


def _unrolled(by_index: dict[tuple[int, int, int], Array]) -> Array:
    """``[2, 2, 2, ...]`` from its elements."""
    elements = jnp.stack([by_index[at] for at in _INDICES])
    return elements.reshape(2, 2, 2, *elements.shape[1:])


# --- positions ---------------------------------------------------------------------------------


class _LocalManifold(NamedTuple):
    """A manifold in the frames of the legs, in which the legs' own points do not move."""

    world: Manifold
    point: Vec  # [point, slot, leg]
    face: Vec  # [slot, leg]
    normal: Vec  # [slot, leg]


def _in_legs(manifold: Manifold, center: Vec, turned: Vec) -> _LocalManifold:
    return _LocalManifold(
        manifold,
        once(turn_back(turned, manifold.point - center)),
        once(turn_back(turned, manifold.face - center)),
        once(turn_back(turned, manifold.normal)),
    )


class _Pose(NamedTuple):
    center: Vec
    angle: Array
    turned: Vec  # cosine and sine of the angle


def _solve_positions(
    center: Vec, angle: Array, limited: _Limited, contacts: _LocalManifold | None, rounds: int
) -> tuple[Vec, Array, Array]:
    """Push the bodies out of the ground and back into their joints, nonlinear Gauss-Seidel
    (b2ContactSolver and b2RevoluteJoint::SolvePositionConstraints).

    Returns:
      Centres and angles ``[3]``, and whether all errors are small.
    """
    turned = rotation(angle)

    def one_round(carry: tuple) -> tuple:
        count, active, pose = carry
        good = active
        if contacts is not None:
            legs = jax.tree.map(lambda x: x[_LEGS], pose)
            for slot, point in _POINTS:
                legs, fine = _push_out(legs, contacts, slot, point, active)
                good = good & fine[0] & fine[1]
            pose = _with_legs(pose, legs)
        for leg in (1, 0):
            pose, fine = _rejoin(pose, leg, limited, active)
            good = good & fine
        return count + 1, active & ~good, pose

    active = jnp.ones(angle.shape[1:], bool)
    start = jnp.int32(0), active, _Pose(center, angle, turned)
    _, unsolved, pose = repeat(rounds, one_round, start)
    return pose.center, pose.angle, ~unsolved


def _shifted(pose: _Pose, shift: Vec) -> _Pose:
    return pose._replace(center=once(pose.center + shift))


def _turned(pose: _Pose, angle: Array) -> _Pose:
    """The pose after a small turn, for which a few terms of the series are exact."""
    square = angle * angle
    cos = 1 - square * (1 / 2 - square * (1 / 24))
    sin = angle * (1 - square * (1 / 6 - square * (1 / 120)))
    turned = turn(pose.turned, Vec(cos, sin))
    return pose._replace(angle=once(pose.angle + angle), turned=once(turned))


def _push_out(
    legs: _Pose, contacts: _LocalManifold, slot: int, point: int, active: Array
) -> tuple[_Pose, Array]:
    """Correct both legs at one of their contact points, and say whether they overlap little."""
    manifold = contacts.world
    on_ground, valid = manifold.on_ground[slot], manifold.valid[point, slot]
    own = where(on_ground, contacts.point[point, slot], contacts.face[slot])
    fixed = where(on_ground, manifold.face[slot], manifold.point[point, slot])
    own_normal = turn(legs.turned, contacts.normal[slot])
    normal = once(where(on_ground, manifold.normal[slot], own_normal))
    moved = legs.center + turn(legs.turned, own)
    separation = once(dot(moved - fixed, normal) - SKIN)
    error = jnp.clip(_MENDED * (separation + _LINEAR_SLOP), -_MAX_SHIFT, 0)
    lever = once(cross(where(on_ground, moved, fixed) - legs.center, normal))
    ease = 1 / MASS[1] + lever * lever * (1 / INERTIA[1])
    impulse = once(jnp.where(valid & active, -error / ease, 0))
    legs = _shifted(legs, normal * (impulse * (1 / MASS[1])))
    legs = _turned(legs, impulse * lever * (1 / INERTIA[1]))
    return legs, ~(valid & (separation < -3 * _LINEAR_SLOP))


def _rejoin(pose: _Pose, leg: int, limited: _Limited, active: Array) -> tuple[_Pose, Array]:
    """Correct the hull and one leg at their joint, first its limits and then its pin, and say
    whether the errors were small."""
    lower, upper = limited.lower[leg], limited.upper[leg]
    ease_hull, ease_leg = 1 / INERTIA[0], 1 / INERTIA[1]
    rows = [(-1 / MASS[0], -ease_hull), (0.0, 0.0), (0.0, 0.0)]
    rows[1 + leg] = 1 / MASS[1], ease_leg
    response = constants(rows, pose.angle[0])  # of all bodies: to a push, and to a torque

    joint = pose.angle[1 + leg] - pose.angle[0] - REST_ANGLE[leg]
    below, above = joint - LIMITS[leg][0], joint - LIMITS[leg][1]
    close = ~(lower & (-below > _ANGULAR_SLOP)) & ~(upper & (above > _ANGULAR_SLOP))
    error = jnp.where(lower, jnp.clip(below + _ANGULAR_SLOP, -_MAX_TURN, 0), 0)
    error = error + jnp.where(upper, jnp.clip(above - _ANGULAR_SLOP, 0, _MAX_TURN), 0)
    impulse = jnp.where(active, error * (-1 / (ease_hull + ease_leg)), 0)
    pose = _turned(pose, impulse * response.y)

    arms = once(turn(pose.turned, constants(ARM, impulse)))
    a, b = arms[0], arms[1 + leg]
    gap = pose.center[1 + leg] + b - pose.center[0] - a
    close = close & (dot(gap, gap) <= _LINEAR_SLOP**2)
    lightness = 1 / MASS[0] + 1 / MASS[1]
    xx = lightness + ease_hull * a.y * a.y + ease_leg * b.y * b.y
    xy = -ease_hull * a.x * a.y - ease_leg * b.x * b.y
    yy = lightness + ease_hull * a.x * a.x + ease_leg * b.x * b.x
    scale = jnp.where(active, -1 / (xx * yy - xy * xy), 0)
    push = once(Vec((yy * gap.x - xy * gap.y) * scale, (xx * gap.y - xy * gap.x) * scale))
    pose = _shifted(pose, push * response.x)
    return _turned(pose, cross(arms, push) * response.y), close


# --- continuous collision ----------------------------------------------------------------------


class _Flight(NamedTuple):
    """Legs on their way through a step, ``[leg]``."""

    center: Vec
    angle: Array
    shift: Vec  # m, what is left
    turning: Array  # rad, what is left
    velocity: Vec
    spin: Array
    rest: Array  # s, what is left


def _stop_at_ground(
    start: Motion, end: Motion, touching: Array, v1: Vec, v2: Vec
) -> tuple[Motion, Array]:
    """Set legs that enter the ground within a step back to where they touched it. There they lose
    their speed into the ground and go on. Their joints follow in the next step.

    Args:
      touching: ``[slot, leg]``, edges whose contact has been solved in this step.

    Returns:
      The motion at the end of the step, and which edges were hit, ``[slot, leg]``.
    """

    def one_hit(carry: tuple[Array, Array, _Flight, Array]) -> tuple[Array, Array, _Flight, Array]:
        count, active, flight, hit = carry
        here, there = flight, _arrived(flight)
        old_outline = outline(LEG, here.center, rotation(here.angle))
        new_outline = outline(LEG, there.center, rotation(there.angle))
        point, normal, old_gap, gap = _closing(old_outline, new_outline, here.center, v1, v2)
        deep = (gap < 0.75 * _LINEAR_SLOP) & (~touching | (old_gap > _LINEAR_SLOP))
        share = (old_gap - _STOP) / jnp.maximum(old_gap - gap, 1e-6)
        share = jnp.where(deep, jnp.clip(share, 0, 1), 1)  # the part of the way until the impact
        odd = share[1] < share[0]
        share = once(jnp.minimum(share[0], share[1]))
        point, normal = (where(odd, x[1], x[0]) for x in (point, normal))
        velocity, spin = _struck(flight, point - there.center, normal, deep[0] | deep[1])
        rest = flight.rest * (1 - share)
        flight = _Flight(
            center=flight.center + flight.shift * share,
            angle=flight.angle + flight.turning * share,
            shift=velocity * rest,
            turning=spin * rest,
            velocity=velocity,
            spin=spin,
            rest=rest,
        )
        flight = where(active, once(flight), here)
        return count + 1, active & (deep[0] | deep[1]), flight, hit | (deep & active)

    legs, goal = (jax.tree.map(lambda x: x[_LEGS], motion) for motion in (start, end))
    flight = _Flight(
        legs.center,
        legs.angle,
        goal.center - legs.center,
        goal.angle - legs.angle,
        goal.velocity,
        goal.spin,
        jnp.full_like(goal.spin, DT),
    )
    first = jnp.int32(0), jnp.ones(goal.spin.shape, bool), flight, jnp.zeros_like(touching)
    _, _, flight, hit = repeat(_MAX_HITS, one_hit, first)
    last = _arrived(flight)
    legs = Motion(last.center, last.angle, last.velocity, last.spin)
    return _with_legs(end, legs), hit


def _arrived(flight: _Flight) -> _Flight:
    return flight._replace(center=flight.center + flight.shift, angle=flight.angle + flight.turning)


def _closing(
    old: tuple[Vec, Vec], new: tuple[Vec, Vec], old_center: Vec, v1: Vec, v2: Vec
) -> tuple[Vec, Vec, Array, Array]:
    """The gap along the axis that separated a leg, given by its old and its new outline, from
    an edge: the point that comes nearest in the end, the direction out of the ground, and the
    gap before and after. ``[slot, leg]``."""
    (old_corners, old_normals), (corners, normals) = old, new
    before = separate(old_corners[:, None], old_normals[:, None], old_center, v1, v2)
    by_corner = before.of_side <= before.of_edge

    heights = dot(before.up, corners[:, None] - v1)
    lowest = pick([corners[i] for i in range(4)], argmax(-heights))
    side = argmax(before.of_sides)
    start = pick([corners[i] for i in range(4)], side)
    side_normal = pick([normals[i] for i in range(4)], side)
    tip = where(dot(side_normal, v1 - v2) < 0, v1, v2)
    gap = jnp.where(by_corner, least(heights), dot(side_normal, tip - start))
    point, normal = where(by_corner, lowest, tip), where(by_corner, before.up, -side_normal)
    over = (cross(before.up, lowest - v1) <= 0) != (cross(before.up, lowest - v2) <= 0)
    beside = by_corner & ~over  # a corner that falls beside the end of the edge
    return once((point, normal, before.gap, jnp.where(beside, before.gap, gap)))


def _struck(flight: _Flight, arm: Vec, normal: Vec, hit: Array) -> tuple[Vec, Array]:
    """Velocity and spin after an inelastic impact with friction, at ``arm`` from the centre."""
    velocity, spin = flight.velocity, flight.spin
    normal_impulse = jnp.zeros_like(spin)
    tangent = Vec(normal.y, -normal.x)

    def along(direction: Vec) -> tuple[Array, Array]:
        lever = cross(arm, direction)
        rate = dot(velocity, direction) + lever * spin
        return lever, -rate / (1 / MASS[1] + lever * lever * (1 / INERTIA[1]))

    for direction in (normal, tangent, normal):
        lever, impulse = along(direction)
        if direction is normal:
            impulse = jnp.where(hit, jnp.maximum(impulse, -normal_impulse), 0)
            normal_impulse = normal_impulse + impulse
        else:
            reach = FRICTION * normal_impulse
            impulse = jnp.clip(impulse, -reach, reach)
        velocity = velocity + direction * (impulse * (1 / MASS[1]))
        spin = spin + impulse * lever * (1 / INERTIA[1])
    return velocity, spin

"""Planar rigid bodies: vectors, polygons, contacts, and bodies pinned at one point.

The equations are those of Box2D 2.3 (Catto, "Iterative Dynamics with Temporal Coherence", GDC
2005, and "Fast and Simple Physics using Sequential Impulses", GDC 2006), written anew for arrays.
One thing is done better: a joint is solved exactly, instead of by iterations (`Pinned`).

**Arrays.** Everything is written element by element: a number may be an array of any shape whose
*last* axes are the batch; bodies, points and the like have leading axes. Every operation then runs
over contiguous rows of environments, as XLA's code for CPUs needs to be fast; `batch_last` makes
``vmap`` do so. Sums over a few components are written out, because a reduction over a short leading
axis is fifty times slower on CPUs.

Units: m, kg, s, rad.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_scale.types import Array, PyTree

SKIN = 0.02  # m: two shapes touch at this distance (twice b2_polygonRadius)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["x", "y"], meta_fields=[])
@dataclass(frozen=True)
class Vec:
    """A vector of the plane, or an array of them."""

    x: Any
    y: Any

    def __add__(self, other: Vec) -> Vec:
        return Vec(self.x + other.x, self.y + other.y)

    def __sub__(self, other: Vec) -> Vec:
        return Vec(self.x - other.x, self.y - other.y)

    def __neg__(self) -> Vec:
        return Vec(-self.x, -self.y)

    def __mul__(self, scale: Any) -> Vec:
        return Vec(self.x * scale, self.y * scale)

    def __getitem__(self, index: Any) -> Vec:
        return Vec(self.x[index], self.y[index])


def dot(a: Vec, b: Vec) -> Any:
    """The scalar product."""
    return a.x * b.x + a.y * b.y


def cross(a: Vec, b: Vec) -> Any:
    """The component of ``a × b`` that is perpendicular to the plane."""
    return a.x * b.y - a.y * b.x


def perp(a: Vec) -> Vec:
    """``a``, turned left by 90 degrees: the velocity of a point at ``a`` at 1 rad/s."""
    return Vec(-a.y, a.x)


def turn(rotation: Vec, a: Vec) -> Vec:
    """``a``, turned by the angle whose cosine and sine are ``rotation``."""
    return Vec(rotation.x * a.x - rotation.y * a.y, rotation.y * a.x + rotation.x * a.y)


def turn_back(rotation: Vec, a: Vec) -> Vec:
    """`turn` by the opposite angle: from the world into the frame of a body."""
    return Vec(rotation.x * a.x + rotation.y * a.y, rotation.x * a.y - rotation.y * a.x)


def rotation(angle: Array) -> Vec:
    """Cosine and sine of an angle, computed once: nothing else here takes as long."""
    return once(Vec(jnp.cos(angle), jnp.sin(angle)))


def where(mask: Any, a: Any, b: Any) -> Any:
    """`jnp.where` that also takes vectors."""
    return jax.tree.map(functools.partial(jnp.where, mask), a, b)


def pick(options: Sequence[Any], index: Array) -> Any:
    """``options[index]`` element by element, for a few options."""
    chosen = options[0]
    for number, option in enumerate(options[1:], start=1):
        chosen = where(index == number, option, chosen)
    return chosen


def least(values: Array) -> Array:
    """The minimum over a short leading axis."""
    return functools.reduce(jnp.minimum, [values[i] for i in range(values.shape[0])])


def once(tree: PyTree) -> PyTree:
    """The same numbers, which XLA is made to compute only once.

    XLA fuses a value that is used in several places into each of them, and computes it there again
    unless that is expensive. A division counts as expensive; this one is by a 1 that is hidden from
    XLA.
    """
    return jax.tree.map(lambda x: x / (1 + 0 * x), tree)


def repeat(rounds: int, one_round: Callable[[tuple], tuple], start: tuple) -> tuple:
    """``one_round`` again and again, until no environment is active, at most ``rounds`` times.

    What it takes and returns begins with the number of rounds so far, and with which environments
    are ``active``, ``[...]`` bool; it leaves the others as they are, so that the results are the
    same however many rounds follow. On a GPU all are made: the host would have to hear after each
    whether another follows, which takes longer than those that change nothing. Two of them are one
    round of XLA's loop there, which then copies less. An iteration of PPO with 4,096 LunarLanders
    took 149 ms with a host that hears, traced on an H100, and 121 without; and 55 ms on an H200
    without a trace, 43 with two rounds in one, which takes 22 instead of 16 s to compile.
    """
    if jax.default_backend() != "cpu":
        result: tuple = jax.lax.fori_loop(
            0, rounds, lambda _, carry: one_round(carry), start, unroll=2
        )
    else:
        result = jax.lax.while_loop(
            lambda carry: (carry[0] < rounds) & jnp.any(carry[1]), one_round, start
        )
    return result


@functools.cache
def batch_last(f: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Make ``f``, whose arrays have the batch as their last axis, usable under ``vmap``.

    ``vmap`` by itself would put the batch first, and the innermost loops would run over two or four
    components. With this rule it moves the batch to the last axis and calls ``f`` once. A large
    ``f`` takes seconds to trace, so it is traced once for all calls with arrays of the same shapes.
    """
    traced_once = jax.jit(f, inline=True)
    wrapped = jax.custom_batching.custom_vmap(traced_once)

    @wrapped.def_vmap
    def rule(axis_size: int, in_batched: Any, *args: PyTree) -> tuple[PyTree, PyTree]:
        def last(x: Array, batched: bool) -> Array:
            if batched:
                return jnp.moveaxis(x, 0, -1)
            return jnp.broadcast_to(jnp.asarray(x)[..., None], (*jnp.shape(x), axis_size))

        out = traced_once(*jax.tree.map(last, list(args), list(in_batched)))
        first = jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), out)
        return first, jax.tree.map(lambda _: True, out)

    return wrapped


# --- shapes --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Polygon:
    """A convex polygon of uniform density, with its corners in counterclockwise order."""

    corners: tuple[tuple[float, float], ...]  # m, in the frame of the body
    density: float  # kg/m²

    @property
    def normals(self) -> tuple[tuple[float, float], ...]:
        """The outward normals of the sides that begin at each corner."""
        units = []
        for (x0, y0), (x1, y1) in itertools.pairwise((*self.corners, self.corners[0])):
            length = math.hypot(x1 - x0, y1 - y0)
            units.append(((y1 - y0) / length, (x0 - x1) / length))
        return tuple(units)

    @functools.cached_property
    def mass_properties(self) -> tuple[float, tuple[float, float], float]:
        """Mass (kg), centre of mass (m) and inertia about it (kg m²), by Green's theorem."""
        area = first_x = first_y = second = 0.0
        for (x0, y0), (x1, y1) in itertools.pairwise((*self.corners, self.corners[0])):
            twice = x0 * y1 - x1 * y0  # twice the area of a triangle with the origin
            area += twice / 2
            first_x += twice * (x0 + x1) / 6
            first_y += twice * (y0 + y1) / 6
            second += twice * (x0 * x0 + x0 * x1 + x1 * x1 + y0 * y0 + y0 * y1 + y1 * y1) / 12
        x, y = first_x / area, first_y / area
        inertia = self.density * (second - area * (x * x + y * y))
        return self.density * area, (x, y), inertia


def constants(points: Sequence[tuple[float, float]], like: Array) -> Vec:
    """Points as ``[number, 1 …]``, to be combined with arrays shaped as ``like``."""
    values = np.asarray(points, like.dtype)
    shape = (len(points), *(1,) * like.ndim)
    return Vec(values[:, 0].reshape(shape), values[:, 1].reshape(shape))


# --- contacts ------------------------------------------------------------------------------


class Separation(NamedTuple):
    """How far a polygon is from an edge, along each axis that may separate the two."""

    up: Vec  # unit normal of the edge, on the side of the polygon's centre
    flipped: Array  # bool: `up` is to the left of the way from v1 to v2
    of_edge: Array  # m, along `up`
    of_sides: Array  # [n, ...] m, along the normals of the polygon's sides
    of_side: Array  # m, the largest of these

    @property
    def gap(self) -> Array:
        """The distance of the shapes without their skins, negative if they overlap."""
        return jnp.maximum(self.of_edge, self.of_side)


class Manifold(NamedTuple):
    """Where a polygon touches an edge of the ground: at most two points.

    If ``on_ground``, the reference face is the edge of the ground and the points are on the
    polygon. Otherwise it is a side of the polygon, and the points are on the edge.
    """

    valid: Array  # [2, ...] bool: the point touches
    key: Array  # [2, ...] int32: which corner meets which side; the same from step to step
    point: Vec  # [2, ...] world
    separation: Array  # [2, ...] m, between the shapes without their skins
    normal: Vec  # world, from the ground into the polygon
    on_ground: Array  # bool
    face: Vec  # world: a point of the reference face


def outline(shape: Polygon, center_of_mass: Vec, turned: Vec) -> tuple[Vec, Vec]:
    """Corners and outward normals ``[n, ...]`` in the world."""
    middle = shape.mass_properties[1]
    local = [(x - middle[0], y - middle[1]) for x, y in shape.corners]
    corners = center_of_mass + turn(turned, constants(local, turned.x))
    return once(corners), once(turn(turned, constants(shape.normals, turned.x)))


def separate(corners: Vec, normals: Vec, center: Vec, v1: Vec, v2: Vec) -> Separation:
    """Separating axes of a convex polygon and an isolated edge (b2CollideEdge.cpp).

    The edge has two sides. The one on which the polygon's ``center`` lies counts.
    """
    along = v2 - v1
    along = along * (1 / jnp.sqrt(dot(along, along)))
    flipped = cross(along, center - v1) > 0
    up = once(where(flipped, perp(along), -perp(along)))
    of_edge = least(dot(up, corners - v1))
    of_sides = once(jnp.minimum(dot(normals, v1 - corners), dot(normals, v2 - corners)))
    return Separation(up, flipped, once(of_edge), of_sides, -least(-of_sides))


def collide(corners: Vec, normals: Vec, center: Vec, v1: Vec, v2: Vec) -> Manifold:
    """The contact of a convex polygon with the isolated edge from ``v1`` to ``v2``.

    The side planes of the reference face clip the incident one (b2CollideEdge.cpp).
    """
    count = corners.x.shape[0]
    gap = separate(corners, normals, center, v1, v2)
    # It prefers the ground, so that a body at rest stays at rest.
    on_ground = ~(gap.of_side > 0.98 * gap.of_edge + 0.001)

    # The ground as reference clips the side most opposed to it; a side of the polygon, the
    # least deep, clips the edge.
    opposed = -dot(gap.up, normals)
    side = argmax(jnp.where(on_ground, opposed, gap.of_sides))
    side = once(side.astype(gap.of_edge.dtype))
    start = pick([corners[i] for i in range(count)], side)
    end = pick([corners[(i + 1) % count] for i in range(count)], side)
    side_normal = pick([normals[i] for i in range(count)], side)
    ends = [where(on_ground, start, v1), where(on_ground, end, v2)]
    face1 = where(on_ground, where(gap.flipped, v2, v1), start)
    face2 = where(on_ground, where(gap.flipped, v1, v2), end)
    normal = where(on_ground, gap.up, side_normal)
    ends, face1, face2, normal = once((ends, face1, face2, normal))

    # A corner of the polygon keeps its key whichever of its sides is clipped.
    side = side.astype(jnp.int32)
    following = jnp.where(side == count - 1, 0, side + 1)
    other = jnp.where(on_ground, 0, 3 * count)
    keys = [
        jnp.where(on_ground, side, other + side),
        jnp.where(on_ground, following, side + 4 * count),
    ]
    valid = (gap.of_edge <= SKIN) & (gap.of_side <= SKIN)
    backwards = Vec(normal.y, -normal.x)  # from face2 to face1
    for number, (direction, corner) in enumerate([(backwards, face1), (-backwards, face2)]):
        beyond = once([dot(direction, p - corner) for p in ends])
        clipped = [b > 0 for b in beyond]
        valid = valid & ~(clipped[0] & clipped[1])
        one_is_clipped = clipped[0] != clipped[1]
        share = beyond[0] / jnp.where(one_is_clipped, beyond[0] - beyond[1], 1.0)
        crossing = ends[0] + (ends[1] - ends[0]) * share
        ends = once([where(c, crossing, p) for c, p in zip(clipped, ends, strict=True)])
        key = other + (1 + number) * count + side
        keys = [jnp.where(c, key, k) for c, k in zip(clipped, keys, strict=True)]

    point = jax.tree.map(lambda *both: jnp.stack(both), *ends)
    separation = once(dot(normal, point - face1))
    return Manifold(
        valid=valid & (separation <= SKIN),
        key=jnp.stack(keys),
        point=point,
        separation=separation,
        normal=where(on_ground, normal, -normal),
        on_ground=on_ground,
        face=face1,
    )


def argmax(values: Array) -> Array:
    """The index of the maximum over a short leading axis; the first one of equal values."""
    best, index = values[0], jnp.zeros_like(values[0], jnp.int32)
    for number in range(1, values.shape[0]):
        wins = values[number] > best
        best = jnp.where(wins, values[number], best)
        index = jnp.where(wins, number, index)
    return index


# --- bodies pinned at one point ---------------------------------------------------------------


class Motion(NamedTuple):
    """The motion of bodies, ``[bodies, ...]``."""

    center: Vec  # m, of mass
    angle: Array  # rad
    velocity: Vec  # m/s
    spin: Array  # rad/s


class Pinned(NamedTuple):
    """Bodies that turn about one common point, as a system of few coordinates.

    Revolute joints with one common anchor leave the velocity of this pin and one spin per body.
    With ``d`` from the pin to a body's centre of mass, ``v = v_pin + ω perp(d)``. The mass matrix
    has the form of an arrow, so that only a 2 × 2 matrix has to be inverted (Featherstone, "Rigid
    Body Dynamics Algorithms", 2008, sections 3.5 and 6; Schur complement). The impulses in the
    joints cancel.
    """

    offset: Vec  # [bodies, ...] d, m
    inverse_inertia: Array  # [bodies, ...] about the pin
    ratio: Vec  # [bodies, ...] m perp(d) / inertia
    compliance: Array  # [3, ...] inverse of the pin's apparent mass: xx, xy, yy


def pin(masses: Sequence[float], inertias: Sequence[float], offset: Vec) -> Pinned:
    """The system of bodies whose centres of mass are at ``offset [bodies, ...]``."""
    weights = constants(list(zip(masses, inertias, strict=True)), offset.x[0])
    push = perp(offset) * weights.x
    inverse_inertia = once(1 / (weights.y + weights.x * dot(offset, offset)))
    ratio = once(push * inverse_inertia)
    bodies = range(len(masses))
    xx = sum(masses) - sum(push.x[b] * ratio.x[b] for b in bodies)
    xy = -sum(push.x[b] * ratio.y[b] for b in bodies)
    yy = sum(masses) - sum(push.y[b] * ratio.y[b] for b in bodies)
    scale = 1 / (xx * yy - xy * xy)
    return Pinned(offset, inverse_inertia, ratio, once(jnp.stack([yy, -xy, xx]) * scale))


def respond(system: Pinned, force: Vec, torques: Sequence[Any]) -> Array:
    """Generalised velocities ``[v_pin.x, v_pin.y, ω …]`` after impulses at the pin (N s) and
    about it (N m s, one per body)."""
    for body, torque in enumerate(torques):
        force = force - system.ratio[body] * torque
    xx, xy, yy = (system.compliance[i] for i in range(3))
    of_pin = once(Vec(xx * force.x + xy * force.y, xy * force.x + yy * force.y))
    spins = [
        torque * system.inverse_inertia[body] - dot(system.ratio[body], of_pin)
        for body, torque in enumerate(torques)
    ]
    return once(jnp.stack(jnp.broadcast_arrays(of_pin.x, of_pin.y, *spins)))

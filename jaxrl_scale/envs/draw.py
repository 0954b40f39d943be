"""Pictures of environments, drawn with Pillow.

Coordinates are in pixels from the lower left corner: x to the right, y upwards. A whole number is
the middle of a pixel, so that a line at a whole number fills exactly one row of pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Point = tuple[float, float]
Colour = tuple[int, int, int]
_OVERSAMPLING = 4


class Canvas:
    """A white picture to draw shapes on. It is drawn at four times its size and then reduced."""

    def __init__(self, width: int, height: int) -> None:
        from PIL import Image, ImageDraw

        self._size = (width, height)
        large = (width * _OVERSAMPLING, height * _OVERSAMPLING)
        self._image = Image.new("RGB", large, (255, 255, 255))
        self._draw = ImageDraw.Draw(self._image)

    def polygon(self, points: Sequence[Point], colour: Colour) -> None:
        self._draw.polygon(self._large(points), fill=colour)

    def circle(self, center: Point, radius: float, colour: Colour) -> None:
        x, y = center
        corners = self._large([(x - radius, y + radius), (x + radius, y - radius)])
        self._draw.ellipse(corners, fill=colour)

    def line(self, points: Sequence[Point], colour: Colour) -> None:
        """A line one pixel wide through all points."""
        self._draw.line(self._large(points), fill=colour, width=_OVERSAMPLING, joint="curve")

    def pixels(self) -> np.ndarray:
        """The picture, ``[height, width, 3]`` uint8."""
        from PIL import Image

        return np.asarray(self._image.resize(self._size, Image.Resampling.BOX))

    def _large(self, points: Sequence[Point]) -> list[Point]:
        right, down = 0.5, self._size[1] - 0.5
        return [((right + x) * _OVERSAMPLING, (down - y) * _OVERSAMPLING) for x, y in points]


def rectangle(
    low: Point, high: Point, *, angle: float = 0.0, at: Point = (0.0, 0.0)
) -> list[Point]:
    """The corners of a rectangle that is turned by ``angle`` about the origin and then moved to
    ``at``."""
    corners = [low, (low[0], high[1]), high, (high[0], low[1])]
    return [turned(corner, angle=angle, at=at) for corner in corners]


def turned(point: Point, *, angle: float, at: Point) -> Point:
    """``point``, turned counterclockwise by ``angle`` about the origin and then moved to ``at``."""
    cos, sin = math.cos(angle), math.sin(angle)
    return at[0] + cos * point[0] - sin * point[1], at[1] + sin * point[0] + cos * point[1]


_MOST_WIDE = 640  # pixels of several pictures side by side
_LINE = 2  # pixels between two pictures


def side_by_side(pictures: np.ndarray) -> np.ndarray:
    """``[n, height, width, 3]`` uint8 as one picture ``[H, W, 3]``, in rows from the left with grey
    lines between them, and black where the last row is not full. Several are shrunk to `_MOST_WIDE`
    if they are wider."""
    if len(pictures) == 1:
        return pictures[0]
    from PIL import Image

    columns = math.ceil(math.sqrt(len(pictures)))
    height, width = pictures.shape[1:3]
    if (wide := (_MOST_WIDE + _LINE) // columns - _LINE) < width:
        height, width = max(1, round(height * wide / width)), max(1, wide)
        resized = [Image.fromarray(picture).resize((width, height)) for picture in pictures]
        pictures = np.stack([np.asarray(picture) for picture in resized])
    rows = math.ceil(len(pictures) / columns)
    high, wide = height + _LINE, width + _LINE
    grid = np.full((rows * high - _LINE, columns * wide - _LINE, 3), 128, np.uint8)
    for k in range(rows * columns):
        top, left = k // columns * high, k % columns * wide
        picture = pictures[k] if k < len(pictures) else 0
        grid[top : top + height, left : left + width] = picture
    return grid

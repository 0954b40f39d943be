"""Episodes as GIF or MP4."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxrl_scale.errors import INPUT_OUTPUT_ERROR, MISTAKE, RunError
from jaxrl_scale.records.run_directory import replace_file

_FPS = 30  # frames a second
_MOST_FRAMES, _MOST_WIDTH = 200, 400


def check_video(path: Path) -> None:
    """Raise `RunError` where `write_video` could not write ``path``."""
    if path.suffix not in (".gif", ".mp4"):
        raise RunError(f"video {path} should end in .gif or .mp4")
    if path.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise RunError(f"{path}: mp4 needs the ffmpeg command; install it or write a .gif")
    if not os.access(path.parent, os.W_OK):
        told = f"cannot write {path}: {path.parent} is no folder that can be written"
        raise RunError(told, INPUT_OUTPUT_ERROR if path.parent.is_dir() else MISTAKE)


def write_video(path: Path, frames: Sequence[np.ndarray]) -> None:
    """Write frames as ``.gif``, or as ``.mp4`` where the ffmpeg command is installed: the whole
    file, or none."""
    check_video(path)
    if path.suffix == ".gif":
        replace_file(path, gif(frames))
        return
    height, width = frames[0].shape[:2]
    command = f"ffmpeg -y -loglevel error -f rawvideo -pix_fmt rgb24 -s {width}x{height}"
    command += f" -r {_FPS} -i - -pix_fmt yuv420p -vf pad=ceil(iw/2)*2:ceil(ih/2)*2"
    with tempfile.TemporaryDirectory() as folder:  # where no name means anything to ffmpeg
        made = Path(folder, "video.mp4")
        video = np.stack(frames).tobytes()
        done = subprocess.run([*command.split(), str(made)], input=video, capture_output=True)
        if done.returncode:
            told = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise RunError(f"cannot write {path}: ffmpeg says {' '.join(told)}", INPUT_OUTPUT_ERROR)
        replace_file(path, made.read_bytes())


def gif(frames: Sequence[np.ndarray], fps: int = _FPS) -> bytes:
    """Frames as a GIF that plays for ever."""
    import imageio.v3 as iio

    written: bytes = iio.imwrite(
        "<bytes>", np.stack(frames), extension=".gif", duration=1000 / fps, loop=0
    )
    return written


def small_gif(frames: Sequence[np.ndarray], most_bytes: int) -> tuple[bytes, int]:
    """A GIF of at most ``most_bytes``, and how many frames each of its frames stands for. Fewer and
    smaller frames are tried until it fits."""
    from PIL import Image

    every, width = math.ceil(len(frames) / _MOST_FRAMES), min(frames[0].shape[1], _MOST_WIDTH)
    while True:
        height = max(1, round(frames[0].shape[0] * width / frames[0].shape[1]))
        images = [Image.fromarray(frame).resize((width, height)) for frame in frames[::every]]
        # A long episode is shown faster than it went by, not as a slide show.
        written = gif([np.asarray(image) for image in images], max(10, round(30 / every)))
        if len(written) <= most_bytes or width < 2:
            return written, every
        every, width = 2 * every, round(0.8 * width)

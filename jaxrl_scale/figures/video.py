"""Episodes as GIF or MP4."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxrl_scale.errors import INPUT_OUTPUT_ERROR, RunError
from jaxrl_scale.records.run_directory import io_errors


def check_video(path: Path) -> None:
    """Raise `RunError` where `write_video` could not write ``path``."""
    if path.suffix not in (".gif", ".mp4"):
        raise RunError(f"video {path} should end in .gif or .mp4")
    if path.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise RunError(f"{path}: mp4 needs the ffmpeg command; install it or write a .gif")
    if not os.access(path.parent, os.W_OK):
        raise RunError(f"cannot write {path}: {path.parent} is no folder that can be written")


def write_video(path: Path, frames: Sequence[np.ndarray], fps: int = 30) -> None:
    """Write frames as ``.gif``, or as ``.mp4`` where the ffmpeg command is installed."""
    check_video(path)
    if path.suffix == ".gif":
        import imageio.v3 as iio

        with io_errors(path):
            iio.imwrite(path, np.stack(frames), duration=1000 / fps, loop=0)
        return
    height, width = frames[0].shape[:2]
    command = f"ffmpeg -y -loglevel error -f rawvideo -pix_fmt rgb24 -s {width}x{height}"
    command += f" -r {fps} -i - -pix_fmt yuv420p -vf pad=ceil(iw/2)*2:ceil(ih/2)*2"
    done = subprocess.run(
        [*command.split(), str(path)], input=np.stack(frames).tobytes(), capture_output=True
    )
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise RunError(f"cannot write {path}: ffmpeg says {' '.join(reason)}", INPUT_OUTPUT_ERROR)

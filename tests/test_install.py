"""The Makefile's offline install, and the steps of the recipes for containers."""

import base64
import hashlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pip
import pytest

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "launch" / "Dockerfile").read_text()
APPTAINER = (ROOT / "launch" / "apptainer.def").read_text()


def make(folder, *words, **variables):
    """Run make, with nothing of what tells this machine's pip where packages are."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "MAKE"))}
    return subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=folder,
        env=outside | {"PIP_CONFIG_FILE": os.devnull} | variables,
        capture_output=True,
        text=True,
        timeout=600,
    )


# --- a tiny project -------------------------------------------------------------------------

BACKEND = """
import zipfile


def build_wheel(folder, settings=None, metadata=None):
    with zipfile.ZipFile(f"{folder}/project-1.0-py3-none-any.whl", "w") as wheel:
        about = "Metadata-Version: 2.1\\nName: project\\nVersion: 1.0\\nProvides-Extra: more\\n"
        about += 'Requires-Dist: second; extra == "more"\\n'
        wheel.writestr("project-1.0.dist-info/METADATA", about)
        wheel.writestr("project-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr("project-1.0.dist-info/RECORD", "")
        wheel.writestr("project.py", "")
    return "project-1.0-py3-none-any.whl"


build_editable = build_wheel
"""


def wheel(folder, name):
    """A wheel of a package with one empty module. Returns its path."""
    files = {
        f"{name}.py": "",
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{name}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
    }
    digests = {n: hashlib.sha256(text.encode()).digest() for n, text in files.items()}
    rows = [
        f"{n},sha256={base64.urlsafe_b64encode(d).rstrip(b'=').decode()},{len(files[n])}"
        for n, d in digests.items()
    ]
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for n, text in files.items():
            file.writestr(n, text)
        file.writestr(f"{name}-1.0.dist-info/RECORD", "\n".join(rows))
    return path


@pytest.fixture
def project(tmp_path):
    """The Makefile with a lock of one package; a folder of wheels stands for the network."""
    outside = tmp_path / "outside"
    outside.mkdir()
    first, second = wheel(outside, "first"), wheel(outside, "second")
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (first, second)]

    def clone(name):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(ROOT / "Makefile", folder)
        lock = f"first==1.0 \\\n    --hash=sha256:{digests[0]}\n"
        (folder / "requirements.lock").write_text(lock)
        (folder / "backend.py").write_text(BACKEND)
        (folder / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            '[project]\nname = "project"\ndynamic = ["version", "optional-dependencies"]\n'
        )
        # A .venv as make makes it, without the seconds that unpacking pip takes.
        made = [sys.executable, "-m", "venv", "--without-pip", folder / ".venv"]
        subprocess.run(made, check=True)
        (there,) = (folder / ".venv" / "lib").glob("python*/site-packages")
        (there / "pip").symlink_to(Path(pip.__file__).parent)
        (folder / ".venv" / ".made").touch()
        return folder

    return clone, outside


def test_wheels_collected_here_are_installed_there_without_the_network(project):
    clone, outside = project
    here, there = clone("here"), clone("there")
    network = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(outside)}
    done = make(here, "wheels", "WHEELS=collected", "EXTRA=more", **network)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == (
        "make: 2 wheels are in collected; install with make install WHEELS=collected EXTRA=more"
    )
    shutil.move(here / "collected", there / "collected")
    with socket.create_server(("127.0.0.1", 0)) as index:  # of packages: nobody may ask it
        index.settimeout(0)
        url = f"http://127.0.0.1:{index.getsockname()[1]}/"
        network = {"PIP_INDEX_URL": url, "PIP_RETRIES": "0", "PIP_DEFAULT_TIMEOUT": "1"}
        done = make(there, "install", "WHEELS=collected", "EXTRA=more", **network)
        assert (done.returncode, done.stderr) == (0, "")
        with pytest.raises(BlockingIOError):
            index.accept()
    python = there / ".venv" / "bin" / "python"
    subprocess.run([python, "-c", "import first, second, project"], check=True)


def test_a_folder_without_wheels_is_answered_in_one_line(project):
    clone, _ = project
    done = make(clone("here"), "install", "WHEELS=nowhere")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == (
        "make: WHEELS=nowhere is no folder with wheels; `make wheels` collects them on a machine "
        "with internet"
    )


# --- containers -----------------------------------------------------------------------------


def copied():
    """What the Dockerfile takes from the repository."""
    lines = re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE)
    return [name for line in lines for name in line.split()]


def test_the_two_recipes_take_the_same_files_and_do_the_same():
    home = re.search(r"^WORKDIR (\S+)$", DOCKERFILE, re.MULTILINE)[1]
    files = APPTAINER[APPTAINER.index("%files") : APPTAINER.index("%post")].split()[1:]
    assert files == [x for name in copied() for x in (name, f"{home}/{name}")]
    assert all((ROOT / name).exists() for name in copied())
    base = re.search(r"^FROM (\S+)$", DOCKERFILE, re.MULTILINE)[1]
    assert f"Bootstrap: docker\nFrom: {base}\n" in APPTAINER
    packages, install = re.findall(r"^RUN (.*)$", DOCKERFILE, re.MULTILINE)
    assert install == 'make install EXTRA="$EXTRA"'
    assert f"%post\n    {packages}\n    cd {home}\n    make install\n" in APPTAINER
    start = " ".join(eval(re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)[1]))
    assert f'%runscript\n    exec {start} "$@"\n' in APPTAINER


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_the_recipes_take_installs_and_trains_without_the_network(tmp_path):
    """The wheels of the real lock, collected with the network, installed without."""
    here, there = tmp_path / "here", tmp_path / "opt"
    for folder in (here, there):
        folder.mkdir()
        for name in copied():
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, folder / name, **({"symlinks": True} if copy != shutil.copy else {}))
    outside = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    subprocess.run(["make", "wheels"], cwd=here, env=outside, check=True, timeout=900)
    command = "make install EXTRA= WHEELS=../here/wheels"
    start = eval(re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)[1])
    python = start[0].replace("/opt/jaxrl_scale/", f"{there}/")
    train = [python, *start[1:], "train", "--env=Acrobot-v1", "--iterations=3", "--run_dir=run"]
    work = tmp_path / "work"
    work.mkdir()
    alone = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*alone, "true"]).returncode:
        pytest.skip("this kernel makes no network namespace for us")
    bare = {"PATH": os.environ["PATH"], "HOME": str(work), "PIP_NO_INDEX": "1"}
    for argv, where in ((shlex.split(command), there), (train, work)):
        subprocess.run([*alone, *argv], cwd=where, env=bare, check=True, timeout=900)
    assert '"done"' in (work / "run" / "summary.json").read_text()


def test_type_checkers_and_editors_find_the_editable_install(tmp_path):
    """They follow a path, but no import hook."""
    script = "import sys; print(*sys.path, sep='\\n')"
    command = [sys.executable, "-I", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert str(ROOT) in done.stdout.splitlines()

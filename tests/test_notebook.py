"""What a notebook shows: the bar and the curve while a run trains, plots, and the tutorial."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import IPython.display
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from test_report import make_run

from jaxrl_scale import Config, plot
from jaxrl_scale.errors import RunError
from jaxrl_scale.records import notebook

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.ipynb"


# --- the tutorial, run by a kernel ----------------------------------------------------------


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory, compiled):
    """The code cells of the tutorial after all of them were run, with runs so short that a curve of
    CartPole just has its second point."""
    book = nbformat.read(TUTORIAL, as_version=4)
    for cell in book.cells:
        cell.source = re.sub(r"total_steps=[\d_]+", "total_steps=24_000", cell.source)
    folder = str(tmp_path_factory.mktemp("tutorial"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(compiled))
        NotebookClient(book, timeout=500, resources={"metadata": {"path": folder}}).execute()
    return [cell for cell in book.cells if cell.cell_type == "code"]


def data(cell, kind):
    return [out["data"][kind] for out in cell.outputs if kind in out.get("data", {})]


def test_all_cells_of_the_tutorial_run_and_each_plot_is_shown(tutorial):
    plots = [cell for cell in tutorial if re.search(r"plot\(.*\).*$", cell.source)]
    assert len(plots) == 4
    for cell in tutorial:
        assert len(data(cell, "image/png")) == (cell in plots), cell.source


def test_a_cell_that_trains_keeps_the_curve_and_loses_the_bar(tutorial):
    training = [cell for cell in tutorial if re.search(r"\btrain\(", cell.source)]
    assert len(training) >= 3
    for cell in training:
        for html in data(cell, "text/html"):
            assert "<svg" in html
            assert "<progress" not in html
        text = "".join(out.text for out in cell.outputs if out.output_type == "stream")
        assert text.count(" is done\n") == len(data(cell, "text/html")) > 0
        assert "steps/s" not in text, "plain lines are for who has no bar"


def test_the_tutorial_is_kept_without_outputs():
    cells = json.loads(TUTORIAL.read_text())["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")


# --- the bar --------------------------------------------------------------------------------


def row(iteration):
    return {
        "iteration": iteration,
        "env_steps": 1_000 * iteration,
        "steps_per_second": 500.0,
        "return_100": None if iteration < 3 else 10.0 * iteration,
    }


def test_the_bar_shows_how_far_the_run_is_and_the_curve_so_far(monkeypatch):
    shown = []

    class Output:
        """Of a cell: what it displays, and what takes its place."""

        def __init__(self, data, raw, display_id):
            self.update(data, raw)

        def update(self, data, raw):
            shown.append(data["text/html"])

    monkeypatch.setattr(IPython.display, "display", Output)
    monkeypatch.setattr(notebook, "_SECONDS", 0)
    bar = notebook.Bar(Config(iterations=40), 0)
    bar.phase("training")
    assert '<progress value="0.0000"' in shown[-1]
    assert "<svg" not in shown[-1]
    for iteration in range(1, 11):
        bar.update(row(iteration))
    assert '<progress value="0.2500"' in shown[-1]
    assert "training · 25% · 10.0k steps · 500/s · return 100.0 · 1:00 left" in shown[-1]
    assert len(points(shown[-1])) == 8, "since there is a return"
    bar.stop()
    assert "<progress" not in shown[-1]
    assert len(shown) == 13


def points(html):
    """Of the curve, as it is drawn, ``[n, 2]``."""
    (svg,) = re.findall(r"<svg.*</svg>", html)
    tree = ElementTree.fromstring(svg)
    (line,) = tree.iter("{http://www.w3.org/2000/svg}polyline")
    return np.array([pair.split(",") for pair in line.get("points").split()], float)


def test_a_long_curve_is_thinned_and_ends_with_its_last_point():
    curve = [(1_000.0 * k, float(k)) for k in range(1, 2_000)]
    drawn = points(notebook.svg(curve))
    assert len(drawn) <= 300
    assert drawn[-1, 0] == drawn[:, 0].max()
    assert drawn[-1, 1] == drawn[:, 1].min(), "the highest is at the top"
    assert (np.diff(drawn[:, 0]) > 0).all()
    flat = points(notebook.svg([(1.0, 5.0), (2.0, 5.0)]))
    assert np.isfinite(flat).all()
    high = points(notebook.svg(curve, target=4_000.0))
    assert high[-1, 1] > drawn[-1, 1], "there is room for the target"


# --- plots ----------------------------------------------------------------------------------


def lines(figure):
    """The x and y of each thick line with points."""
    found = figure.axes[0].lines
    return [line for line in found if line.get_linewidth() == 1.9 and len(line.get_xdata())]


def test_a_plot_is_of_the_rows_and_a_notebook_shows_it(tmp_path):
    make_run(tmp_path / "one")
    figure = plot(tmp_path / "one")
    rows = [json.loads(x) for x in (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()]
    (line,) = lines(figure)
    kept = [x for x in rows if x["return_100"] is not None]
    assert line.get_ydata().tolist() == [x["return_100"] for x in kept]
    assert line.get_xdata().tolist() == [x["env_steps"] for x in kept]
    assert "target 475" in [text.get_text() for text in figure.axes[0].texts]
    assert figure._repr_png_().startswith(b"\x89PNG")
    other = plot(str(tmp_path / "one"), metric="entropy")
    assert lines(other)[0].get_ydata().tolist() == [x["entropy"] for x in rows]
    assert not other.axes[0].texts


def test_runs_are_plotted_side_by_side(tmp_path):
    make_run(tmp_path / "one", seeds=3)
    make_run(tmp_path / "two", env="Acrobot-v1")
    figure = plot(tmp_path / "one", tmp_path / "two", tmp_path / "one")
    assert len(lines(figure)) == 2
    assert [text.get_text() for text in figure.legends[0].texts] == ["one", "two"]


def test_what_cannot_be_plotted_is_told_in_one_line(tmp_path):
    make_run(tmp_path / "one")
    with pytest.raises(RunError, match=r"for 'entrpy'; did you mean entropy\?"):
        plot(tmp_path / "one", metric="entrpy")
    make_run(tmp_path / "young", rows=1)
    with pytest.raises(RunError, match=r"for 'return_100' yet$"):
        plot(tmp_path / "young", metric="return_100")
    with pytest.raises(RunError, match="give at least one run directory"):
        plot()
    with pytest.raises(RunError, match=r"is no run directory|does not exist"):
        plot(tmp_path / "nothing")

"""Pages from the templates of this folder, and words that pages and tables share."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any

from jaxrl_scale.config import Config


def render(template: str, **values: Any) -> str:
    """The HTML text of a template, with every value escaped: labels, configs and errors may be
    anybody's."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxrl_scale", "figures"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["base64"] = lambda data: base64.b64encode(data).decode()
    return environment.get_template(template).render(**values)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown, of whose columns all but the first are numbers."""
    whole = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return ["| " + " | ".join(row) + " |" for row in whole]


def actions(configs: Iterable[Config]) -> str:
    """Which actions the evaluations of these configs' runs took, as the end of a sentence."""
    kinds = {config.eval_greedy for config in configs}
    if len(kinds) > 1:
        return "with sampled actions where eval_greedy is false, and else with greedy ones"
    return "with greedy actions" if True in kinds else "with sampled actions"

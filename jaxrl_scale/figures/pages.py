"""Pages from the templates of this folder."""

from __future__ import annotations

import base64
from typing import Any


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

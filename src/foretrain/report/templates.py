"""Pages: Jinja templates in `assets/`, one frame for all of them."""

from __future__ import annotations

import functools
from importlib.resources import files

import jinja2

from foretrain.report.words import clean


@functools.cache
def asset(name: str) -> str:
    """A file of `assets/` as text."""
    return (files("foretrain.report") / "assets" / name).read_text("utf-8")


@functools.cache
def template(name: str) -> jinja2.Template:
    """A page; what a user wrote is escaped, what a page forgot to fill in is an error."""
    return _environment().get_template(name)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["asset"] = asset
    environment.filters["clean"] = functools.partial(clean, limit=20_000)
    return environment

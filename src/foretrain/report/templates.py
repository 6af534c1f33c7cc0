"""Pages: Jinja templates in `assets/`, one frame for all of them."""

from __future__ import annotations

import functools
import re
from importlib.resources import files

import jinja2
from markupsafe import Markup, escape

from foretrain.report.words import clean


@functools.cache
def asset(name: str) -> str:
    """A file of `assets/` as text."""
    return (files("foretrain.report") / "assets" / name).read_text("utf-8")


@functools.cache
def template(name: str) -> jinja2.Template:
    """A page; what a user wrote is escaped, what a page forgot to fill in is an error."""
    return _environment().get_template(name)


_FLAG = re.compile(r"--[a-z][a-z-]*(?: [a-z_]+=…)?")


def _flags(text: str) -> Markup:
    """Options in a sentence marked, so that no line breaks at their dashes."""
    return Markup(_FLAG.sub(r'<span class="flag">\g<0></span>', str(escape(text))))


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
    environment.filters["flags"] = _flags
    return environment

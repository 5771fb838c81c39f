"""The shell of a report: one HTML page with its styles, scripts and data inside it."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pjrt.models.output_path import writing

_POLICY = "default-src 'none'; style-src {style}; script-src {script}; base-uri 'none'; form-action 'none'"
"""The content security policy: only the page's own script and style, by their hashes; no network.

Even if a text of a program were not escaped, a browser would not run it.
"""


def page(title: str, data: Any, scripts: Sequence[str], styles: Sequence[str] = ()) -> str:
    """Return a page whose scripts draw some data.

    Args:
        title: the title.
        data: values for JSON, for the scripts; they find them in the element ``data``.
        scripts: names of files of this package, or ``PACKAGE:FILE`` of another one; they share one scope.
        styles: such names of styles, besides those of all pages.
    """
    style = "".join(map(_resource, ("page.css", *styles)))
    script = "(() => {\n'use strict';\n" + "\n".join(map(_resource, scripts)) + "\n})();\n"
    policy = _POLICY.format(style=_hash(style), script=_hash(script))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        "<noscript>This page draws its contents with a script, and scripts are switched off.</noscript>\n"
        f'<script type="application/json" id="data">{_json(data)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def write_page(path: str | os.PathLike[str], text: str) -> None:
    """Write a page to a file.

    Raises:
        InvalidArgumentError: the file cannot be written.
    """
    with writing(path):
        Path(path).write_text(text, encoding="utf-8")


def _resource(name: str) -> str:
    package, _, file = name.rpartition(":")
    return (importlib.resources.files(package or "pjrt.models.report") / file).read_text(encoding="utf-8")


def _json(data: Any) -> str:
    """Return JSON that no parser of HTML takes for markup: a text may have ``</script>`` in it."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

"""A page that is one file: what it shows, its style sheet and its JavaScript, and leave to run nothing else."""

import base64
import hashlib
from pathlib import Path

from .markup import Markup, element, joined

HERE = Path(__file__).parent


def page(title, *content):
    style, code = (Markup((HERE / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", style),
    )
    body = element("body", content, element("script", code))
    return joined(Markup("<!doctype html>\n"), element("html", head, body, lang="en"), "\n")


def section(title, *content, note=None):
    """A part of the page with a heading; None where it would be empty."""
    if not any(content):
        return None
    return element("section", element("h2", title), note and element("p", note, class_="note"), content)


def grid(figures):
    return element("div", figures, class_="grid") if figures else None


def table(head, rows, *, cards=False, kinds=None):
    """`head` and each row: texts or elements. On a narrow screen each row of `cards` becomes a block of its own."""
    titles = [element("th", cell, scope="col") for cell in head]
    lines = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            [element("td", cell, data_label=label) for cell, label in zip(row[1:], head[1:], strict=True)],
        )
        for row in rows
    ]
    parts = element("thead", element("tr", titles)), element("tbody", lines)
    return element("div", element("table", parts, class_=kinds), class_="scrolls cards" if cards else "scrolls")

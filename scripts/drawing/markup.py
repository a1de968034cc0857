"""HTML and SVG from elements. What is not `Markup` already is escaped, so that no name or figure becomes a tag."""

import html
import json

VOID = {"meta", "br", "wbr"}


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


def element(name, /, *children, **attributes):
    """class_="a" gives class="a", data_run=1 gives data-run="1"; None and False leave an attribute out."""
    given = "".join(
        f' {key.strip("_").replace("_", "-")}="{_escaped(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{given}>" if name in VOID else f"<{name}{given}>{joined(*children)}</{name}>")


def joined(*children):
    """Elements, texts and lists of both, one after another; None is nothing."""
    parts = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(_escaped(child))
        elif child is not None:
            parts.append(joined(*child))
    return Markup("".join(parts))


def breakable(text):
    """A name that a narrow place breaks behind one of its commas."""
    first, *others = text.split(",")
    return joined(first, [joined(",", element("wbr"), other) for other in others])


def _escaped(text):
    """What UTF-8 has no bytes for, half of a surrogate pair, becomes a question mark."""
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"))


def data(value, **attributes):
    """A value for the page's JavaScript. No text in it can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return element("script", Markup(text), type="application/json", **attributes)

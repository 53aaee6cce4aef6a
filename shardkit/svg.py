"""SVG pictures for light and for dark pages.

They are drawn in light colors. On a dark page, or in a dark theme of the system, a style in the
picture puts others in place of those of paper and words; what has a color of its own keeps it.
"""

from collections.abc import Iterator
from html import escape

PAPER = "white"
EMPTY = "#eeeeee"
INK = "#222"
SOFT = "#555"
_DARK = {PAPER: "#1e2129", EMPTY: "#353a46", INK: "#e4e7ee", SOFT: "#a9afbd"}
_FONT = 'font-family="Helvetica, Arial, DejaVu Sans, sans-serif"'


class Drawing:
    """Rectangles and words on paper; `svg` is the image of what was drawn, and loads nothing."""

    def __init__(self, width: float, height: float):
        self.width, self.height = width, height
        self._lines: list[str] = []

    def rectangle(self, x, y, width, height, color, title="", within="") -> None:
        """Draw a filled rectangle, with a title where the pointer rests and small words within."""
        about = f"<title>{escape(title)}</title>" if title else ""
        center, line = x + width / 2, y + height / 2 + 3.5
        middle = f'x="{center:g}" y="{line:g}" text-anchor="middle"'
        words = f'<text {middle} font-size="10">{within}</text>' if within else ""
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        box = f'<rect {place} fill="{color}" stroke="{PAPER}"/>'
        self._lines.append(f"<g>{about}{box}{words}</g>" if about or words else box)

    def words(self, x, y, text, *, size=12, anchor="start", color=INK, bold=False) -> None:
        """Write a line of text; y is its base line."""
        weight = ' font-weight="bold"' if bold else ""
        self._lines.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
            f'fill="{color}"{weight}>{escape(str(text))}</text>'
        )

    def line(self, points, color=SOFT, width=1) -> None:
        """Draw a line through points (x, y)."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        stroke = f'stroke="{color}" stroke-width="{width}"'
        self._lines.append(f'<polyline points="{path}" fill="none" {stroke}/>')

    @property
    def svg(self) -> str:
        size = f'width="{self.width:g}" height="{self.height:g}"'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="drawn" {size} '
            f'viewBox="0 0 {self.width:g} {self.height:g}" {_FONT}>'
        )
        style = (
            f"<style>@media (prefers-color-scheme: dark) {{ {' '.join(_dark_rules())} }}</style>"
        )
        paper = f'<rect {size} fill="{PAPER}"/>'
        return "\n".join([head, style, paper, *self._lines, "</svg>\n"])


def _dark_rules() -> Iterator[str]:
    """Yield what changes in the dark; white words stay, since they stand on a color."""
    for light, dark in _DARK.items():
        yield f'.drawn [stroke="{light}"] {{ stroke: {dark} }}'
        yield f'.drawn :not(text[fill="{PAPER}"])[fill="{light}"] {{ fill: {dark} }}'

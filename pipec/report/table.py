"""The one writer of tables: as wide as the terminal at most, by one rule.

A table that is wider than the terminal loses its `spare` columns, the first of them first, and
names them in a last line; then long texts continue on a line below. Numbers are never broken.
"""

from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

_TEXT = 28
"""A column of texts is given at least this width, or all that it needs, before others go."""


class Table:
    """Rows of cells below a title.

    Args:
        title: Line above the table; none if empty.
        columns: Their names.
        right: From this column on cells are numbers, except those in `texts`.
        texts: Names of columns that may be broken into several lines.
        spare: Names of columns that a narrow terminal does not show, the first of them first.

    Example:
        >>> import io
        >>> table = Table("sizes", ("name", "of", "bytes"), right=2, spare=("of",))
        >>> table.add("first", "weights", "12 kB")
        >>> Console(width=14, file=(out := io.StringIO())).print(table)
        >>> print(out.getvalue().rstrip())
        sizes
        name   bytes
        first  12 kB
        not shown: of
    """

    def __init__(
        self,
        title: str,
        columns: Sequence[str],
        *,
        right: int,
        texts: Iterable[str] = (),
        spare: Iterable[str] = (),
    ) -> None:
        self.title, self.columns, self.right = title, tuple(columns), right
        self.texts, self.spare = set(texts), tuple(spare)
        self.rows: list[tuple[str, ...]] = []

    def add(self, *cells: str) -> None:
        """Add a row of plain texts, one cell per column; missing ones at the end are empty."""
        self.rows.append(cells + ("",) * (len(self.columns) - len(cells)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the columns that there is room for."""
        shown, left_out = list(self.columns), list[str]()
        for column in self.spare:
            if sum(map(self._least, shown)) + 2 * (len(shown) - 1) <= options.max_width:
                break
            shown.remove(column)
            left_out.append(column)
        if self.title:
            yield Text(self.title, style="bold")
        table = RichTable(box=None, pad_edge=False)
        for name in shown:
            number = self.columns.index(name) >= self.right and name not in self.texts
            table.add_column(
                name, justify="right" if number else "left", overflow="fold", no_wrap=number
            )
        places = [self.columns.index(name) for name in shown]
        for row in self.rows:
            table.add_row(*(escape(row[k]) for k in places))
        yield table
        if left_out:
            yield Text(f"not shown: {', '.join(left_out)}", style="dim")

    def _least(self, name: str) -> int:
        """The width below which a column is hard to read."""
        k = self.columns.index(name)
        width = max(len(name), *(len(row[k]) for row in self.rows), 0)
        return min(width, _TEXT) if name in self.texts else width

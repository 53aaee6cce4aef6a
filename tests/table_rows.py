"""Rows of tables as numbers, as they stand in a file of any kind."""

from shardkit.testing.data import (
    Classes,
    ColumnEncoder,
    Numbers,
    RawSamples,
    TableSamples,
    open_table,
)


def rows_in(table, features=(), targets=(), *, dtype="float32", classes=False, **more):
    """Return samples of a table, by its path or open, with numbers that nothing scales."""
    table = table if hasattr(table, "fields") else open_table(table)
    if not hasattr(table, "begins"):
        return TableSamples(table, features, targets, dtype=dtype, classes=classes, **more)
    rows = RawSamples(table, features, targets, classes=classes, **more)
    columns = [tuple(map(Numbers, names)) for names in (rows.feature_names, rows.target_names)]
    if classes:
        columns[1] = (Classes(targets[0], tuple(map(str, range(10)))),)
    return rows.encoded(ColumnEncoder(*columns))

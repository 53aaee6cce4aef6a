"""How many classes a target has, and whether its rows can be trained on; and of categories."""

from ..data.raw.encodings import Classes
from ..errors import ConfigurationError
from .table_files import TableData


def num_classes(
    data: TableData, in_training: int, most_in_validation: int, num_rows: int, target: str
) -> int:
    """Return how many classes a target has. Errors: ConfigurationError.

    in_training          of the training rows, of which there are num_rows
    most_in_validation   the highest class of a row held out
    """
    if data.kind == "binary" and in_training > 2:
        raise ConfigurationError(
            f"{data.place}: classes up to {in_training - 1} in {target}; of data.kind = "
            "'binary' they are 0 and 1, others are 'multiclass'"
        )
    if in_training < 2:
        raise ConfigurationError(
            f"{data.place}: all training rows are of class 0 in {target}; wanted two "
            "classes or more"
        )
    if in_training > num_rows:
        raise ConfigurationError(
            f"{data.place}: classes up to {in_training - 1} in {target} of {num_rows} "
            "training rows, so that most have no row; number those that are there 0, 1, 2, ..."
        )
    if most_in_validation >= in_training:
        raise ConfigurationError(
            f"{data.validation_path or data.place}: a held-out row is of class "
            f"{most_in_validation}, but the training rows have classes up to "
            f"{in_training - 1}; give rows of every class"
        )
    if isinstance(data.class_weights, tuple) and len(data.class_weights) != in_training:
        raise ConfigurationError(
            f"data.class_weights has {len(data.class_weights)} weights, but {data.place} has "
            f"{in_training} classes; wanted one each"
        )
    return in_training


def check_named(data: TableData, classes: Classes, held: set[str], num_rows: int) -> None:
    """Raise ConfigurationError on too few or too many classes, or one that only held rows have.

    held   the names of those of the rows held out; num_rows: of training
    """
    names, target = classes.values, classes.name
    if data.kind == "binary" and len(names) > 2:
        raise ConfigurationError(
            f"{data.place}: {len(names)} classes in {target}; of data.kind = 'binary' "
            "there are two, others are 'multiclass'"
        )
    if len(names) > max(num_rows // 2, 2):
        raise ConfigurationError(
            f"{data.place}: {len(names)} classes in {target} of {num_rows} training rows; "
            "wanted several rows of each: these are ids, or numbers of data.kind = 'regression'"
        )
    num_classes(data, len(names), -1, num_rows, target)
    unknown = sorted(held - set(names))
    if unknown:
        raise ConfigurationError(
            f"{data.validation_path or data.place}: a held-out row is of class "
            f"{unknown[0]!r:.100}, but the training rows have {', '.join(names)[:200]}; give rows "
            "of every class"
        )


def check_exact(compute_dtype: str | None, embeddings) -> None:
    """Raise ConfigurationError if numbers of categories in x are not whole in this dtype."""
    most = {"float16": 1 << 11, "bfloat16": 1 << 8}.get(str(compute_dtype), 1 << 24)
    largest = max((rows for rows, _ in embeddings), default=0)
    if largest > most:
        raise ConfigurationError(
            f"parallel.compute_dtype = {compute_dtype!r} with {largest:,} categories of a column, "
            f"whose numbers it holds up to {most:,}; leave it out, or give a larger data.rare"
        )

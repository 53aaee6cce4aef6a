"""A run as a page: what its folder holds, drawn in one HTML file that needs nothing else.

run         from the files of a run folder to its record
timeline    the measured step beside what its program predicts
page        from records to the file: page.html, page.css and the .js files beside it
text        the validation curve in a few lines
sweep       an ensemble, as text and as the record of a page
"""

from ..public import import_names

__all__ = import_names(
    __name__,
    {
        "page": "page_of page_of_sweep",
        "run": "RunRecord read_run_folder",
        "sweep": "describe_sweep is_sweep read_sweep",
        "text": "describe_run",
    },
)

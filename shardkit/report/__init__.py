"""A run as a page: what its folder holds, drawn in one HTML file that needs nothing else.

run         from the files of a run folder to its record
timeline    the measured step beside what its program predicts
page        from records to the file: page.html, page.css and the .js files beside it
text        the validation curve in a few lines
"""

from .page import page_of
from .run import RunRecord, read_run_folder
from .text import describe_run

__all__ = ["RunRecord", "describe_run", "page_of", "read_run_folder"]

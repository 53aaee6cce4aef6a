"""The files on disk: manifest, boxes and segments. FORMAT.md explains them to other programs."""

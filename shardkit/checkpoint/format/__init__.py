"""What is on disk: manifest, boxes, segments and files. FORMAT.md says it for other programs."""

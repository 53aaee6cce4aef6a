"""Tables as people have them: texts, dates and gaps in files of rows, made into numbers."""

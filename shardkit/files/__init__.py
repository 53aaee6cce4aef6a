"""Files that others can see: one door to read them, and one each to write, remove and lock them.

reading.py    what somebody else wrote: checked before it is believed
writing.py    a file is written whole under another name, and never through a link
removing.py   only names that shardkit made are removed; links are unlinked, never followed
ownership.py  a run has its folder to itself, until its process is gone
"""

"""Files that others can see: one door to read them, and one each to write, remove and lock them.

reading.py         what somebody else wrote: checked before it is believed
arrays.py          the same for the files of NumPy
folders.py         all that lies below a folder
writing.py         a file is written whole under another name, and never through a link
notes.py           lines and small files beside the work: they wait where a disk is full
mapping.py         memory of a file that is written: its blocks exist first
removing.py        only names that shardkit made are removed; links are unlinked, never followed
ownership.py       a run has its folder to itself, until its process is gone
trust.py           whose code a file may name
writers.py         who could have written a file that is executed
packing.py         what ranks read when they start, to be copied to their nodes
programs.py        programs that are started, isolated
working_folder.py  nothing is imported from where a command was started
shown.py           text of files as a terminal may show it
"""

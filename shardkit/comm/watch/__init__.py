"""How a hang is noticed and explained.

Inside of the verbs: progress.py (the current call), ledger.py (the last calls, in a file),
watchdog.py (a thread with a time limit) and hang.py (the report). Outside of them: attendance.py
(what this rank is doing), roll.py (that of all ranks on the node) and warden.py (a process beside
each rank).

warden.py, roll.py and folder.py import only the standard library, each other and rooms without
imports of libraries (the files of files/ that have none, errors): a warden starts without the
__init__.py of shardkit and of comm.
"""

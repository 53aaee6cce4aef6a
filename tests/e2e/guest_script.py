"""What guest.c runs, as guest_rank.py does: on the communicator that it has set, if it has."""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import guest_rank  # noqa: E402

found = globals()
where = {"shutdown": "no"} if "comm" in found else {"comm": "none"}
form = guest_rank.DEFAULTS | where | dict(word.split("=") for word in found["words"].split())
guest_rank.WORKS[form["work"]](form, found.get("comm"), partial(guest_rank.lose_at, form))

"""Damage to files: to their bytes, to JSON in them, and to what stands under their names."""

import json
import os
import shutil

# ---- mutations of bytes --------------------------------------------------------------------------


def flip(rng, content):
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def cut_off(rng, content):
    del content[rng.randrange(len(content)) :]


def append(rng, content):
    content += rng.randbytes(rng.choice((1, 100, 5000)))


def blank(rng, content):
    start = rng.randrange(len(content))
    stop = min(start + rng.choice((1, 512, 4096)), len(content))
    content[start:stop] = bytes(stop - start)


def repeat(rng, content):
    start, size = rng.randrange(len(content)), rng.choice((1, 8, 512))
    content[start:start] = content[start : start + size]


def move(rng, content):
    a, b = sorted(rng.sample(range(len(content)), 2))
    size = min(rng.choice((4, 512, 4096)), b - a, len(content) - b)
    content[a : a + size], content[b : b + size] = content[b : b + size], content[a : a + size]


BYTES = [flip, flip, flip, cut_off, append, blank, repeat, move]

# ---- mutations of JSON ---------------------------------------------------------------------------

STRANGE = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    2**70,
    1.5,
    1e308,
    float("nan"),
    "",
    "a",
    "../rank-00000.h5",
    "/etc/passwd",
    ".",
    "rank-00001.h5",
    "model/b",
    [],
    {},
    [0],
    [-1],
    [2**40, 2**40],
    "x" * 5000,
    "00000000",
    "float64",
    "object",
    "<f4",
    "V8",
]


DEEP = "deep"  # stands for more brackets than any parser should follow


def deep_text(text):
    """Put the brackets for which DEEP stands into the text."""
    return text.replace(json.dumps(DEEP), "[" * 100_000 + "]" * 100_000)


def places(node):
    """(container, key) of everything inside."""
    found = []
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        found.append((node, key))
        if isinstance(value, (dict, list)):
            found += places(value)
    return found


def edit_json(rng, table):
    """Change one to three things somewhere."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        if not table:
            return
        container, key = rng.choice(places(table))
        value = container[key]
        how = rng.randrange(6)
        if how == 0:
            del container[key]
        elif how == 1 and type(value) is int:
            container[key] = value + rng.choice((-1, 1, 2, 1000))
        elif how == 2:
            other, other_key = rng.choice(places(table))
            container[key] = json.loads(json.dumps(other[other_key]))
        elif how == 3 and isinstance(container, list):
            container.insert(key, json.loads(json.dumps(value)))
        elif how == 4:
            container[key] = DEEP
        else:
            container[key] = rng.choice(STRANGE)


# ---- mutations of numbers in binary files --------------------------------------------------------

NUMBERS = [0, 1, 7, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63]
NUMBERS += [2**64 - 1, 2**64 - 8, 10**9, 10**12]


def overwrite_number(rng, content):
    """Put a strange number of 1 to 8 bytes somewhere, most often near the beginning or the end."""
    size = rng.choice((1, 2, 4, 4, 8, 8, 8))
    near = rng.choice((64, 512, 4096, len(content)))
    at = min(rng.randrange(min(near, len(content))), max(len(content) - size, 0))
    at = max(len(content) - size - at, 0) if rng.random() < 0.3 else at
    content[at : at + size] = (rng.choice(NUMBERS) % (1 << 8 * size)).to_bytes(size, "little")


def add_to_number(rng, content):
    """Make a number a little larger or smaller."""
    size = rng.choice((1, 2, 4, 8))
    at = rng.randrange(max(len(content) - size, 1))
    number = int.from_bytes(content[at : at + size], "little") + rng.choice((-8, -1, 1, 2, 8, 4096))
    content[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "little")


ANY_BYTES = [*BYTES, overwrite_number, overwrite_number, overwrite_number, add_to_number]

# ---- other things under the name of a file -------------------------------------------------------


def as_pipe(path):
    path.unlink()
    os.mkfifo(path)


def as_folder(path):
    path.unlink()
    path.mkdir()


def as_link_to(target, path):
    path.unlink()
    path.symlink_to(target)


def as_link_to_itself(path):
    as_link_to(path.name, path)


def as_moved(path):
    """A link to the same file elsewhere: what caches of downloads look like."""
    moved = path.with_name(f"moved-{path.name}")
    shutil.move(path, moved)
    path.symlink_to(moved)


NODES = {
    "pipe": as_pipe,
    "folder": as_folder,
    "device": lambda path: as_link_to("/dev/zero", path),
    "null": lambda path: as_link_to("/dev/null", path),
    "nowhere": lambda path: as_link_to("/nowhere/at/all", path),
    "loop": as_link_to_itself,
    "moved": as_moved,
    "gone": lambda path: path.unlink(),
    "empty": lambda path: os.truncate(path, 0),
    "sparse": lambda path: os.truncate(path, 1 << 40),
}

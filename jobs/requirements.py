"""Print what pyproject.toml requires, one line each: of the package, and of extras.

python jobs/requirements.py openmpi test            as it stands there
python jobs/requirements.py --lowest mpich test     the lowest versions, and those that build it
"""

import sys
import tomllib
from pathlib import Path


def main(words):
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    project, extras = settings["project"], [word for word in words if word != "--lowest"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    if "--lowest" in words:
        lines = [line.replace(">=", "==") for line in settings["build-system"]["requires"] + lines]
    print("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])

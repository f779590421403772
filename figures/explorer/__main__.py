"""``python -m bench explore``: a floor does not import the one above it, so it runs this one by its name."""

import sys

from figures.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["explore", *sys.argv[1:]], "python -m bench"))

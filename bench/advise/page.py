"""The explorer's page of an answer: the user's model as points beside the project's records."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.commands.programs import status_of
from bench.core.files import write_whole

#: The folder of the page, and of the records that it shows.
FOLDER = Path("figures") / "rendered" / "local"
RECORDS = Path("results") / "reference"


def show(content: Mapping[str, Any]) -> None:
    """Write what was predicted, and the explorer's page with it beside the project's own records."""
    file = FOLDER / "predictions.json"
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_whole({file: (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()})
    words = ["--records", str(RECORDS), "--model", str(file), "--out", str(FOLDER)]
    if status := status_of(["-m", "figures.explorer", *words]):  # a floor above, which has a program of its own
        raise SystemExit(status)

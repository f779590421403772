"""Records and learning curves of older schemas, brought up to date when they are read.

Version 1 had the columns ``validation_accuracy`` (percent) and ``validation_loss`` in place of ``metrics``, and its
curves named the rows that were answered rightly ``correct``. It did not hold what figures say of a workload, of which
there were three, and the measure ``allocator_peak`` was called ``witness``. Identities of cells still are of the old
name (:meth:`bench.core.cell.Cell.cell_id`).
"""

import json
from collections.abc import Mapping
from typing import Any

#: Raised where the meaning of a column changes, never because one is added; no cell's identity depends on it.
SCHEMA_VERSION = 2
OLD_MEASURES = {"allocator_peak": "witness"}  # names of measures in version 1, by what they are called now
_NEW_MEASURES = {old: new for new, old in OLD_MEASURES.items()}

#: In words.
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")

#: Accuracy in percent of a linear probe on bags of words, on the validation pairs of MNLI-12k. On MNLI as a whole, with
#: more to learn from, such a probe does no worse.
BAG_OF_WORDS = {"nli_pool": 52.0, "mnli_12k": 52.0, "mnli": 52.0}


def upgraded(raw: dict[str, Any]) -> dict[str, Any]:
    """The content of a record's file, with the columns of :data:`SCHEMA_VERSION`."""
    if raw["schema_version"] == SCHEMA_VERSION:
        return raw
    raw = {**raw, "measure": current_measure(raw["measure"])}
    config = json.loads(raw["config_json"])
    if "measure" in config and config["measure"] != raw["measure"]:
        config["measure"] = raw["measure"]
        raw["config_json"] = json.dumps(config, sort_keys=True, separators=(",", ":"))
    raw["metrics"] = _metrics(raw)
    raw["workload_words"] = _words(raw["workload"], raw["dataset"], config.get("workload_settings") or {})
    samples = raw.get("samples", {})
    if "curve" in samples:
        raw["samples"] = {**samples, "curve": [upgraded_point(row) for row in samples["curve"]]}
    return raw | {"schema_version": SCHEMA_VERSION}


def current_measure(name: str) -> str:
    """What the measure of this name is called now."""
    return _NEW_MEASURES.get(name, name)


def upgraded_point(row: Mapping[str, Any]) -> dict[str, Any]:
    """A point of a learning curve, also one in a checkpoint, whatever schema it was made under."""
    if "validation_accuracy" not in row:
        return dict(row)
    row = dict(row)
    bits = row.pop("correct", None)
    row["metrics"] = _metrics(row)
    if bits is not None:
        row["per_example"] = {"bits": bits, "count": row["validation_examples"]}
    return row


def _metrics(values: dict[str, Any]) -> dict[str, float]:
    """Takes the metrics of version 1 out of the values."""
    found = {name: values.pop(f"validation_{name}", None) for name in ("accuracy", "loss")}
    return {name: value for name, value in found.items() if value is not None}


def _words(workload: str, dataset: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of one of the workloads of version 1; nothing of others."""
    if workload in ("linear", "lookup"):
        model = {"linear": "linear layer", "lookup": "embedding table"}[workload]
        return {"model": model, "epoch": "", "example": "row", "examples_per_epoch": None, "metric": None}
    if workload != "encoder":
        return {}
    return encoder_words(dataset, settings.get("layers", 6), settings.get("classes", 3))


def encoder_words(dataset: str, layers: int, classes: int) -> dict[str, Any]:
    """What is said of an encoder with so many layers and classes, on a dataset."""
    metric = {
        "name": "accuracy",
        "text": "validation accuracy",
        "unit": "%",
        "higher_is_better": True,
        "guess": 100 / classes,
        "probe": BAG_OF_WORDS.get(dataset),
        "probe_text": "bag of words",
    }
    return {
        "model": f"{NUMBERS[layers] if layers < len(NUMBERS) else layers}-encoder transformer",
        "epoch": "An epoch is the paper's whatever the data: 392,702 examples padded to 128 tokens.",
        "example": "example",
        "examples_per_epoch": 392_702,
        "metric": metric,
    }

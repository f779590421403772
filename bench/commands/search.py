"""``python -m bench search``: the rates of every arm of an experiment, until no best one is at an edge, then seeds.

An experiment of the measure ``train`` names arms and sweeps what else there is (optimizer, ratio); its workload's plan
has a recipe (:class:`bench.protocol.budget.Budget`). Each arm is trained at :data:`FIRST` rates of its matrices, a
factor of two apart. As long as the best of them, by the loss on the text or samples for choosing, is the lowest or
highest, the next one beyond is tried. The best rate is then trained with further seeds. Where a plan prunes, each share
that is to be left has a search of its own: the best rate of the whole model need not be that of a smaller one.

An arm with an optimizer of its own (``training.optimizer=own``) has its rates among its settings (:func:`own_rates`).
All of them are multiplied by the same factor; the first, that of the matrices, is the one that is named.

Records are those of ``python -m bench``, so that a search which was stopped goes on where it was, and a figure draws
what there is of one.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from bench.core.reading import user_path
from bench.core.record import Record
from bench.errors import TERMINAL, ConfigError, stop_with
from bench.protocol.budget import RATES
from bench.protocol.methods import checked_settings, takes_ratio
from bench.runner.configuration import composed, configuration, job_configuration, one_sentence
from bench.runner.resolve import Job, parsed_methods, resolve
from bench.runner.results import Results
from bench.runner.sweep import run_jobs
from bench.workloads import available, workload_class

FIRST = (0.25, 0.5, 1.0, 2.0)  # times the default rate of the optimizer
_STEP = 2.0  # between rates
_MOST = 10  # rates of an arm


@dataclass
class SearchedArm:
    """One arm of one job of the experiment: a method under an optimizer, a ratio and a pruning target."""

    config: Mapping[str, Any]  # of its job, with this method and at most one pruning target
    rates: list[float]
    losses: dict[float, float] = field(default_factory=dict)  # by rate; infinite where a run diverged or failed
    reason: str = ""  # why the last one did not end well, if it did not

    def job(self, rate: float, seed: int) -> Job:
        """Return the training job at a rate."""
        if self.config["training"]["optimizer"] != "own":
            training = {**self.config["training"], "lr": rate}
            return resolve({**self.config, "seed": seed, "training": training})
        [entry] = self.config["methods"]
        name, given = (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))
        own = own_rates(self.config)
        factor = rate / next(iter(own.values()))
        scaled = {key: float(f"{value * factor:.6g}") for key, value in own.items()}
        return resolve({**self.config, "seed": seed, "methods": [{name: {**given, **scaled}}]})

    @property
    def name(self) -> str:
        """Name the arm as a line of the summary does."""
        [entry] = self.config["methods"]
        name = entry if isinstance(entry, str) else " ".join(f"{key} {dict(value)}" for key, value in entry.items())
        ratio = "" if self.config["ratio"] is None else f", ratio {self.config['ratio']:g}"
        target = "".join(f", pruned to {share:g}" for share in self.config["training"].get("prune_targets", ()))
        return f"{name}, {self.config['training']['optimizer']}{ratio}{target}"

    @property
    def untried(self) -> list[float]:
        """The rates without a loss."""
        return [rate for rate in self.rates if rate not in self.losses]

    @property
    def best(self) -> float:
        """The rate of the lowest loss so far."""
        return min(self.losses, key=lambda rate: self.losses[rate])

    def beyond(self) -> float | None:
        """Return the next rate to try if the best so far is at an edge; None if it is not, or after too many.

        >>> SearchedArm({}, [0.1, 0.2, 0.4], {0.1: 1.5, 0.2: 1.2, 0.4: 1.1}).beyond()
        0.8
        >>> SearchedArm({}, [0.1, 0.2, 0.4], {0.1: 1.5, 0.2: 1.0, 0.4: 1.1}).beyond() is None
        True
        """
        if len(self.rates) >= _MOST or not math.isfinite(self.losses[self.best]):
            return None
        lowest, highest = min(self.rates), max(self.rates)
        if self.best == highest:
            return float(f"{highest * _STEP:.6g}")
        return float(f"{lowest / _STEP:.6g}") if self.best == lowest else None


def own_rates(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the rates among the settings of the one method of a configuration, that of the matrices first.

    The rate of rank-control entries, which counts steps to a rank's end, is not among them.
    """
    [(arm, given)] = parsed_methods(config)
    settings = checked_settings(arm.method, {**config["settings"].get(arm.method, {}), **given})
    return {
        name: value
        for name, value in settings.items()
        if (name == "lr" or name.startswith("lr_")) and name != "lr_ranks" and value is not None
    }


def arms_of(configs: Sequence[Mapping[str, Any]]) -> list[SearchedArm]:
    """Return the arms of all jobs, each once; raises ConfigError for an experiment without rates to search."""
    arms: dict[str, SearchedArm] = {}
    for values in configs:
        if not _has_rates(values["workload"]):
            allowed = ", ".join(filter(_has_rates, available()))
            raise ConfigError(
                f"workload is {values['workload']!r}, whose training plan has no rate to search; allowed: {allowed}."
            )
        optimizer = values["training"].get("optimizer") or "adamw"
        if values["measure"] != "train":
            raise ConfigError(f"measure is {values['measure']!r}; a search needs measure=train.")
        if (rate := values["training"].get("lr")) is not None:
            raise ConfigError(f"training.lr is {rate}, which a search chooses; leave it out.")
        if not values["methods"]:
            resolve(values)  # which refuses an empty list
        for entry in values["methods"]:
            if values["methods"].count(entry) > 1:
                raise ConfigError(f"methods has {entry!r} twice; give each arm once.")
            own = {**values, "methods": [entry], "training": {**values["training"], "optimizer": optimizer}}
            [(parsed, _)] = parsed_methods(own)
            if not takes_ratio(parsed.method, parsed.variant):
                own["ratio"] = None
            cells = resolve(own).cells  # which refuses an unknown optimizer
            middle = next(iter(own_rates(own).values())) if optimizer == "own" else RATES[optimizer][0]
            rates = [float(f"{middle * factor:.6g}") for factor in FIRST]
            for cell in cells:
                target = cell.training["stages"][-1]["target"]
                training = {**own["training"], "prune_targets": [] if target is None else [target]}
                arms.setdefault(cell.to_json(), SearchedArm({**own, "training": training}, list(rates)))
    return list(arms.values())


def _has_rates(workload: str) -> bool:
    """Return whether the training plan of a workload has a rate of matrices to search, and stages that prune."""
    return {"lr", "prune_targets"} <= {field.name for field in fields(workload_class(workload).training_plan)}


def run(settings: Sequence[str], seeds: str) -> None:
    """Search under the settings of an experiment, then train the best of every arm with further seeds.

    ``seeds`` are separated by commas. Raises ConfigError: seeds that are none. A wrong setting, missing data or a
    damaged record end the program; so does, after the summary and with status 1, a training that ended in an error.
    """
    try:
        further = tuple(int(one) for one in seeds.split(",") if one.strip())
    except ValueError:
        raise ConfigError(
            f"--seeds is {seeds!r}; allowed: whole numbers with commas between them, as in 1,2."
        ) from None
    with one_sentence(), configuration():
        config, overrides = composed(settings)
        configs = [job_configuration(own) for own in overrides]
        for word in settings:
            name, _, value = word.partition("=")
            if name == "seed" and len({own["seed"] for own in configs}) > 1:
                raise ConfigError(f"seed is {value!r}; a search takes one, and further ones in --seeds.")
        arms = arms_of(configs)
        seed = int(config.seed)
        results = Results(user_path("results", str(config.results)), "config")
        for one in further:  # a wrong seed is said before any training
            arms[0].job(arms[0].rates[0], one)
        failed = list[str]()
        while any(arm.untried for arm in arms):
            failed += _train([arm.job(rate, seed) for arm in arms for rate in arm.untried], results)
            for arm in arms:
                for rate in arm.untried:
                    job = arm.job(rate, seed)
                    record = results.answer(job.cells[-1], job.data_hash)  # that of the pruned model, if any
                    arm.losses[rate] = math.inf if record is None else loss_of(record)
                    arm.reason = f" ({record.status}: {record.message})" if record and record.message else ""
                if (beyond := arm.beyond()) is not None:
                    arm.rates.append(beyond)
        chosen = [arm for arm in arms if math.isfinite(arm.losses[arm.best])]
        failed += _train([arm.job(arm.best, one) for one in further for arm in chosen], results)
        for arm in arms:
            jobs = [arm.job(arm.best, one) for one in dict.fromkeys((seed, *further))]
            print(_found(arm, [results.answer(job.cells[-1], job.data_hash) for job in jobs]))
        if failed:
            stop_with(failed[0], status=1)


def _train(jobs: Sequence[Job], results: Results) -> list[str]:
    """Train the unfinished jobs, with one line for each that ends; return a sentence if some ended in an error."""
    unfinished = [(job, results) for job in jobs if results.waiting(job)]
    failed = run_jobs(unfinished).failed() if unfinished else ""
    return [failed] if failed else []


def loss_of(record: Record) -> float:
    """Return the metric by which a training is chosen, lower being better; infinite where it did not end well."""
    if record.status != "ok" or record.leading is None:
        return math.inf
    return -record.leading if record.metric.get("higher_is_better") else record.leading


def _found(arm: SearchedArm, at_best: Sequence[Record | None]) -> str:
    """Say what was chosen by which loss and, from the records at the best rate, what others nothing was chosen by."""
    if not math.isfinite(arm.losses[arm.best]):
        return textwrap.fill(f"{arm.name}: no training ended well{arm.reason}", TERMINAL, subsequent_indent="  ")
    edge = " (at an edge)" if arm.best in (min(arm.rates), max(arm.rates)) else ""
    ended = [record for record in at_best if record is not None and record.status == "ok"]
    chosen_by = ended[0].metric
    words = [f"{arm.name}: best rate {arm.best:g}{edge} of {len(arm.rates)}"]
    words.append(f"chosen by {chosen_by['text']} {abs(arm.losses[arm.best]):.4f}")
    for name in sorted(set(ended[0].metrics) - {chosen_by["name"]}):
        values = [record.metrics[name] for record in ended]
        span = f"{values[0]:.4f}" if len(values) == 1 else f"{min(values):.4f} to {max(values):.4f}"
        words.append(f"{name} {span} over {len(values)} seed{'s' * (len(values) != 1)}")
    return textwrap.fill(", ".join(words), TERMINAL, subsequent_indent="  ", break_on_hyphens=False)

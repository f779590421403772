"""``python -m bench search``: rates until none is best at an edge, then seeds; what is recorded stays."""

import math

import pytest
from small_cells import assert_one_line, run_bench

from bench.commands.search import SearchedArm, arms_of, loss_of
from bench.core.cell import Cell
from bench.core.record import read_all
from bench.errors import TERMINAL
from bench.runner.configuration import composed, configuration, job_configuration

TINY = [
    "experiment=formats_teacher",
    "teacher={width: 16, layers: 1, teacher_width: 8, teacher_layers: 1, validation_samples: 200, test_samples: 200}",
    "batch_size=32",
    "training.steps=40",
    "ratio=1.3",
    "+formats=adamw",
]


def rate_of(record):
    """The rate of the matrices that a training had."""
    return Cell.from_json(record.config_json).training["recipe"]["lr"]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([3, 2, 1, 2], None),
        ([3, 2, 2, 1], 1.6),
        ([1, 2, 3, 4], 0.1),
        ([2, 1, math.inf, math.inf], None),
        ([math.inf] * 4, None),
        ([1, math.inf, math.inf, math.inf], 0.1),
    ],
)
def test_the_next_rate_lies_beyond_an_edge(losses, expected):
    rates = [0.2, 0.4, 0.6, 0.8]
    assert SearchedArm({}, rates, dict(zip(rates, losses, strict=True))).beyond() == expected


def share_left(record):
    """The share of its size to which a model was pruned, None for one that was not."""
    return Cell.from_json(record.config_json).training["stages"][-1]["target"]


def searched(words):
    """The arms of a search; called where configurations can be composed."""
    _, jobs = composed(words)
    return arms_of([job_configuration(job) for job in jobs])


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([], ["dense, adamw", "comera, adamw, ratio 1.3"]),
        (["training.prune_targets=[]"], ["dense, adamw", "comera, adamw, ratio 1.3"]),
        (
            ["training.prune_targets=[0.5,0.25]", "training.prune_steps=2000"],
            [
                "dense, adamw",
                *(f"comera, adamw, ratio 1.3{end}" for end in ("", ", pruned to 0.5", ", pruned to 0.25")),
            ],
        ),
    ],
    ids=["no stage", "no target", "two targets"],
)
def test_every_pruning_target_is_an_arm(more, expected):
    with configuration():
        assert [arm.name for arm in searched([*TINY, *more, "methods=[dense,comera]"])] == expected


def test_a_target_that_is_no_list_is_refused(tmp_path):
    ended = run_bench(tmp_path, "search", *TINY, "methods=[comera]", "training.prune_targets=0.5")
    assert ended.status == 2
    assert_one_line(ended.error.strip(), "prune_targets")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["methods=[dense]", "--seeds=-1"], "seed is -1"),
        (["methods=[]"], "methods is []"),
        (["methods=[dense]", "seed=0,1"], "seed is '0,1'; a search takes one"),
        (["methods=[dense]", "training.optimizer=muonn"], "training.optimizer is 'muonn'"),
        (["methods=[galore]", "training.optimizer=muon"], "galore cannot be trained"),
    ],
)
def test_a_wrong_setting_is_said_before_any_training(tmp_path, more, said):
    ended = run_bench(tmp_path, "search", *TINY, *more)
    assert ended.status == 2
    assert_one_line(ended.error.strip(), said)
    assert not [*tmp_path.rglob("*.json")]


def test_several_values_take_the_place_of_an_axis():
    own = [word for word in TINY if not word.startswith(("ratio=", "+formats="))]
    with configuration():
        arms = searched([*own, "ratio=1.3,1.5", "+formats=adamw,muon", "methods=[dense,comera]"])
        found = [arm.name for arm in arms]
    assert sorted(found) == sorted(
        name
        for optimizer in ("adamw", "muon")
        for name in (f"dense, {optimizer}", *(f"comera, {optimizer}, ratio {one}" for one in (1.3, 1.5)))
    )


@pytest.mark.parametrize(
    ("entry", "at_twice"),
    [
        ("{lora: {rank: 4, lr: 2e-3, lr_adapters: 6e-3}}", {"lr_adapters": 0.012, "lr": 0.004}),
        ("galore", {"lr_projected": 4e-4, "lr": 1e-4}),
        ("apollo_mini", {"lr": 1e-4}),
        ("{comera: {lr_ranks: 0.004}}", {"lr_cores": 2e-4, "lr_dense": 1e-4, "lr_ranks": 0.004}),
    ],
)
def test_an_optimizer_of_its_own_is_searched_by_all_its_rates_together(entry, at_twice):
    with configuration():
        [arm] = searched([*TINY[:-1], "training.optimizer=own", f"methods=[{entry}]"])
        settings = arm.job(arm.rates[-1], 0).cells[-1].method_settings
    assert {name: settings[name] for name in at_twice} == pytest.approx(at_twice)
    assert arm.rates[2] == pytest.approx(next(iter(at_twice.values())) / 2)


@pytest.mark.slow
def test_a_search_trains_what_is_missing_and_no_more(tmp_path):
    pruned = ["training.prune_steps=250", "training.prune_targets=[0.5]", "settings.comera.lr_ranks=0.01"]
    arguments = ["search", *TINY, *pruned, "methods=[dense,comera]", "--seeds=1"]
    ended = run_bench(tmp_path, *arguments)
    assert ended.status == 0, ended.error
    records = read_all(tmp_path / "results")
    for arm in (("dense", None), ("comera", None), ("comera", 0.5)):
        own = [record for record in records if (record.arm, share_left(record)) == arm]
        first = {rate_of(record): loss_of(record) for record in own if record.seed == 0}
        assert len(first) >= 4, arm
        best = min(first, key=first.get)
        assert min(first) < best < max(first) or len(first) == 10
        assert best in [rate_of(record) for record in own if record.seed == 1]
    stamps = {record.cell_id: record.recorded_at for record in records}
    again = run_bench(tmp_path, *arguments)
    assert again.status == 0
    assert {record.cell_id: record.recorded_at for record in read_all(tmp_path / "results")} == stamps
    assert max(map(len, again.output.splitlines())) <= TERMINAL
    found = [line for line in again.output.replace("\n  ", " ").splitlines() if "best rate" in line]
    assert [line.split(":")[0] for line in found] == [
        "dense, adamw",
        "comera, adamw, ratio 1.3",
        "comera, adamw, ratio 1.3, pruned to 0.5",
    ]
    dense = [record for record in records if record.arm == "dense"]
    chosen = min((record for record in dense if record.seed == 0), key=loss_of)
    reported = sorted(record.metrics["test_loss"] for record in dense if rate_of(record) == rate_of(chosen))
    assert len(reported) == 2
    assert f"chosen by validation loss {chosen.metrics['loss']:.4f}" in found[0]
    assert found[0].endswith(f"test_loss {reported[0]:.4f} to {reported[1]:.4f} over 2 seeds")

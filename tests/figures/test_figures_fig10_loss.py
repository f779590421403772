"""Fig. 10's curves: both phases by step and by time, and when a loss counts as comparable."""

from __future__ import annotations

import dataclasses
import json

import pytest
from made_up_code import runs

from bench.core.record import RecordError
from figures.artifacts import fig6, fig10_loss
from figures.claims.claims import read_claims
from figures.page.drawn import Caption


def verdict(records):
    [page] = fig10_loss.ARTIFACT.render(records, read_claims())
    [found] = page.verdicts
    return found


def test_the_page_has_both_phases_by_step_and_by_time():
    [page] = fig10_loss.ARTIFACT.render(runs(), read_claims())
    assert "Dotted: the bigram model, 1.800 nats in phase 1." in page.notes
    [study] = fig10_loss.studies(runs())
    figure = fig10_loss.draw(study, fig6.table(study), Caption("made up", ()))
    steps, minutes = figure.axes
    assert [[*line.get_ydata()] for line in steps.lines[:2]] == [[2.0, 1.5], [2.0, 1.52]]
    assert steps.lines[2].get_ydata() == minutes.lines[2].get_ydata() == [1.8, 1.8]  # the probe
    dense, comera = ([[*line.get_xdata()] for line in axes.lines[:2]] for axes in (steps, minutes))
    assert dense == [[100, 200], [100, 200]]
    assert comera == [[200, 400], [100, 200]]


def test_a_probe_on_the_rows_of_phase_2_is_named_beside_that_of_phase_1():
    late = {"best": "bigram model", "probes": {"bigram model": {"metrics": {"loss": 1.9}}}}
    samples = {"best": "bigram model", "probes": {}, "late": late}
    probe = dataclasses.replace(
        runs()[0], experiment="probe_code", measure="probe", samples=samples, metrics={"loss": 1.8}
    )
    [page] = fig10_loss.ARTIFACT.render([*runs(), probe], read_claims())
    assert "Dotted: the bigram model, 1.800 nats in phase 1 and 1.900 nats in phase 2." in page.notes


@pytest.mark.parametrize(("length", "said"), [(None, 0), (512, 1)])
def test_the_probe_is_of_the_first_phase_where_the_second_has_other_rows(length, said):
    """Dense reaches 2.0 nats in the first and 1.5 in the second; the probe 1.8."""
    found = []
    for one in runs():
        config = json.loads(one.config_json)
        config["workload_settings"]["late_length"] = length
        found.append(dataclasses.replace(one, config_json=json.dumps(config)))
    [page] = fig10_loss.ARTIFACT.render(found, read_claims())
    start = "No dense run surely beats the bigram model (1.800 nats) in the warm-up stage"
    assert [line.startswith(start) for line in page.notes if "surely beats" in line] == [True] * said


@pytest.mark.parametrize(("last", "outcome"), [(1.5, "reproduced"), (1.4, "reproduced"), (1.7, "not reproduced")])
def test_comparable_is_within_a_twentieth_of_a_nat(last, outcome):
    assert verdict(runs(last=last)).outcome == outcome


def test_a_small_preset_decides_nothing():
    found = verdict(runs(parameters=562_304))
    assert found.outcome == "not tested here"
    assert "small preset" in found.why
    assert "+0.02" in found.ours_text


def test_a_curve_without_times_is_said():
    broken = [dataclasses.replace(one, samples={"curve": [{"step": 1}]}) for one in runs()]
    with pytest.raises(RecordError, match="has no times"):
        fig10_loss.minutes_of(broken[0])

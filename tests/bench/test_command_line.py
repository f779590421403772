"""The command line: a mistake is one sentence and exit status 2, and leaves nothing behind."""

import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from unittest import mock

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from small_cells import Ended, assert_refused, environment, run_bench, small

import bench.__main__
import bench.runner.sweep
import bench.workloads
from bench.errors import KILLED, TERMINAL, experiments
from bench.measures import available as measures
from bench.protocol.methods import available
from bench.runner.wording import for_hydra

METHODS, EXPERIMENTS = ", ".join(available()), ", ".join(experiments())


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    """A mistake must be found before the first job; and this machine has no CUDA device."""

    def job(*_):
        pytest.fail("the sweep has started")

    monkeypatch.setattr(bench.runner.sweep, "run_job", job)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(bench.workloads, "_opened", {})


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("experiment=fig1 methods=[sgd]", METHODS),
        ("experiment=fig99", EXPERIMENTS),
        ("experiment=fig1,fig5", "fig1,fig5"),
        ("batch_size=2", "experiment"),
        ("run", "experiment"),
        ("walk experiment=fig1", "walk"),
        ("experiment=fig1 device=cuda", "device"),
        ("experiment=fig1 batch_size=2,1000", "1000"),
        ("experiment=fig1 measure=predict batch_size=4,x", "'x'"),
        ("experiment=fig1 batchsize=4,8", "batchsize"),
        ("experiment=fig1 model.depth=4", "model.depth"),
        ("experiment=fig1 +batchsize=4", "batchsize"),
        ("experiment=fig1 ~model", "model"),
        ("experiment=fig1 batch_size=[2", "batch_size=[2"),
        ("experiment=fig1 =4", "=4"),
        ("experiment=fig1 methods=[{comera:orthogonal:{ranks:4}}]", r"{a\:b: {c: 1}}"),
        ("experiment=fig1 --batch_size 4", "--batch_size"),
        ("experiment=fig1 seed=${sed}", "sed"),
        ("experiment=fig1 data_folder=/no/such/folder", "/no/such/folder"),
        ("experiment=accuracy_small dataset=auto training.early_step=9", "training.early_step"),
        ("experiment=fig1 hydra/launcher=submitit_slurm device=auto", "device"),
        ("experiment=fig1 hydra/launcher=submitit_local batch_size=2,0", "batch_size"),
        ("experiment=fig1 hydra/launcher=submitit", "hydra/launcher"),
        ("experiment=fig1 results=/dev/null/records", "/dev/null/records"),
        ("experiment=fig1 results=/", "results"),
        ("experiment=fig1 results='~nobody-of-this-name/x'", "nobody-of-this-name"),
        ("experiment=fig1 batch_size=2,2", "batch_size"),
        ("experiment=fig1 batch_size=range(1,0)", "range(1,0)"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(tmp_path, pairs, arguments, named):
    first, *others = arguments.split()
    settings = small(pairs, tmp_path / "results") if others else []
    ended = run_bench(tmp_path, first, *settings, *others)
    assert_refused(ended, named, folder=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("experiment=fig1 experiment=fig5", "experiment"),
        ("experiment=fig1 +batch_size=2 batch_size=2", "batch_size"),
        ("predict method=dense batch_size=2 batch_size=4", "batch_size"),
    ],
)
def test_a_setting_given_twice_is_refused(tmp_path, arguments, field):
    assert_refused(run_bench(tmp_path, *arguments.split(), as_given=True), field, folder=tmp_path)


@pytest.mark.parametrize("given", ["100000", "0", "many"])
def test_threads_that_the_machine_does_not_have_are_refused(tmp_path, monkeypatch, given):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert_refused(run_bench(tmp_path, "experiment=fig1"), "OMP_NUM_THREADS", given, folder=tmp_path)


def test_a_batch_fits_into_memory_or_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.runner.resolve.free_memory_mib", lambda _: 64.0)
    words = ["experiment=steps", "workload=linear", "methods=[dense]", "device=cpu", f"results={tmp_path / 'results'}"]
    ended = run_bench(tmp_path, *words, "linear.in_features=1024", "linear.out_features=4", "batch_size=8193")
    assert_refused(ended, "batch_size", "8,192", folder=tmp_path)


def test_a_helper_process_that_is_killed_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(bench.__main__, "_command", mock.Mock(side_effect=BrokenProcessPool))
    assert run_bench(tmp_path, "list", as_given=True) == Ended(1, "", f"error: {KILLED}\n")


def test_the_list_has_a_line_with_a_purpose_for_everything_there_is(tmp_path):
    ended = run_bench(tmp_path, "list")
    assert (ended.status, ended.error) == (0, "")
    assert max(map(len, ended.output.splitlines())) <= TERMINAL
    *parts, settings = ended.output.split("\n\n")
    purposes = [dict(line.split(maxsplit=1) for line in part.splitlines()[1:]) for part in parts]
    there_is = experiments(), available(), bench.workloads.available(), measures()
    assert list(map(list, purposes)) == list(map(list, there_is))
    assert min(len(words) for part in purposes for words in part.values()) > len("a purpose")
    assert all(f"\n  {section} " in settings for section in bench.workloads.config_sections())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command", ["", *(one for one in bench.__main__.COMMANDS if one not in bench.__main__._READERS)]
)
def test_the_help_of_a_command_fits_a_screen(tmp_path, command):
    lines = run_bench(tmp_path, *command.split(), "--help").output.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= TERMINAL


def in_a_process(folder, *words, code="import bench.__main__; bench.__main__.main()"):
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
def test_a_mistake_ends_a_process_with_status_2(tmp_path):
    assert_refused(in_a_process(tmp_path, "experiment=fig1", "methods=[sgd]"), METHODS, folder=tmp_path)


def test_a_place_that_cannot_hold_results_is_refused_before_the_heavy_imports(tmp_path):
    code = """if True:
        import sys
        import bench.__main__
        try:
            bench.__main__.main()
        finally:
            assert "torch" not in sys.modules
    """
    ended = in_a_process(tmp_path, "experiment=fig1", "results=/proc/nowhere", code=code)
    assert_refused(ended, "/proc/nowhere", folder=tmp_path)


@pytest.mark.parametrize(
    "written",
    [
        r"[{dense\:narrow: {lr: 0.1}},{'low_rank@size:lean+checkpoint': {}}]",
        """[{'dense:narrow': {'lr': 0.1}}, {"low_rank@size:lean+checkpoint" : {}}]""",
        """[{"dense:narrow": {"lr": 0.1}}, {'low_rank@size:lean+checkpoint': {}}]""",
    ],
)
def test_keys_of_settings_may_be_quoted(written):
    [override] = OverridesParser.create().parse_overrides([for_hydra(f"methods={written}")])
    assert override.value() == [{"dense:narrow": {"lr": 0.1}}, {"low_rank@size:lean+checkpoint": {}}]


@pytest.mark.parametrize("path", ["/tmp/a=b", "/tmp/naïve café", "/tmp/plain", "'/tmp/a=b'", '"/tmp/é"'])
def test_a_path_needs_no_quotes(path):
    [override] = OverridesParser.create().parse_overrides([for_hydra(f"data_folder={path}")])
    assert override.value() == path.strip("'\"")


WITHOUT_TORCH = """
import sys
class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers"}:
            raise AssertionError("a check imported " + name)
sys.meta_path.insert(0, Guard())
from bench.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("advise model=none.json", "none.json"),
        ("advise model=gpt2_medum", "gpt2_medium"),
        ("predict method=dense model=lama_1b", "llama_1b"),
        ("advise measure model=torn.json", "not JSON"),
        ("advise model=untyped.json", "model_type"),
        ("predict method=dense model=none", "none"),
        ("search experiment=text data_folder=none", "none"),
        ("search experiment=text data_folder=empty", "is empty"),
        ("search experiment=text results=torn.json/x", "torn.json"),
        ("experiment=text data_folder=none", "none"),
        ("experiment=text results=torn.json/x", "torn.json"),
    ],
)
def test_a_path_that_cannot_be_used_is_found_before_torch_is_imported(tmp_path, words, named):
    (tmp_path / "torn.json").write_text('{"model_type"')
    (tmp_path / "untyped.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    command = [sys.executable, "-c", WITHOUT_TORCH, *words.split()]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert_refused(Ended(done.returncode, done.stdout, done.stderr), named)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("training.lr=nan", "error: training.lr is nan"),
        ("training.optimizer=foo", "error: training.optimizer is 'foo'"),
        ("measure=run", "error: measure is 'run'"),
        ("methods=[btt,btt]", "error: methods has 'btt' twice"),
    ],
)
def test_each_mistake_of_a_search_has_a_sentence_of_its_own(tmp_path, words, named):
    ended = run_bench(
        tmp_path, "search", "experiment=text", "text.packages=[jinja2]", f"results={tmp_path / 'r'}", words
    )
    assert_refused(ended, named)


def test_a_target_without_its_first_word_is_offered(tmp_path):
    assert_refused(run_bench(tmp_path, "reproduce", "table_mnli"), "'table_mnli'; give reproduce-table-mnli.")


BARE = """
import sys
class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"rich", "pandas", "torch", "hydra", "pydantic"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Bare())
import runpy
runpy.run_module(sys.argv.pop(1), run_name="__main__")
"""


WITHOUT_PANDAS = """
import sys
class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pandas", "matplotlib"}:
            raise AssertionError("a check imported " + name)
sys.meta_path.insert(0, Guard())
import runpy
runpy.run_module("figures", run_name="__main__")
"""


@pytest.mark.parametrize("words", ["fig1 --out file", "all --out=file", "explore --out file/inside"])
def test_a_folder_that_cannot_be_written_is_found_before_pandas_is_imported(tmp_path, words):
    (tmp_path / "file").write_text("not a folder")
    command = [sys.executable, "-c", WITHOUT_PANDAS, *words.split()]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert_refused(Ended(done.returncode, done.stdout, done.stderr), "--out is 'file")


@pytest.mark.parametrize("words", ["bench list", "bench experiment=text", "bench reproduce", "figures fig1"])
def test_a_python_without_the_packages_is_named_with_the_one_that_has_them(tmp_path, words):
    command = [sys.executable, "-c", BARE, *words.split()]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert_refused(Ended(done.returncode, done.stdout, done.stderr), sys.executable, ".venv/bin/python")

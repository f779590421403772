"""Command line: ``python -m bench [run] experiment=NAME [key=value …]``, or another first word (:data:`USAGE`)."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable

from bench.errors import CONF, check_arguments, experiments, reworded, stop_with

USAGE = """\
usage: python -m bench [run] experiment=NAME [key=value ...]   measure the cells of an experiment
       python -m bench campaign output=FOLDER [budget=9m ...]  run what is missing of all experiments, within a budget
       python -m bench predict method=NAME [key=value ...]     memory, work, least time of a step on any device
       python -m bench compare A B                             the records of two folders or commits side by side
       python -m bench speed [--rounds N]                      print the speed ratios of the tensorized layer and step
       python -m bench merge SOURCE [SOURCE ...]               bring records from other folders and archives together
       python -m bench claims [--records FOLDER]               print what the records say about each published claim
       python -m bench report [--records FOLDER]               write one HTML page: verdicts, figures and tables

experiments: {experiments}
methods:     {methods}

A key is any setting of bench/conf/config.yaml; a value with commas sweeps over it and replaces the experiment's axis:
  python -m bench experiment=fig1 batch_size=2,4 methods=[comera,dense] settings.comera.ranks=16
  python -m bench experiment=accuracy dataset=sst2 seed=0,1 training.early_epochs=3 'training.targets=[0.5]'

Records go to results/local, one JSON file per cell. What is recorded is not measured again (reuse=exact), so a sweep
that was stopped goes on where it was; a training run goes on from its last checkpoint, bit for bit (resume=false starts
it anew). Draw with: python -m figures FIGURE (--help lists the figures)

On a cluster every job of a sweep, such as a batch size, can have a GPU of its own (extra: pip install -e '.[slurm]';
defaults: bench/conf/launchers.yaml; hydra/launcher=submitit_local rehearses it on one machine):
  python -m bench experiment=fig1 hydra/launcher=submitit_slurm device=cuda hydra.launcher.partition=NAME
"""

#: Words that a module of figures answers. It is run by its name: a floor does not import the one above it.
READERS = {"claims": "figures.claims", "report": "figures.report"}

WORDS = ("run", "campaign", "predict", "compare", "speed", "merge", *READERS)


def _usage() -> str:
    from bench.protocol.methods import available

    return USAGE.format(experiments=", ".join(experiments()), methods=", ".join(available()))


def run() -> None:
    """The Hydra application. Its errors and OmegaConf's end the program with one sentence."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from bench.runner import sweep
    from bench.runner.launching import register_launchers

    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come here instead of being printed
    if any(word.startswith("experiment=") for word in sys.argv) and not any(word[0] == "-" for word in sys.argv[1:]):
        sys.argv.append("--multirun")  # as every experiment says; Hydra does not hear it over a mistake in its own part
    sweep.register_resolvers()
    sweep.register_settings()
    register_launchers()
    application: Callable[[], None] = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(
        sweep.job
    )
    try:
        application()
    except sweep.MISTAKES as error:
        stop_with(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        stop_with(reworded(error))
    except (Exception, KeyboardInterrupt) as error:
        sweep.interrupted(error)
        raise


def main() -> None:
    """Dispatch on the first word; no word means ``run``."""
    arguments = sys.argv[1:]
    word = arguments[0] if arguments and "=" not in arguments[0] and not arguments[0].startswith("-") else "run"
    if arguments and arguments[0] == word:
        del sys.argv[1]
    if word not in WORDS:
        stop_with(f"the first word is {word!r}; allowed: {', '.join(WORDS)}.")
    if word in READERS:
        runpy.run_module(READERS[word], run_name="__main__", alter_sys=True)
    elif word == "speed":
        from bench.commands.speed import main as speed

        speed()
    elif word == "campaign":
        from bench.campaign.command import run as campaign

        campaign(arguments[1:])
    elif word == "merge":
        from bench.commands.merge import main as merge

        merge()
    elif word == "predict":
        from bench.commands.predict import main as predict

        predict()
    elif word == "compare":
        from bench.commands.compare import main as compare

        compare()
    elif not arguments or {"-h", "--help"} & set(arguments):
        print(_usage(), end="")
    else:
        check_arguments(sys.argv[1:])
        run()


if __name__ == "__main__":
    main()

# make help lists the targets. The first call of any of them creates .venv and installs everything; later ones do not.

# Where pip looks for packages, as pip's own options. A machine without a GPU saves gigabytes with PyTorch's index of CPU
# builds (its address is on PyTorch's installation page): make setup PIP_INDEX="--extra-index-url ADDRESS"
PIP_INDEX ?=
PYTHON ?= python3
RESULTS ?= results/local

# Another version of PyTorch than that of constraints.txt, in an environment of its own: make test TORCH=2.14.1
TORCH ?=

VENV := .venv$(TORCH:%=-torch-%)
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
TRAINED := reproduce-table-mnli reproduce-table-ranks reproduce-fig6 reproduce-truncation
.PHONY: help setup test test-slow lint gate gate-accept reproduce-fig1 reproduce-fig1-all reproduce-prediction reproduce-activations \
  reproduce-widths reproduce-fig5 reproduce-fig7 reproduce-fig8 reproduce-fig9 reproduce-fig10 reproduce-fig10-loss \
  reproduce-fig11 reproduce-fig14 reproduce-fig14-sst2 reproduce-scaling reproduce-exchange-settings reproduce-table-dlrm reproduce-table-fp8 \
  reproduce-table-dlrm-fp8 reproduce-table-lte reproduce-table-tensorization plan-grid table-search $(TRAINED) reproduce-small \
  compare-formats compare-formats-time sweep-ratios sweep-ratios-accuracy sweep-ratios-sst2 sweep-ratios-small reproduce-code-stages speed claims report explore docs clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-30s %s\n", $$1, $$2}'

setup: $(READY) ## create .venv and install everything

# torch comes first and by an exact version, so that nothing brings another build along; that of TORCH chooses its triton.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is older than Python 3.11; name a newer one, as in make setup PYTHON=python3.12." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	sed $(if $(TORCH),-e '/^triton==/d' -e 's/^torch==.*/torch==$(TORCH)/') -e '/^#/d' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_INDEX) $$(grep '^torch==' $(VENV)/constraints.txt)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_INDEX) -c $(VENV)/constraints.txt -e '.[bench,slurm,test,lint,docs]'
	@touch $@

# Two processes; the tests of one file stay in one of them, since they share what is expensive to make.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile

test: $(READY) ## run the test suite but for its slow tests (within 6 minutes on 2 cores)
	$(PYTEST) -m "not slow" --no-loadscope-reorder

test-slow: $(READY) ## run the slow tests: trainings, compilations, redraws, sweeps that are killed, many processes
	$(PYTEST) -m slow tests

lint: $(READY) ## check format, style, types and the floors' imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

gate: $(READY) ## stop a change that made anything bigger or slower (bench/gate; within 5 minutes on 2 cores)
	@mkdir -p .benchmarks
	$(BIN)/python -m pytest tests/gate -rN --disable-warnings --benchmark-enable --benchmark-quiet --benchmark-json .benchmarks/gate.json

gate-accept: $(READY) ## show how the gate's exact numbers have changed and accept them as the baseline
	$(BIN)/python -m bench.gate.baseline

reproduce-fig1: $(READY) ## measure and draw Fig. 1: time per epoch and peak memory of every method
	$(BIN)/python -m bench experiment=fig1 "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=fig1_memory "results='$(RESULTS)'"
	$(BIN)/python -m figures fig1 --records "$(RESULTS)"

reproduce-fig1-all: $(READY) ## the same for every form of every arm: checkpointed, per layer, keeping ranks (hours on a CPU)
	$(BIN)/python -m bench experiment=fig1_all "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=fig1_all_memory "results='$(RESULTS)'"
	$(BIN)/python -m figures fig1 --records "$(RESULTS)"

reproduce-prediction: $(READY) ## run steps for the peak of the allocator, and draw the error of the predicted memory
	$(BIN)/python -m bench experiment=prediction "results='$(RESULTS)'"
	$(BIN)/python -m figures prediction --records "$(RESULTS)"

reproduce-activations: $(READY) ## what forward keeps, the largest batch that fits, time against memory
	$(BIN)/python -m bench experiment=activations "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=activations_memory "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=activations_time "results='$(RESULTS)'"
	$(BIN)/python -m figures activations --records "$(RESULTS)"

compare-formats: $(READY) ## search the rates of every format on three test beds, add seeds, and draw both figures (days on one core; goes on where it was stopped)
	for bed in teacher tiny small; do nice $(BIN)/python -m bench search experiment=formats_$$bed "results='$(RESULTS)'" || exit $$?; done
	nice $(BIN)/python -m bench search experiment=formats_decomposed "results='$(RESULTS)'"
	nice $(BIN)/python -m bench search experiment=formats_pruned "results='$(RESULTS)'"
	$(BIN)/python -m figures formats --records "$(RESULTS)"
	$(BIN)/python -m figures formats_origins --records "$(RESULTS)"

compare-formats-time: $(READY) ## time a step of every format of those test beds, on a quiet machine (half an hour), and draw the figure
	for bed in teacher tiny small; do $(BIN)/python -m bench experiment=formats_$${bed}_time "results='$(RESULTS)'" || exit $$?; done
	$(BIN)/python -m figures formats --records "$(RESULTS)"

reproduce-widths: $(READY) ## measure and draw from which width on tensor trains pay (an hour on 2 cores)
	$(BIN)/python -m bench experiment=widths "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=widths_linear "results='$(RESULTS)'"
	$(BIN)/python -m figures widths --records "$(RESULTS)"

reproduce-fig5: $(READY) ## measure and draw Fig. 5: time and memory of the embedding look-up, by variant
	$(BIN)/python -m bench experiment=fig5 "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=fig5 timing.allocator=system +tables=30522x768 "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=fig5_memory "results='$(RESULTS)'"
	$(BIN)/python -m figures fig5 --records "$(RESULTS)"

reproduce-fig7: $(READY) ## measure and draw Fig. 7: time per epoch with CUDA Graph (on a CPU, compile) off and on
	$(BIN)/python -m bench experiment=fig7 "results='$(RESULTS)'"
	$(BIN)/python -m figures fig7 --records "$(RESULTS)"

reproduce-fig10: $(READY) ## measure and draw Fig. 10: the full CodeBERT-like model in both phases (10 GiB, an hour on 2 cores)
	$(BIN)/python -m bench experiment=fig10_memory "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=fig10_time "results='$(RESULTS)'"
	$(BIN)/python -m figures fig10 --records "$(RESULTS)"

reproduce-fig10-loss: $(READY) ## train and draw Fig. 10's curves: both phases of masked language modelling, small preset (half an hour)
	$(BIN)/python -m bench experiment=code_phases "results='$(RESULTS)'"
	$(BIN)/python -m figures fig10_loss --records "$(RESULTS)"

reproduce-fig11: $(READY) ## measure and draw Fig. 11: the contraction plans of the encoder's layers as tensor diagrams
	$(BIN)/python -m bench experiment=fig11 "results='$(RESULTS)'"
	$(BIN)/python -m figures fig11 --records "$(RESULTS)"

reproduce-fig8: $(READY) ## time and predict DLRM's steps with full tables (hours on a CPU, 20 GiB), and draw Fig. 8
	$(BIN)/python -m bench experiment=fig8_memory "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=fig8 "results='$(RESULTS)'"
	$(BIN)/python -m figures fig8 --records "$(RESULTS)"

# One set of training records serves both.
reproduce-fig9: ARTIFACT := fig9
reproduce-fig9: ## train DLRM's arms on synthetic click logs (hours on a CPU) and draw Fig. 9, cross entropy per step
reproduce-table-dlrm: ARTIFACT := table_dlrm
reproduce-table-dlrm: ## accuracy, AUC, cross entropy and size of DLRM's arms (same training)
reproduce-fig9 reproduce-table-dlrm: $(READY)
	$(BIN)/python -m bench experiment=fig9 "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=fig9_independent "results='$(RESULTS)'"
	$(BIN)/python -m figures $(ARTIFACT) --records "$(RESULTS)"

reproduce-table-fp8: $(READY) ## errors, bytes and least times of layers in FP32, TF32, BF16 and FP8 by shape; on a GPU times
	$(BIN)/python -m bench experiment=table_fp8 "results='$(RESULTS)'"
	$(BIN)/python -m figures table_fp8 --records "$(RESULTS)"

reproduce-table-lte: $(READY) ## train LTE from scratch on SST-2 and the NLI pool at several settings, a small encoder, beside dense training
	$(BIN)/python -m bench experiment=probe dataset=sst2,nli_pool "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=lte_small "results='$(RESULTS)'"
	$(BIN)/python -m figures table_lte --records "$(RESULTS)"

reproduce-table-dlrm-fp8: $(READY) ## train DLRM's arms in FP32, BF16 and FP8 on a synthetic click log (hours on a CPU)
	$(BIN)/python -m bench experiment=table_dlrm_fp8 "results='$(RESULTS)'"
	$(BIN)/python -m figures table_dlrm_fp8 --records "$(RESULTS)"

reproduce-fig14: $(READY) ## train and draw Fig. 14: FP32, BF16, FP8's products, FP8's storage, three seeds (hours on a CPU)
	$(BIN)/python -m bench experiment=probe dataset=sst2 "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=fig14 "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=fig14_control "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=fig14_split "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=fig14_storage "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=fig14_sst2_small "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=fig14_sst2_small_storage "results='$(RESULTS)'"
	$(BIN)/python -m figures fig14 --records "$(RESULTS)"

reproduce-fig14-sst2: $(READY) ## the same on SST-2 with the paper's encoder, for a GPU
	$(BIN)/python -m bench experiment=fig14_sst2 "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=fig14_sst2_storage "results='$(RESULTS)'"
	$(BIN)/python -m figures fig14 --records "$(RESULTS)"

reproduce-scaling: $(READY) ## measure and draw steps on two ranks against the rate of their link (Linux and root for its rates)
	$(BIN)/python -m bench experiment=scaling_model "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=scaling "results='$(RESULTS)'"
	$(BIN)/python -m figures scaling --records "$(RESULTS)"

reproduce-exchange-settings: $(READY) ## measure and draw what bucket sizes and local steps change on two ranks (Linux and root)
	$(BIN)/python -m bench experiment=scaling_buckets "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=scaling_local "results='$(RESULTS)'"
	$(BIN)/python -m figures exchange_settings --records "$(RESULTS)"

plan-grid: $(READY) ## measure every contraction plan on a grid of shapes and draw how the planner chose (10 minutes on 2 cores)
	$(BIN)/python -m bench experiment=contraction "results='$(RESULTS)'"
	$(BIN)/python -m figures plans --records "$(RESULTS)"

reproduce-table-tensorization: $(READY) ## measure the paper's modes and ranks beside the solver's for the same ratio, per matrix
	$(BIN)/python -m bench experiment=tensorization "results='$(RESULTS)'"
	$(BIN)/python -m figures table_tensorization --records "$(RESULTS)"

table-search: $(READY) ## draw the recorded searches that chose the defaults (records: results/reference)
	$(BIN)/python -m figures table_search --records results/reference

# The four below share one set of training records: whichever comes first trains (hours at full size), the others draw.
reproduce-table-mnli: ARTIFACT := table_mnli
reproduce-table-mnli: ## accuracy and sizes of dense training, early and late stages (trains for hours on a CPU)
reproduce-table-ranks: ARTIFACT := table_ranks
reproduce-table-ranks: ## ranks of the fifth encoder block before and after each stage (same training)
reproduce-fig6: ARTIFACT := fig6
reproduce-fig6: ## validation accuracy per epoch, dense against CoMERA (same training)
reproduce-truncation: ARTIFACT := truncation
reproduce-truncation: ## step time, memory and accuracy against the truncated size (same training)
$(TRAINED): $(READY)
	$(BIN)/python -m bench experiment=accuracy "results='$(RESULTS)'"
	$(BIN)/python -m figures $(ARTIFACT) --records "$(RESULTS)"

reproduce-small: $(READY) ## the same four on a small model and generated text, within 3 minutes on 2 cores
	$(BIN)/python -m bench experiment=accuracy_small "results='$(RESULTS)'"
	for artifact in table_mnli table_ranks fig6 truncation; do \
	  $(BIN)/python -m figures $$artifact --experiment accuracy_small --records "$(RESULTS)" || exit; \
	done

sweep-ratios: $(READY) ## measure and draw Fig. 12: time, memory and FLOPs by whole-model compression
	$(BIN)/python -m bench experiment=ratios "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=ratios_memory "results='$(RESULTS)'"
	$(BIN)/python -m figures fig12 --records "$(RESULTS)"

sweep-ratios-accuracy: $(READY) ## held-out loss on source code by size, work, memory and time: tensor trains beside low rank (hours on a CPU)
	$(BIN)/python -m bench experiment=code_search "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=code_ratios "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=code_ratios_time "results='$(RESULTS)'"
	$(BIN)/python -m figures pareto --experiment code_ratios --records "$(RESULTS)"

sweep-ratios-sst2: $(READY) ## accuracy on SST-2 by size after equal training of the full encoder (hours on a CPU)
	$(BIN)/python -m bench experiment=ratios_accuracy "results='$(RESULTS)'"
	$(BIN)/python -m figures pareto --experiment ratios_accuracy --records "$(RESULTS)"

sweep-ratios-small: $(READY) ## the same on a small model and generated text, in minutes
	$(BIN)/python -m bench experiment=ratios_accuracy_small "results='$(RESULTS)'"
	$(BIN)/python -m figures pareto --experiment ratios_accuracy_small --records "$(RESULTS)"

reproduce-code-stages: $(READY) ## the stages of the MNLI table on source code: loss, size and ranks (an hour on a CPU)
	$(BIN)/python -m bench experiment=code_prices "results='$(RESULTS)'"
	$(BIN)/python -m bench experiment=code_stages "results='$(RESULTS)'"
	for artifact in table_mnli table_ranks fig6 truncation; do \
	  $(BIN)/python -m figures $$artifact --experiment code_stages --records "$(RESULTS)" || exit; \
	done

speed: $(READY) ## print the speed ratios of the tensorized layer and step, with intervals
	$(BIN)/python -m bench speed

claims: $(READY) ## print what the records say about each published claim (RESULTS=results/reference: the project's)
	@$(BIN)/python -m bench claims --records "$(RESULTS)"

report: $(READY) ## write the page of all verdicts, figures and tables: report.html (the project's own: RESULTS=results/reference)
	@$(BIN)/python -m bench report --records "$(RESULTS)"

explore: $(READY) ## write the page in which every record is a point, with filters and Pareto front: explorer.html
	@$(BIN)/python -m bench explore --records "$(RESULTS)"

docs: $(READY) ## build the documentation, in which a broken link is an error: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean: ## remove every .venv and caches; records and figures stay
	rm -rf .venv .venv-torch-* .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

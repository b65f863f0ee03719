# `make help` lists what there is. Each target makes .venv when it is missing and brings it up to date when
# pyproject.toml, constraints.txt or the versions below have changed; nothing but Python >= 3.11, make and a package
# index is needed.

PYTHON ?= python3
# Where pip shall also look for torch. Set it where the package index has only the CUDA build:
#   make test TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# The torch of test-oldest and test-newest-packages, where the lowest or newest one is not to be had: TORCH=2.13.0
TORCH ?=
# More arguments for pytest: make test PYTEST_ARGS="tests/facade -k resume"
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS)
# The extras that each group of developers' packages in pyproject.toml goes with.
EXTRAS_test := tensorboard,loggers,plot,memory,cli,search,keras
EXTRAS_bench := memory,plot
# Which versions of a range, lowest-direct or highest: uv works them out and installs them, in an environment of its own.
RESOLUTION ?=
comma := ,
UV_INDEXES := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX) --index-strategy unsafe-best-match)
ifneq ($(RESOLUTION),)
PIP_INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint $(CONSTRAINTS) $(UV_INDEXES)
endif
DEMO_OUTPUT := demo_output
NEWEST_VERSION := 5.24.0
# The client of the Hub that it takes and 5.3.0 does not, with what that needs, is tested with it.
NEWEST := "transformers<=$(NEWEST_VERSION)" tokenizers==0.23.3 huggingface_hub==2.4.0 httpx2 httpcore2 truststore
HUB_TESTS := tests/facade/hub -k "not most_names_of_the_reference"
COMET := "comet_ml>=3.44,<4"
# The oldest TRL that trains here; the newest one is in pyproject.toml.
OLDER_TRL := trl==1.9.2
DEEPSPEED := deepspeed==0.19.8
# What it needs and torch does not bring.
DEEPSPEED_NEEDS := einops hjson msgpack ninja py-cpuinfo pydantic

# Whichever library Keras computes in.
KERAS_TESTS := $(addprefix tests/facade/keras/test_keras_,checkpoints.py constraints.py numbers.py) tests/facade/keras/test_tensorflow_steps.py
TENSORFLOW := tensorflow-cpu==2.21.0
# What it needs and keras, tensorboard and torch do not bring.
TENSORFLOW_NEEDS := astunparse flatbuffers gast google_pasta opt_einsum termcolor six
# The last transformers with models of TensorFlow, which are of Keras 2, and what it needs in other versions than here.
TF_KERAS := tf-keras==2.21.0
KERAS_2 := $(TF_KERAS) transformers==4.57.6 huggingface_hub==0.36.2
# The last pair that runs transformers' own TFTrainer.
TF4 := transformers==4.30.2 tensorflow-cpu==2.15.1

# What depends most on the versions of other packages, and what is compared with the reference.
VERSIONED_TESTS := tests/callbacks tests/facade tests/lightning_modules tests/package tests/ddp/test_sharding.py
PARITY_TESTS := tests/parity
# What uses the extras that the tests do without, but TensorFlow; and those of them that no other target installs.
EXTRAS_TESTS := tests/callbacks/loggers/test_offline.py tests/deepspeed_runs tests/attacks/test_deepspeed.py \
	tests/facade/search/test_ray.py tests/lightning_modules/models/test_liger.py tests/parity/test_library_optimizers.py
OTHER_EXTRAS := apollo bitsandbytes galore grokadamw liger lomo ray schedulefree stable_adamw torchao
# What Ray needs, and nothing else here.
OTHERS_NEED := msgpack tensorboardX
# The lowest version of the package that an extra adds, the last one in its line: $(call lowest,ray).
lowest = $(shell sed -nE 's/^$(1) = .*"([^">]+)>=([^,]+),.*/\1==\2/p' pyproject.toml)
PRETENDED_TESTS := $(addprefix tests/,gpu facade/trainer facade/evaluation facade/checkpointing callbacks parity) \
	tests/lightning_modules/tasks
PYTEST := -m pytest -n auto --maxprocesses=8 --dist loadfile

.PHONY: help demo test follow test-newest test-libraries test-nodes test-promises test-pretended soak test-oldest test-newest-packages test-private-names
.PHONY: test-oldest-extras test-tf tf-figures lint bench gpu dist docs docs-serve clean
# Two pip processes must not write into one environment.
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-20s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Threads that wait for each other sleep instead of spinning: several times faster when the machine is busy otherwise.
demo: export OMP_WAIT_POLICY := PASSIVE
demo: $(VENV)/.demo $(VENV)/.types  ## train a small GPT on Python's own sources, stop half-way, resume (2 minutes)
	rm -rf $(DEMO_OUTPUT)
	$(BIN)/python examples/train_code_model.py --output-dir $(DEMO_OUTPUT) --stop-after 400
	$(BIN)/python examples/train_code_model.py --output-dir $(DEMO_OUTPUT) --resume

# One thread per process: sums come out the same on every run, and the workers do not fight for the cores. Bytecode is
# kept whatever the environment says: or each of the hundreds of processes that tests start compiles the package, and
# each worker what pytest makes of the tests.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.test $(VENV)/.types $(VENV)/.newest $(VENV)/.comet $(VENV)/.deepspeed  ## run the tests
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) --no-loadscope-reorder $(PYTEST_ARGS)

test-newest: $(VENV)/.test $(VENV)/.newest  ## compare with the newest transformers: all of tests/parity (3 minutes)
	OMP_NUM_THREADS=1 PYTHONPATH=$(VENV)/newest \
	LIGHTRAINER_FOLLOW=$$(basename $(VENV)/newest/transformers-*.dist-info .dist-info | cut -d- -f2) \
	$(BIN)/python $(PYTEST) $(PARITY_TESTS) $(PYTEST_ARGS)

# In network namespaces where that is allowed (root on Linux, with iproute2), and on loopback addresses.
test-nodes: $(VENV)/.test  ## train on several machines, which are made on this one, and by launchers (6 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "nodes or not nodes" tests/nodes $(PYTEST_ARGS)

# Losses and gradients of 596 classes, and resumptions of all settings; `make test` compares one of each kind.
test-promises: $(VENV)/.test  ## compare accumulation with one big batch for every class of transformers, and resume all settings (20 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) --dist worksteal -m "promises or not promises" tests/promises $(PYTEST_ARGS)

# Programs that tests start have no pretended device, so these are the tests that train in their own process.
test-pretended: $(VENV)/.test  ## train on a CUDA device, pretended where there is none (20 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) --pretended $(PRETENDED_TESTS) $(PYTEST_ARGS)

MINUTES ?= 10
SEED ?= 0
soak: $(VENV)/.test  ## kill random trainings at random until MINUTES=10 are over, and compare their ends (SEED=0)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python tests/faults/soak.py --minutes $(MINUTES) --seed $(SEED)

# In an environment of its own, as these libraries bring many packages, and choose versions of some that we use.
test-libraries:  ## train with TRL, sentence-transformers, PEFT and SetFit, on the reference and on ours (10 minutes)
	$(MAKE) VENV=.venv-libraries .venv-libraries/.trl-1.9
	OMP_NUM_THREADS=1 .venv-libraries/bin/python -m pytest -m libraries tests/libraries $(PYTEST_ARGS)

# TensorFlow is 1.3 GB, so `make test` does without: it trains models of Keras on torch, and skips these tests.
test-tf: $(VENV)/.test $(VENV)/.tf  ## train models that compute in TensorFlow; run legacy scripts (8 minutes with pip)
	$(TF_ENV) PYTHONPATH=$(CURDIR)/$(VENV)/tf \
	$(BIN)/python -m pytest tests/tf tests/lightning_modules/keras $(KERAS_TESTS) $(PYTEST_ARGS)
	$(TF_ENV) PYTHONPATH=$(CURDIR)/$(VENV)/keras-2:$(CURDIR)/$(VENV)/tf \
	$(BIN)/python -m pytest tests/tf/test_keras_2.py $(PYTEST_ARGS)
test-tf: TF_ENV := OMP_NUM_THREADS=1 TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow

# In an environment of its own, as no newer transformers has that TFTrainer; PYTHON has to be 3.9 to 3.11.
tf-figures:  ## write tests/tf/figures.json anew: what the TFTrainer of transformers 4 gives (5 minutes)
	test -x .venv-tf4/bin/pip || $(PYTHON) -m venv .venv-tf4
	.venv-tf4/bin/python -m pip install --quiet --disable-pip-version-check $(TF4)
	OMP_NUM_THREADS=1 .venv-tf4/bin/python tests/tf/freeze_figures.py

# Old packages may warn of what they did not know; what we do that others warn of is found with the pins and the newest.
test-oldest:  ## run most tests with the lowest versions that pyproject.toml allows
	rm -f .venv-oldest/constraints.txt
	$(MAKE) VENV=.venv-oldest CONSTRAINTS=.venv-oldest/constraints.txt RESOLUTION=lowest-direct .venv-oldest/.test
	OMP_NUM_THREADS=1 PYTHONWARNINGS="ignore:The pynvml package is deprecated:FutureWarning" \
	.venv-oldest/bin/python $(PYTEST) -W default $(VERSIONED_TESTS) $(PARITY_TESTS) $(PYTEST_ARGS)

test-oldest-extras: OLD := VENV=.venv-oldest CONSTRAINTS=.venv-oldest/constraints.txt RESOLUTION=lowest-direct
test-oldest-extras:  ## run the tests that use Comet, DeepSpeed, Ray, libraries of optimizers, TensorFlow: the lowest of each
	$(MAKE) $(OLD) COMET=$(call lowest,comet) DEEPSPEED=$(call lowest,deepspeed) $(addprefix .venv-oldest/.,comet deepspeed others)
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/.venv-oldest/others \
	.venv-oldest/bin/python $(PYTEST) -W default $(EXTRAS_TESTS) $(PYTEST_ARGS)
	$(MAKE) $(OLD) TENSORFLOW=$(call lowest,tf) TF_KERAS=$(patsubst tensorflow-cpu==%,tf-keras==%.*,$(call lowest,tf)) \
	PYTEST_ARGS="-W default $(PYTEST_ARGS)" test-tf

test-newest-packages: NEW := VENV=.venv-newest CONSTRAINTS=.venv-newest/constraints.txt RESOLUTION=highest
test-newest-packages:  ## run them with the newest versions in the package index, those of parity with the newest transformers
	rm -f .venv-newest/constraints.txt
	$(MAKE) $(NEW) .venv-newest/.test
	OMP_NUM_THREADS=1 .venv-newest/bin/python $(PYTEST) $(VERSIONED_TESTS) $(PYTEST_ARGS)
	$(MAKE) $(NEW) test-newest
	OMP_NUM_THREADS=1 PYTHONPATH=.venv-newest/newest .venv-newest/bin/python $(PYTEST) $(HUB_TESTS) $(PYTEST_ARGS)
	.venv-newest/bin/python docs/scripts/shut_out.py

FROM ?= 5.3.0
TO ?= $(NEWEST_VERSION)
follow: $(VENV)/.test  ## name what changed in transformers from FROM=5.3.0 to TO=... and has no row in docs/develop
	$(BIN)/python docs/scripts/follow.py $(FROM) $(TO)

test-private-names: $(VENV)/.test  ## rename each private name of a library that is used: its test has to fail (15 minutes)
	$(BIN)/python tests/package/check_private_names.py

lint: $(VENV)/.lint $(VENV)/.types  ## check style (ruff), format (ruff) and types (pyright)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/.bench  ## measure speed and memory against the reference and a raw loop
	$(BIN)/python -m benchmarks

gpu:  ## run every stage on a GPU with the Python that has torch for it: make gpu PYTHON=python3 [STAGES=...] [DEVICE=cpu]
	$(PYTHON) -m benchmarks gpu --device $(or $(DEVICE),cuda) $(STAGES)

docs: $(VENV)/.docs  ## build the site into build/site; broken links are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.docs  ## show the site at http://127.0.0.1:8000, and build it anew as it is edited
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

dist: $(VENV)/.dist  ## build wheel and source distribution into dist/, check them, train with the wheel (1 minute)
	rm -rf build dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tests/package/check_dist.py dist
	rm -rf build

clean:  ## remove everything that these targets made
	rm -rf $(VENV) .venv-libraries .venv-oldest .venv-newest .venv-tf4 $(DEMO_OUTPUT) build dist *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Versions for an environment of its own, worked out from the ranges in pyproject.toml: RESOLUTION says which of them.
# Old releases of botocore name their dependencies only once they are built, and uv may try hundreds of them.
.venv-oldest/constraints.txt .venv-newest/constraints.txt: pyproject.toml
	@test -x $(@D)/bin/pip || { echo "making $(@D)"; $(PYTHON) -m venv $(@D); }
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@echo '$(TORCH:%=torch==%)' | $(@D)/bin/uv pip compile --quiet --upgrade --resolution $(RESOLUTION) --group test \
	$(addprefix --extra ,$(subst $(comma), ,$(EXTRAS_test))) \
	--only-binary botocore --no-annotate --python $(@D)/bin/python --output-file $@ $(UV_INDEXES) pyproject.toml -

# torch comes first and pinned, so that no other package can pull in another build of it.
$(VENV)/.torch: $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit("Python >= 3.11 is needed, set PYTHON=..." if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/pip || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@# pip knows groups of dependencies from 25.1 on
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@echo "installing torch"
	@$(PIP_INSTALL) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml $(CONSTRAINTS)
	@echo "installing lightrainer[tensorboard,plot]"
	@$(PIP_INSTALL) --editable ".[tensorboard,plot]"
	@touch $@

# One stamp per group of pyproject.toml.
$(VENV)/.test $(VENV)/.bench $(VENV)/.libraries $(VENV)/.docs: $(VENV)/.%: $(VENV)/.torch pyproject.toml $(CONSTRAINTS)
	@echo "installing lightrainer and the group $*"
	@$(PIP_INSTALL) --editable ".$(if $(EXTRAS_$*),[$(EXTRAS_$*)])" --group $*
	@touch $@

# What builds the package, and a small training to try it with.
$(VENV)/.dist: $(VENV)/.test
	@echo "installing the group dist"
	@$(PIP_INSTALL) --group dist
	@touch $@

# Type checkers and editors do not follow the import hook of an editable install. They look into a folder of stubs first,
# which Python itself never imports: links to the folders, so that what is edited is what they see.
$(VENV)/.types: $(VENV)/.torch package
	@stubs=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/lightrainer-stubs; \
	rm -rf "$$stubs" && mkdir "$$stubs" && \
	ln -s $(CURDIR)/package/* $(CURDIR)/facade $(CURDIR)/lightning_modules $(CURDIR)/callbacks "$$stubs/"
	@touch $@

# The newest transformers, beside the one that is compared with: scripts have to run unchanged with it too.
$(VENV)/.newest: $(VENV)/.test Makefile
	@echo "installing the newest transformers into $(VENV)/newest"
	@rm -rf $(VENV)/newest
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/newest $(NEWEST)
	@touch $@

# An older TRL, beside the newest.
$(VENV)/.trl-1.9: $(VENV)/.libraries Makefile
	@echo "installing $(OLDER_TRL) into $(VENV)/trl-1.9"
	@rm -rf $(VENV)/trl-1.9
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/trl-1.9 $(OLDER_TRL)
	@touch $@

# Comet's client, aside: where it is among the packages, transformers imports it in every process.
$(VENV)/.comet: $(VENV)/.test Makefile
	@echo "installing comet_ml into $(VENV)/comet"
	@rm -rf $(VENV)/comet
	@$(PIP_INSTALL) --target $(VENV)/comet $(COMET)
	@touch $@

# DeepSpeed, aside: where it is among the packages, transformers and accelerate import it in every process. Nothing is
# compiled. It is built with the torch that is there; where that fails, the tests that need it are skipped.
$(VENV)/.deepspeed: $(VENV)/.test Makefile
	@echo "installing deepspeed into $(VENV)/deepspeed"
	@rm -rf $(VENV)/deepspeed
	@$(PIP_INSTALL) setuptools wheel
	@$(PIP_INSTALL) --target $(VENV)/deepspeed $(DEEPSPEED_NEEDS) && \
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(PIP_INSTALL) --no-build-isolation --no-deps --target $(VENV)/deepspeed $(DEEPSPEED) \
	|| { rm -rf $(VENV)/deepspeed; echo "deepspeed could not be installed: its tests will be skipped" >&2; }
	@touch $@

# Libraries of optimizers, Liger and Ray, aside, with the lowest version of each.
$(VENV)/.others: $(VENV)/.test Makefile
	@echo "installing $(OTHER_EXTRAS) into $(VENV)/others"
	@rm -rf $(VENV)/others
	@$(PIP_INSTALL) --no-deps --target $(VENV)/others $(foreach extra,$(OTHER_EXTRAS),$(call lowest,$(extra))) $(OTHERS_NEED)
	@touch $@

# TensorFlow, aside: where it is among the packages, others import it.
$(VENV)/.tf: $(VENV)/.test Makefile
	@echo "installing tensorflow into $(VENV)/tf, models of transformers 4 into $(VENV)/keras-2"
	@rm -rf $(VENV)/tf $(VENV)/keras-2
	@$(PIP_INSTALL) --no-deps --target $(VENV)/tf $(TENSORFLOW) $(TENSORFLOW_NEEDS)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/keras-2 $(KERAS_2)
	@touch $@

# pyright follows imports, so it also needs what the tests import.
$(VENV)/.lint: $(VENV)/.test
	@echo "installing the group lint"
	@$(PIP_INSTALL) --group lint
	@touch $@

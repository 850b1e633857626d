# Two commands do everything: `make demo` and `make test`. Both set up .venv from the pins the first time.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help demo demo-server demo-peers test test-all test-deploy test-oldest test-flower torture soak lint types format docs test-docs results bench bench-ray bench-small compare-speed golden golden-check clean

help:
	@echo "make demo      compare FedU, Local and Global on embedded data; a page with a map"
	@echo "make demo-server  a server and four clients on this machine, with certificates"
	@echo "make demo-peers   eight peers without a server; one is killed and started again"
	@echo "make test      the tests (under five minutes on two cores)"
	@echo "make test-all  the tests, slow ones included"
	@echo "make test-deploy  a server and clients over real connections, with faults"
	@echo "make test-oldest  the tests with the oldest versions of all packages (in .venv-oldest)"
	@echo "make test-flower  the tests of the Flower app, a real federation included (in .venv-flower)"
	@echo "make torture   runs killed at random moments, twenty times each"
	@echo "make soak      sixteen peers for 20 minutes with kills; memory and open files"
	@echo "make lint      ruff (format and lint)       make types   mypy --strict"
	@echo "make docs      the documentation site in build/docs (offline; under three minutes)"
	@echo "make test-docs  the site's links, search and pages in a browser; notebooks, gallery, figures"
	@echo "make results   docs/results from the files in results/"
	@echo "make bench     speed against other frameworks and the machine's limit"
	@echo "make bench-ray  a million clients: one process, workers, and what fedlap plan predicted"
	@echo "make compare-speed BASE=<commit>  is the working tree slower than that commit?"
	@echo "make golden    write digests of every method's numbers to golden.json"
	@echo "make golden-check BASE=<commit>  prove that no number has changed since that commit"
	@echo "make format    reformat the sources         make clean   remove .venv and caches"

$(READY): pyproject.toml constraints.txt
	@echo "Setting up .venv (once; a minute or two) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedlap needs Python 3.11 or newer; set PYTHON=...")'
	@$(PYTHON) -m venv .venv
	@PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/fedlap compare --data digits --algorithms fedu,dfedu,local,global --local-epochs 5 --rounds 50 --seeds 0-4 --threads 1
	$(BIN)/fedlap compare --data radon --graph known,shuffled --algorithms fedu,local,global --seeds 0-9 --threads 1
	@echo "HTML page of the second comparison, with a map and an answer per county:"
	@$(BIN)/fedlap report "$$(ls -td runs/radon-compare-* | head -n 1)"

# Radon, split into four regions: keys, a server and four clients on loopback, a report; under a minute.
demo-server: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python examples/deploy/demo.py

# Radon, split by the compass: eight peers on loopback, twice, beside the simulation; it prints its duration.
demo-peers: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python examples/deploy/demo_peers.py

# One thread per process: two processes with two BLAS threads each crawl.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m "not slow and not deploy and not docs"

test-all: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

# Servers, clients, peers and workers of Ray in real processes and over real connections.
test-deploy: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup -m "deploy and not slow" \
	    tests/deploy tests/training/shards tests/cli/test_task_workers.py

# In a separate environment; PyTorch's CUDA build needs 6 GB there, its CPU build less (set PIP_INDEX_URL).
OLDEST := .venv-oldest
OLDEST_TESTS ?= tests
test-oldest:
	$(PYTHON) -m venv $(OLDEST)
	PIP_CONSTRAINT=constraints-oldest.txt $(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	OMP_NUM_THREADS=1 PYTHONUTF8=1 $(OLDEST)/bin/python -m pytest -n 2 -m "not slow and not deploy and not docs" $(OLDEST_TESTS)

# Flower excludes the pinned versions of typer, rich, protobuf and packaging, so it has a separate environment.
FLOWER := .venv-flower
$(FLOWER)/.ready: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv $(FLOWER)
	PIP_CONSTRAINT=constraints-flower.txt $(FLOWER)/bin/python -m pip install --quiet \
		--disable-pip-version-check -e '.[deploy,flower-app]' beartype hypothesis pytest pytest-xdist
	@touch $(FLOWER)/.ready

test-flower: $(FLOWER)/.ready
	OMP_NUM_THREADS=1 $(FLOWER)/bin/python -m pytest -n 2 tests/deploy/test_flower_*.py

# Every method, and a deployment of real processes, killed at twenty random moments, and 200 scripts of disturbed
# messages; fewer in the other targets.
torture: $(READY)
	OMP_NUM_THREADS=1 FEDLAP_KILLS=20 FEDLAP_EXAMPLES=200 $(BIN)/pytest -n 2 tests/test_torture.py \
	    tests/deploy/test_local_deployment.py::test_disturbed_messages_change_nothing \
	    tests/deploy/test_process_faults.py::test_processes_that_are_killed_at_random_times_change_nothing \
	    tests/deploy/peers/test_peer_process_faults.py::test_peers_that_are_killed_at_random_times_change_nothing

# One thread per process; the table of the result is committed, and CI runs a minute of it.
soak: $(READY)
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python tests/support/peer_soak.py --results benchmarks/RESULTS.md

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Notebooks and the gallery are executed, and their outputs are stored in build/notebooks until they change.
docs: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build -W --keep-going -n -q -j 2 -b html docs build/docs
	@echo "The site is in build/docs/index.html"

# Builds the site as well; links, search and pages are tested in Chromium, if it is installed.
test-docs: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup -m docs tests/docs tests/test_notebooks.py \
	    tests/deploy/test_deploy_page.py tests/deploy/peers/test_peers_page.py

# docs/results and the tuned values of the recipes, from the files that `fedlap reproduce --out results` wrote.
results: $(READY)
	$(BIN)/fedlap results results --to docs/results --tuned src/fedlap/reproduce/recipes/tuned

bench: $(READY)
	$(BIN)/python -m benchmarks --results benchmarks/RESULTS.md
	$(BIN)/python benchmarks/loading.py
	$(BIN)/python -m benchmarks.saving
	$(BIN)/python -m benchmarks.scoring --results benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.site_build --results benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.peers --results benchmarks/RESULTS.md

# 10,000 to a million clients by one process and by workers of Ray, beside the predictions of fedlap plan.
# The workers need the extra ray; Flower and pfl-research get environments in .bench, which need the network.
bench-ray: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.large_federations --results benchmarks/RESULTS.md
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.large_methods --results benchmarks/RESULTS.md
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.planned --results benchmarks/RESULTS.md

# Ratios only, compared with the committed ones; one minute.
bench-small: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.small

# Thirty pairs of measurements per workload, in turns; about ten minutes, and not part of CI.
compare-speed: $(READY)
	@test -n "$(BASE)" || { echo "compare-speed: no commit given; use make compare-speed BASE=<commit>"; exit 2; }
	$(BIN)/python -m benchmarks.compare $(BASE) .

# SHA-256 digests of models, states and scores; 35 s on one core, and not part of CI.
golden: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.golden write golden.json

golden-check: $(READY)
	@test -n "$(BASE)" || { echo "golden-check: no commit given; use make golden-check BASE=<commit>"; exit 2; }
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.golden check $(BASE)

clean:
	rm -rf .venv .venv-oldest .venv-flower .mypy_cache .pytest_cache .ruff_cache build src/*.egg-info

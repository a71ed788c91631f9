# From clone to green: `make test`. Every target sets up what it needs; nothing is skipped when a piece is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

.PHONY: setup system-packages java lint test compat bench demo docs soak torture clean

setup: system-packages $(VENV)/.installed

$(VENV)/.installed: pyproject.toml setup.py constraints.txt $(wildcard src/tidelog/records/kernel*.p*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# What the tests need from the system: the C client, a compiler for the record kernel, what makes disks and faults, the
# databases that consumers keep marks in, and what Spark runs on.
system-packages:
	@missing=""; \
	command -v kcat >/dev/null || missing="$$missing kcat"; \
	command -v cc >/dev/null || missing="$$missing gcc python3-dev"; \
	command -v strace >/dev/null || missing="$$missing strace"; \
	PATH="$$PATH:/usr/sbin:/sbin" command -v ip >/dev/null || missing="$$missing iproute2"; \
	command -v java >/dev/null || missing="$$missing openjdk-17-jre-headless"; \
	PATH="$$PATH:/usr/sbin:/sbin" command -v mkfs.ext4 >/dev/null || missing="$$missing e2fsprogs"; \
	command -v redis-server >/dev/null || missing="$$missing redis-server"; \
	ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$$missing postgresql"; \
	if [ -n "$$missing" ]; then \
		echo "installing$$missing (Debian packages) for the tests"; \
		apt-get update -qq && apt-get install -y -qq $$missing || { echo "could not install them: as root, run apt-get install$$missing"; exit 1; }; \
	fi

LINT := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

lint: setup
	$(LINT)

# If a test hangs where its own time limit can't stop it, its process ends and prints the stacks of all threads.
WATCHDOG := -o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true

# Tests wait for timers, sessions and processes as well as for the processor, so there are more workers than processors.
WORKERS ?= $(shell echo $$(( ($$(nproc 2>/dev/null || echo 2) * 3 + 1) / 2 )))

# Where /dev/shm has room and lets programs run, the tests' files are there: waiting for flushes of brokers' files would
# take minutes. Tests about disks create their own. Linting runs beside the tests, and its result is shown at the end.
test: setup
	@room=$$(df --output=avail -m /dev/shm 2>/dev/null | tail -n 1); \
	place=$$([ "$${room:-0}" -ge 4096 ] && mktemp -d /dev/shm/tidelog-tests-XXXXXX); \
	if [ -n "$$place" ] && ! { cp /bin/true "$$place" && "$$place/true"; } 2>/dev/null; then rm -rf "$$place"; place=; fi; \
	place=$${place:-$$(mktemp -d)}; chmod 1777 "$$place"; trap 'rm -rf "$$place"' EXIT; trap 'exit 130' INT TERM; \
	echo "the tests' files are in $$place"; \
	nice sh -c '$(LINT)' >"$$place/lint.log" 2>&1 & lint=$$!; \
	TMPDIR="$$place" $(PYTEST) -n $(WORKERS) --dist loadgroup -m "not compat and not soak" -o tmp_path_retention_policy=failed \
		$(WATCHDOG) --durations=25 --durations-min=5; tests=$$?; \
	wait $$lint; lint=$$?; cat "$$place/lint.log"; \
	[ $$tests -eq 0 ] && [ $$lint -eq 0 ]

# The Java clients, built once a version; Kafka's own tools and broker come through tidelog.bench, which the tests use.
JAVA_VERSIONS := 3.9.2 4.3.1
JAVA_LIBS := tests/compat/java/target
JAVA_DRIVERS := $(foreach version,$(JAVA_VERSIONS),$(JAVA_LIBS)/lib-$(version)/compat-1.jar)

$(JAVA_LIBS)/lib-%/compat-1.jar: tests/compat/java/pom.xml $(shell find tests/compat/java/src -name '*.java')
	@command -v mvn >/dev/null && command -v java >/dev/null || { echo "make compat needs Maven and JDK 17: apt-get install maven openjdk-17-jdk-headless"; exit 1; }
	mvn -q -B -f tests/compat/java/pom.xml package -Dkafka.version=$*

# Kafka's own tester of compaction comes with jars of its own: it is published among the test classes of one release.
COMPACTION_TESTER := $(JAVA_LIBS)/log-compaction-tester/kafka_2.13-3.9.2-test.jar

$(COMPACTION_TESTER): tests/compat/java/log_compaction_tester.xml
	@command -v mvn >/dev/null && command -v java >/dev/null || { echo "make compat needs Maven and JDK 17: apt-get install maven openjdk-17-jdk-headless"; exit 1; }
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(@D)
	touch $@

# Kafka Streams, for the test that counts words with it.
STREAMS := $(JAVA_LIBS)/streams/kafka-streams-4.3.1.jar

$(STREAMS): tests/compat/java/streams.xml
	@command -v mvn >/dev/null && command -v java >/dev/null || { echo "make compat needs Maven and JDK 17: apt-get install maven openjdk-17-jdk-headless"; exit 1; }
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(@D)
	touch $@

# A real schema registry with Confluent's interface, in memory: the newest Apicurio that runs on JDK 17.
REGISTRY := $(JAVA_LIBS)/registry/apicurio-registry-app-3.0.9-runner.jar

$(REGISTRY):
	@command -v mvn >/dev/null && command -v java >/dev/null || { echo "make compat needs Maven and JDK 17: apt-get install maven openjdk-17-jdk-headless"; exit 1; }
	mvn -q -B dependency:unpack -Dartifact=io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all \
		-DoutputDirectory=$(CURDIR)/$(@D) -DmarkersDirectory=$(CURDIR)/$(@D)/markers
	touch $@

# The source, the sink and pipelines also run against this Kafka. Spark's own format comes through tidelog.bench.
SPARK_PEER := 4.3.1

compat: setup $(JAVA_DRIVERS) $(COMPACTION_TESTER) $(STREAMS) $(REGISTRY)
	COMPAT_JAVA_LIBS=$(CURDIR)/$(JAVA_LIBS) COMPAT_KAFKA_CLIENTS_JAR=$(CURDIR)/$(JAVA_LIBS)/lib-4.3.1/kafka-clients-4.3.1.jar \
		$(PYTEST) -m compat
	for version in $(JAVA_VERSIONS); do \
		echo "the client suite against Apache Kafka $$version"; \
		COMPAT_CLIENT_PEER=$$version $(PYTEST) tests/scenario/client -m "not compat and not soak and not tidelog_only" || exit 1; \
	done
	echo "the client suite on a cluster of three brokers"
	COMPAT_BROKERS=3 $(PYTEST) tests/scenario/client -m "not compat and not soak"
	echo "the Spark suite against Apache Kafka $(SPARK_PEER)"
	COMPAT_CLIENT_PEER=$(SPARK_PEER) $(PYTEST) tests/scenario/spark -m "not compat and not soak and not tidelog_only"

bench: setup
	$(BIN)/tidelog bench broker

# The whole story, from a shop's events to a promoted second version of a pipeline, with every result checked. Nothing is
# left behind but the chart, tidelog-demo.png. `tidelog demo --quick` takes ten seconds and needs no Spark.
# It needs Java and a few packages, not the tools of development; where those are installed, it uses their environment.
DEMO_VENV := .venv-demo
DEMO := $(if $(wildcard $(VENV)/.installed),$(VENV),$(DEMO_VENV))

$(DEMO_VENV)/.installed: pyproject.toml setup.py constraints.txt $(wildcard src/tidelog/records/kernel*.p*)
	test -x $(DEMO_VENV)/bin/python || $(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[spark,charts]'
	touch $@

java:
	@command -v java >/dev/null || { \
		echo "installing openjdk-17-jre-headless (Debian package) for Spark"; \
		apt-get update -qq && apt-get install -y -qq openjdk-17-jre-headless || { echo "could not install it: Spark needs Java 17 or later"; exit 1; }; \
	}

demo: java $(DEMO)/.installed
	$(DEMO)/bin/tidelog demo

# The documentation site, with search, an API reference and a file index, into site/.
docs: setup
	$(BIN)/python docs/_site/build.py

# Long fault runs, which have no place in every test run.
soak: setup
	$(PYTEST) -m soak

# A recorded run: hours, as root for faults of networks and disks. `make torture TORTURE_CLUSTER=tidelog-zookeeper TORTURE_SEED=7`
# is another one; what it leaves is in TORTURE_DIRECTORY, which must not hold an earlier run.
TORTURE_CLUSTER ?= tidelog-sqlite
TORTURE_FAULTS ?= 1000
TORTURE_SENDS ?= 10000000
TORTURE_SEED ?= $(shell date +%s)
TORTURE_SEED := $(TORTURE_SEED)
TORTURE_DIRECTORY ?= build/torture/$(TORTURE_CLUSTER)-$(TORTURE_SEED)

torture: setup
	mkdir -p $(dir $(TORTURE_DIRECTORY))
	$(BIN)/tidelog torture --cluster $(TORTURE_CLUSTER) --faults $(TORTURE_FAULTS) --sends $(TORTURE_SENDS) \
		--seed $(TORTURE_SEED) --directory $(TORTURE_DIRECTORY)

clean:
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache $(VENV) $(DEMO_VENV)

# Every command makes its own environment in .venv; nothing is installed outside it and ~/.cache.
VENV := .venv
PY := $(VENV)/bin/python
export PYTHONPATH := benchmarks
# torch and Triton are 5 GB: an environment of their own, in ~/.cache, for all checkouts.
ON_KERNELS := PYTHONPATH=kernels:tier:benchmarks $$($(PY) -m kernels_report.install)
SPLIT_CHARS := 100000
# By themselves: one network namespace holds the whole cluster.
ON_KUBERNETES := e2e/test_cluster.py e2e/test_operator.py e2e/test_operator_sglang.py

.PHONY: demo demo-sglang e2e-full test kernels kernels-full check bench bench-service bench-load bench-memory tokenizers e2e fuzz exactness mutants format clean

demo: $(VENV)/.ready  ## admit a real tokenizer, replay 300 agent turns, check every one (build/demo.json, .html)
	$(PY) -m demo --out build

test: $(VENV)/.ready  ## all tests; properties get TOKTIER_EXAMPLES times their examples
	$(PY) -m catalog --ci
	TOKTIER_EXAMPLES=$${TOKTIER_EXAMPLES:-0.4} $(PY) -m pytest -q -n 2 --dist loadfile

kernels: $(VENV)/.ready  ## the GPU kernels without a GPU: twins, interpreter, machine code for five targets (build/kernels.json)
	$(PY) -m catalog --ci
	TRITON_INTERPRET=1 TOKTIER_EXAMPLES=$${TOKTIER_EXAMPLES:-0.2} $(ON_KERNELS) -m pytest -q -n 2 --dist loadfile tests/kernels
	$(ON_KERNELS) -m kernels_report --out build --split-chars $(SPLIT_CHARS)

kernels-full: SPLIT_CHARS := 10000000
kernels-full: kernels  ## the same with 10^7 characters a pattern family at split level

check: $(VENV)/.ready  ## lint, types, layers, generated files
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	.ci/generate --check

bench: $(VENV)/.ready  ## side by side with the peers (build/bench.json)
	$(PY) -m bench --out build

demo-sglang: $(VENV)/.ready  ## 40 turns through a real SGLang on the CPU, by text and by the tier (build/demo-sglang.json)
	PYTHONPATH=benchmarks:e2e/sglang $(PY) -m sglang_demo --out build

bench-service: $(VENV)/.ready  ## Append over gRPC beside a bare echo (build/bench-service.json)
	$(PY) -m service_bench --out build

bench-load: $(VENV)/.ready  ## a tier under mixed load up to saturation (build/bench-load.json, .html)
	$(PY) -m load_bench --out build

bench-memory: $(VENV)/.ready  ## many sessions beside the stated model, then half an hour of churn (build/bench-memory.json)
	$(PY) -m memory_bench --out build

tokenizers: $(VENV)/.ready  ## admit every tokenizer of the catalog (build/tokenizers.json)
	$(PY) -m catalog --all
	$(PY) -m tokenizers_table --out build

e2e: $(VENV)/.ready  ## the operator on a real Kubernetes (or yours: KUBECONFIG), three pods under faults, a real SGLang on the CPU
	$(PY) -m catalog --ci
	e2e/cluster/run -q -m "not slow" --junit-xml=build/e2e.xml $(ON_KUBERNETES)
	$(PY) -m pytest -q --junit-xml=build/e2e-pods.xml e2e/test_pods.py
	$(PY) -m pytest -q -n 2 --dist loadfile -m "not slow" --junit-xml=build/e2e-sglang.xml \
		--ignore e2e/test_pods.py $(addprefix --ignore ,$(ON_KUBERNETES)) e2e

e2e-full: $(VENV)/.ready  ## the same with what takes minutes
	$(PY) -m catalog --ci
	e2e/cluster/run -q --junit-xml=build/e2e.xml $(ON_KUBERNETES)
	$(PY) -m pytest -q -n 2 --dist loadfile --junit-xml=build/e2e-sglang.xml $(addprefix --ignore ,$(ON_KUBERNETES)) e2e

fuzz: $(VENV)/.ready  ## the property tests again, with 50 times their examples
	TOKTIER_EXAMPLES=50 $(PY) -m pytest -q -n 2 --dist loadfile --timeout 7200 tests/core tests/sessions

EXACTNESS_SECONDS := 600
exactness: $(VENV)/.ready  ## comparisons at scale, going on where the last start stopped (EXACTNESS_SECONDS each of four kinds)
	$(PY) -m catalog --all
	for kind in splits ids sessions history; do \
		$(PY) -m exactness $$kind --out build --seconds $(EXACTNESS_SECONDS) || exit 1; \
	done
	$(PY) -m exactness table --out build

mutants: $(VENV)/.ready  ## faults planted in our own code, one by one: the suite has to find each (build/mutants.json)
	$(PY) -m catalog --ci
	$(PY) -m mutants --out build --document docs/exactness.md

format: $(VENV)/.ready
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) build

$(VENV)/.ready: pyproject.toml .ci/environment .ci/releases $(wildcard tier/toktier_tier/encoders/releases/*.txt)
	.ci/environment $(VENV)
	touch $@

# Everything that a person or CI does here: `make help` prints the list.
# A step that installs or builds leaves a stamp (in dist or the venv), so that a second run is fast.
.DEFAULT_GOAL := help
.SHELLFLAGS := -ec
.DELETE_ON_ERROR:
# One pip at a time in a venv; cargo and the tests use all cores by themselves.
.NOTPARALLEL:

PYTHON ?= python3
# `make test TORCH=2.10.0` uses that torch, in a venv of its own; without it, the newest.
TORCH ?=
VENV := .venv$(if $(TORCH),-$(TORCH))
PY := $(VENV)/bin/python
# --no-compile: Python compiles a module when it is first imported, and most modules of these packages never are.
PIP := $(PY) -m pip --disable-pip-version-check --quiet
# Containers often set this variable. Then each of the tests' processes compiles torch, diffusers and transformers again.
unexport PYTHONDONTWRITEBYTECODE
REQUIREMENTS := py-bindings/requirements
# `make test OP=softmax` builds and runs only the tests that name this op.
OP ?=
# Number of parallel pytest processes. Each process uses one thread for torch's CPU operators.
JOBS ?= auto
PYTEST = OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder
# The wheel in the venv is one of three:
#   release  optimized, with all PTX: the wheel for users
#   core     a development build, with the PTX of `make test`: it shares its compiled crates with `make test-rust`
#   gpu      a development build, with the PTX of this machine's GPUs, or none
# A target that accepts several wheels uses the one that is installed. WHEEL=release: test the wheel for users.
WHEEL ?= core
TESTED := $(firstword $(wildcard $(VENV)/.release) $(VENV)/.$(WHEEL))
ANY := $(firstword $(wildcard $(VENV)/.release $(VENV)/.core) $(VENV)/.gpu)
DENY := dist/tools/bin/cargo-deny
PTX_gpu = $(shell $(PYTHON) scripts/gpu.py)
# Without a GPU, `make test` compiles and checks the PTX for Hopper. `make test-ptx` checks the PTX for all architectures.
PTX_core = $(or $(OXIWARP_PTX),$(if $(filter none,$(PTX_gpu)),sm_90$(,)sm_90a))
SOURCES := $(shell find Cargo.* .cargo rust-toolchain.toml cuda-std cuda-builder kernels-gpu host py-bindings \
	-type f -not -path '*/__pycache__/*' -not -name 'requirements-*' 2>/dev/null)

.PHONY: help demo test test-both test-op test-rust test-python test-ptx test-extra check bench bench-gpu exactness curve ptx wheel wheel-check wheel-aarch64 crates lists hub \
	bundle lint audit docs clean doctor
help: ## print this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(VENV)/.demo $(ANY) ## patch a diffusers model, compare it with the stock one, save demo.png
	$(PY) -m oxiwarp demo

test: $(if $(OP),test-op,test-both) ## all tests, on a GPU too if there is one; OP=<op>: only its tests; TORCH=<version>

# Downloads and installs the Python packages while cargo compiles.
test-both: dist/.toolchain
	@$(MAKE) --no-print-directory $(VENV)/.test >dist/packages.log 2>&1 & packages=$$!; \
	$(MAKE) --no-print-directory test-rust || { kill $$packages; exit 1; }; \
	wait $$packages || { cat dist/packages.log; exit 1; }
	@$(MAKE) --no-print-directory test-python

test-rust: dist/.toolchain
	$(addprefix OXIWARP_PTX=,$(PTX_core)) cargo test --workspace

test-python: $(TESTED) $(VENV)/.test
	$(PYTEST) tests/python

test-op: $(ANY) $(VENV)/.test
	$(SAME_PTX) cargo test -p oxiwarp-tests --test kernels -- $(OP)
	$(PYTEST) tests/python -k $(OP)

test-ptx: ptx $(VENV)/.test ## check the PTX for the architectures that `make test` leaves out
	$(PYTEST) tests/python/ptx --extra -k "not without_overlap"

test-extra: $(TESTED) $(VENV)/.test ptx ## slow tests: random calls, tests marked `extra`, every change of every patched model, examples/tensors
	$(PY) tests/python/fuzz --seconds 300
	$(PYTEST) tests/python --extra
	$(PYTEST) tests/python/patch/test_patch_matrix.py --matrix all
	cargo test -p oxiwarp-cuda-std --test typed_launches -- --ignored
	cd examples/tensors && cargo test --locked --target-dir ../../target/tensors
	rustup target add aarch64-unknown-linux-gnu
	cargo build -p oxiwarp-driver --target aarch64-unknown-linux-gnu # assembles the driver functions of the other processor

# The tests of the sources' own rules take milliseconds each.
RULES := comments or results or figures or imports or module_lists or pieces or rust_modules
check: $(ANY) $(VENV)/.test dist/.toolchain ## the fast check before a commit: formatting, clippy, ruff, types, fast tests
	$(STATIC_CHECKS)
	$(SAME_PTX) cargo test --quiet -p oxiwarp-cuda-std -p oxiwarp-kernels-gpu
	$(PY) -m pytest -q tests/python/tools -k "$(RULES)"

bench: | doctor ## measure every kernel and its baselines; needs a GPU
	@if $(PYTHON) scripts/gpu.py --require; then $(MAKE) --no-print-directory bench-gpu; fi

bench-gpu: $(VENV)/.release $(VENV)/.bench
	cargo run --release -p oxiwarp-benches --bin bench
	cargo bench -p oxiwarp-benches
	$(PY) benches/python/bench.py

exactness: $(VENV)/.release $(VENV)/.test ## every op's bits beside those of the models' own classes; needs a GPU
	$(PY) benches/python/exactness.py

curve: $(VENV)/.release $(VENV)/.test ## every op's time against bytes, past 2^32 elements; needs a GPU
	$(PY) benches/python/curve.py

KERNELS := target/ptx/oxiwarp-kernels-gpu/*/*.ptx
ptx: dist/.toolchain ## leave the PTX of every architecture in target/ptx/oxiwarp-kernels-gpu
	cargo check -p oxiwarp
	@ls $(KERNELS) 2>/dev/null || { touch host/build.rs; cargo check -p oxiwarp; ls $(KERNELS); }

wheel: dist/.release ## build the Python wheel into dist
	@ls dist/*.whl

wheel-check: dist/.release ## check the wheels in dist: size, symbols, ABI, metadata, contents
	$(PY) scripts/check_wheel.py dist/*.whl $(wildcard dist/aarch64/*.whl)

wheel-aarch64: dist/.toolchain | $(VENV)/.build $(VENV)/.wheel ## cross-build the wheel for aarch64 Linux into dist/aarch64 (not tested on such a machine)
	rustup target add aarch64-unknown-linux-gnu
	$(MATURIN) --target aarch64-unknown-linux-gnu -o dist/aarch64

crates: dist/.toolchain ## make the packages of the Rust crates, and build a project from them on stable Rust
	scripts/crates.sh

lists: | doctor ## write the lists of modules again, after a file of an op or a test came or went
	$(PYTHON) scripts/module_lists.py

hub: $(VENV)/.release $(VENV)/.demo ## the wheel's content as a kernel repository of Hugging Face Kernels, in dist/hub
	$(PY) -m oxiwarp hub dist/hub

bundle: $(VENV)/.release $(VENV)/.test ## one folder with all that a GPU machine without network needs
	PYTHON=$(PY) scripts/bundle.sh

docs: $(VENV)/.docs dist/.toolchain ## build the documentation site, with rustdoc, into target/site
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	cp -r target/doc target/site/rust
	@echo "open target/site/index.html, and target/site/rust/oxiwarp/index.html for the Rust crates"

lint: $(ANY) $(VENV)/.test $(VENV)/.lint $(DENY) ## the static checks of check, and stubs, documentation, spelling, licences, workflows
	$(STATIC_CHECKS)
	RUSTDOCFLAGS="-D warnings" $(SAME_PTX) cargo doc --workspace --no-deps
	$(PY) -m mypy.stubtest oxiwarp._native
	$(VENV)/bin/typos
	$(VENV)/bin/zizmor --quiet --offline .github/workflows
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	cargo fetch --quiet --locked # for all platforms: cargo deny reads the licences of all crates
	$(DENY) --offline --log-level error check licenses bans sources

audit: $(DENY) ## check the crates for known vulnerabilities; needs the network
	$(DENY) check advisories

# The same selection of PTX as in the installed wheel. Another selection would compile PTX that the target does not need.
SAME_PTX = $(addprefix OXIWARP_PTX=,$(PTX_$(patsubst .%,%,$(notdir $(ANY)))))

define STATIC_CHECKS
	cargo fmt --all --check
	$(SAME_PTX) cargo clippy --quiet --workspace --all-targets -- -D warnings
	$(PY) -m ruff check --config py-bindings/pyproject.toml .
	$(PY) -m ruff format --check --config py-bindings/pyproject.toml .
	$(PY) -m mypy --config-file py-bindings/pyproject.toml py-bindings/python/oxiwarp
endef

clean: ## remove everything that these targets made
	rm -rf target dist .venv .venv-* demo.png

# Each line prints nothing, or stops with the name of the missing program and the command that installs it.
need = $(if $(shell $(1) 2>/dev/null),,$(error $(2)))
doctor: ## check that this machine has what a build needs
	@$(call need,command -v rustup,rustup is missing: install it from https://rustup.rs (or: apt-get install rustup))
	@$(call need,command -v cc,a C compiler is missing: apt-get install gcc libc6-dev)
	@$(call need,command -v $(PYTHON),$(PYTHON) is missing: apt-get install python3 python3-venv)
	@$(call need,$(PYTHON) -c 'import sys; print("y"[sys.version_info < (3$(,)10):])',$(PYTHON) is older than 3.10: \
		install a newer one and run make PYTHON=<its path>)
	@$(call need,$(PYTHON) -c 'import venv$(,) ensurepip; print("y")',the venv module of $(PYTHON) is missing: \
		apt-get install python3-venv)
, := ,

dist/.toolchain: rust-toolchain.toml scripts/toolchain.sh | doctor
	scripts/toolchain.sh
	mkdir -p dist && touch $@

$(VENV)/.created: | doctor
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.build: $(REQUIREMENTS)-build.txt $(VENV)/.created
	$(PIP) install --no-compile -r $<
	touch $@

$(VENV)/.demo: $(REQUIREMENTS)-demo.txt $(VENV)/.created
	$(PIP) install --no-compile torch$(if $(TORCH),==$(TORCH)) -r $<
	touch $@

$(VENV)/.test: $(REQUIREMENTS)-test.txt $(REQUIREMENTS)-ptx.txt $(VENV)/.demo
	$(PIP) install --no-compile -r $<
	$(PIP) install --no-compile --no-deps -r $(REQUIREMENTS)-ptx.txt
	touch $@

# A debug build takes half of the time to compile and 0.7 s to run.
$(DENY): | dist/.toolchain
	cargo install --quiet --locked --debug --root dist/tools cargo-deny@0.20.2

$(VENV)/.wheel: $(REQUIREMENTS)-wheel.txt $(VENV)/.created
	$(PIP) install --no-compile -r $<
	touch $@

$(VENV)/.lint: $(REQUIREMENTS)-lint.txt $(VENV)/.created
	$(PIP) install --no-compile -r $<
	touch $@

$(VENV)/.docs: $(REQUIREMENTS)-docs.txt $(VENV)/.created
	$(PIP) install --no-compile -r $<
	touch $@

$(VENV)/.bench: $(REQUIREMENTS)-bench.txt $(VENV)/.test
	$(PIP) install --no-compile -r $<
	touch $@

# With PTX from another folder, or with a part of the PTX, the wheel is built each time and leaves no stamp.
dist/.release: $(SOURCES) dist/.toolchain $(if $(OXIWARP_PTX_DIR)$(OXIWARP_PTX),.FORCE) | $(VENV)/.build $(VENV)/.wheel
	rm -f dist/oxiwarp-*.whl
	$(MATURIN) -o dist
	$(if $(OXIWARP_PTX_DIR)$(OXIWARP_PTX),rm -f,touch) $@

.FORCE:

# zig links against the symbols of an old glibc. maturin looks for zig in the Python on the PATH.
MATURIN = PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m maturin build --release --quiet --zig --compatibility manylinux_2_28 \
	-m py-bindings/Cargo.toml

dist/development/.core dist/development/.gpu: dist/development/.%: $(SOURCES) dist/.toolchain | $(VENV)/.build
	rm -rf dist/development
	$(addprefix OXIWARP_PTX=,$(PTX_$*)) $(PY) -m maturin build --quiet -m py-bindings/Cargo.toml -o dist/development
	touch $@

$(VENV)/.release: dist/.release $(VENV)/.created
	$(call install,dist)

$(VENV)/.core $(VENV)/.gpu: $(VENV)/.%: dist/development/.% $(VENV)/.created
	$(call install,dist/development)

define install
	$(PIP) install --no-compile --force-reinstall --no-deps $(1)/oxiwarp-*.whl
	rm -f $(VENV)/.release $(VENV)/.core $(VENV)/.gpu
	touch $@
endef

# gdiag: build, try, test. Every target that builds sets the machine up first (tests/setup.sh).

PREFIX ?= /usr/local
TARGET := $(or $(CARGO_TARGET_DIR),target)
SIM := $(TARGET)/simgpu
GDIAG := $(TARGET)/release/gdiag
CARGO ?= cargo
CFLAGS ?= -O2 -g -Wall -Wextra

# setup.sh links a newer toolchain there where the one on the PATH is too old.
export PATH := $(abspath $(TARGET))/toolchain:$(PATH)

# Without the default feature `static` where the system's libelf.a does not link. Asked after `setup` ran.
FEATURES = $(shell sh tests/setup.sh features)

# Loading BPF programs takes root: where make does not run as root, the demo and the tests do, by sudo.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E env PATH="$$PATH")
ifneq ($(SUDO),)
export CARGO_TARGET_$(shell uname -m | tr a-z A-Z)_UNKNOWN_LINUX_GNU_RUNNER := $(SUDO)
endif

.PHONY: all
all: setup
	$(CARGO) build --release --locked $(FEATURES)

.PHONY: setup
setup:
	@sh tests/setup.sh build

# The simulated GPU, and the workload that runs on it.
.PHONY: simgpu
simgpu: setup
	$(CARGO) build --release --locked -p gdiag-simgpu-cuda -p gdiag-simgpu-cupti -p gdiag-simgpu-nvml
	@mkdir -p $(SIM)
	install -m 755 $(TARGET)/release/libgdiag_simcuda.so $(SIM)/libcuda.so.1
	install -m 755 $(TARGET)/release/libgdiag_simcupti.so $(SIM)/libcupti.so.13
	install -m 755 $(TARGET)/release/libgdiag_simnvml.so $(SIM)/libnvidia-ml.so.1
	$(CC) $(CFLAGS) -pthread -Wl,-rpath,'$$ORIGIN' -o $(SIM)/gpuload $(wildcard tests/programs/gpuload/*.c) -ldl
ifeq ($(shell uname -m),x86_64)
	$(CC) $(CFLAGS) -pthread -Wl,-rpath,'$$ORIGIN' -o $(SIM)/victim $(wildcard tests/programs/victim/*.[cS]) tests/programs/gpuload/gpu.c -ldl
	$(CC) $(CFLAGS) -shared -fPIC -o $(SIM)/victim-plugin.so tests/programs/victim/plugin/plugin.c
endif

# A workload with injected faults on the simulated GPU, recorded and explained. The processes that
# preempt it are started outside of what is recorded: they are nobody's job.
.PHONY: demo
demo: all simgpu
	$(SUDO) $(SIM)/gpuload outside -- $(GDIAG) record -o $(TARGET)/demo.data -- $(SIM)/gpuload --demo
	@$(if $(SUDO),$(SUDO) chown "$$(id -u)" $(TARGET)/demo.data,:)
	@echo
	$(GDIAG) report -i $(TARGET)/demo.data

.PHONY: test
test: simgpu
	@sh tests/setup.sh test
	$(CARGO) test --locked --workspace $(FEATURES)

# What takes BPF, on the kernels of Debian 12 and 13, which are downloaded, in virtual machines. No root is needed.
.PHONY: kernels
kernels: simgpu
	@sh tests/setup.sh kernels
	env -u CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER GDIAG_REQUIRE=kernels \
		$(CARGO) test --locked $(FEATURES) --test kernels -- --nocapture

# Only the injected faults, with the table of what was made of them.
.PHONY: scenarios
scenarios: simgpu
	GDIAG_REQUIRE=bpf,simgpu $(CARGO) test --locked $(FEATURES) --test scenarios -- --nocapture --test-threads=1

# Stacks of programs that know their own call chains, with the table of what was wrong.
.PHONY: stacks
stacks: setup
	GDIAG_REQUIRE=bpf $(CARGO) test --release --locked $(FEATURES) --test stacks -- --nocapture --test-threads=1

# Into running processes and out again, often enough for figures; takes more than half an hour.
.PHONY: torture
torture: all simgpu
	GDIAG_ROUNDS=$${GDIAG_ROUNDS:-200} GDIAG=$(abspath $(GDIAG)) GDIAG_REQUIRE=bpf,simgpu $(CARGO) test --locked $(FEATURES) --test inject -- --nocapture --test-threads=1

# Approves what the report now says of the samples and of the recordings in tests/data. Look at the difference.
.PHONY: bless
bless: setup
	GDIAG_BLESS=1 $(CARGO) test --locked $(FEATURES) --lib present
	GDIAG_BLESS=1 $(CARGO) test --locked $(FEATURES) --test golden as_approved
	@git --no-pager diff --stat -- tests/data src/present/testdata

.PHONY: lint
lint:
	@sh tests/setup.sh build lint
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets $(FEATURES) -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --document-private-items $(FEATURES)
	clang-format --dry-run --Werror bpf/*.bpf.c bpf/*.h

# Slowdown of gdiag and of its peers; takes minutes. BENCHMARKS.md says what it prints.
.PHONY: bench
bench: all
	@sh tests/setup.sh bench
	$(SUDO) env GDIAG=$(abspath $(GDIAG)) tests/bench/overhead.py
	$(SUDO) env GDIAG=$(abspath $(GDIAG)) tests/bench/stacks.py

# After `make`, also by another user: nothing is built here, or files of the tree would become root's.
BASH_COMPLETIONS ?= $(PREFIX)/share/bash-completion/completions
ZSH_COMPLETIONS ?= $(PREFIX)/share/zsh/site-functions
# Of /usr/local fish knows nothing unless the session says so; this is where it looks for what an administrator adds.
FISH_COMPLETIONS ?= $(if $(filter /usr/local,$(PREFIX)),/etc/fish/completions,$(PREFIX)/share/fish/vendor_completions.d)
MAN1 := $(PREFIX)/share/man/man1

# A path as one word of the shell, whatever is in it.
quoted = '$(subst ','\'',$(1))'
DEST_BIN = $(call quoted,$(DESTDIR)$(PREFIX)/bin)
DEST_MAN1 = $(call quoted,$(DESTDIR)$(MAN1))
DEST_BASH = $(call quoted,$(DESTDIR)$(BASH_COMPLETIONS))
DEST_ZSH = $(call quoted,$(DESTDIR)$(ZSH_COMPLETIONS))
DEST_FISH = $(call quoted,$(DESTDIR)$(FISH_COMPLETIONS))
ABSOLUTE_PREFIX = case $(call quoted,$(PREFIX)) in /*) ;; *) echo "PREFIX must begin with /" >&2; exit 1 ;; esac

.PHONY: install
install:
	@$(ABSOLUTE_PREFIX)
	@[ -x $(call quoted,$(GDIAG)) ] || { echo there is no $(call quoted,$(GDIAG)): run make first, as the user who may build >&2; exit 1; }
	install -d $(DEST_BIN) $(DEST_MAN1) $(DEST_BASH) $(DEST_ZSH) $(DEST_FISH)
	install -s -m 755 $(call quoted,$(GDIAG)) $(DEST_BIN)/gdiag
	install -m 644 man/*.1 $(DEST_MAN1)/
	install -m 644 completions/gdiag.bash $(DEST_BASH)/gdiag
	install -m 644 completions/_gdiag $(DEST_ZSH)/_gdiag
	install -m 644 completions/gdiag.fish $(DEST_FISH)/gdiag.fish

# With the variables of the installation. Directories stay.
.PHONY: uninstall
uninstall:
	@$(ABSOLUTE_PREFIX)
	rm -f $(DEST_BIN)/gdiag $(addprefix $(DEST_MAN1)/,$(notdir $(wildcard man/*.1)))
	rm -f $(DEST_BASH)/gdiag $(DEST_ZSH)/_gdiag $(DEST_FISH)/gdiag.fish

# Packages, into target/dist. From the same sources and compilers the same bytes.
.PHONY: deb tarball
deb tarball: all
	@MAKE="$(MAKE)" .packaging/$@.sh

# README's first commands in a Debian that has nothing; takes long. CONTRIBUTING.md says more.
.PHONY: fresh
fresh:
	tests/fresh.sh

.PHONY: clean
clean:
	rm -rf $(TARGET)

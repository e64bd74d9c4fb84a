# SPDX-License-Identifier: GPL-2.0
# Each target is one script; a script whose work is up to date ends at once.

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.NOTPARALLEL:

LINUX ?=
LIBURING ?=
FIO ?=
RUNS ?= 3
export RUNS

help: ## list the targets
	@echo "io_uring: cheaper task work, a patch series for Linux 7.3"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  LINUX=, LIBURING=, FIO=  a directory, git tree or tarball instead of the package"

run: build bench-programs ## boot stock and patched kernels in turn, print the A/B table
	@scripts/run

bench: base bench-programs ## count instructions in QEMU, and messages by its time: build/bench.csv, vm.csv
	@scripts/deps qemu-system-x86
	@scripts/build-fio
	@scripts/build stock x86
	@scripts/series tree --keep
	@scripts/build patched x86
	@scripts/run insn
	@[ -n "$$BENCH" ] || scripts/run vm

bench-baselines: bench ## the same for the queues of before: build/bench.{spinlock,llist}.csv
	@for k in spinlock llist; do \
		scripts/build $$k x86 && KERNELS="$$k patched" BENCH="$${BENCH:-twadd}" scripts/run insn || exit; \
	done

bench-queue: ## the queues alone, in user space: ns a node
	@[ -f build/linux/io_uring/mpscq.h ] || $(MAKE) tree
	@$(MAKE) -s -C bench/queue LINUX=$(CURDIR)/build/linux O=$(CURDIR)/build/bench
	@build/bench/queue

trace: base bench-programs ## histograms of trace events while benchmarks run, in QEMU
	@scripts/deps qemu-system-x86 gnuplot-nox
	@scripts/series tree --keep
	@scripts/build patched x86
	@scripts/trace

bench-host: bench-programs ## measure the kernel that runs now, reading from DEV=/dev/...
	@scripts/build-fio
	@scripts/bench-host $(DEV)

report: ## build/report/index.html of what was measured, or of A=one.csv B=other.csv
	@scripts/deps gnuplot-nox
	@scripts/report $(if $(A),A=$(A)) $(if $(B),B=$(B))

deb: tree ## an installable package of the patched kernel, configured as the running one
	@scripts/deb

check: build liburing ## all tests, in guests: last line "N passed, N failed, N skipped"
	@scripts/build patched debug
	@scripts/check

check-fast: build ## the tests that take under two minutes
	@scripts/check fast

check-debug: base liburing ## the tests in debug kernels: KASAN, no SMP, PREEMPT_RT, KCSAN (an hour)
	@scripts/deps qemu-system-x86
	@scripts/series tree --keep
	@for k in $${DEBUG:-debug up rt kcsan}; do scripts/build patched $$k || exit; done
	@scripts/check debug $$DEBUG

check-old: stock ## the kselftests in stock 7.3 and in Debian's 6.12 and 6.1: pass or skip (20 minutes)
	@scripts/deps qemu-system-x86
	@scripts/series tree --keep
	@scripts/old $(OLD)

bisect: check-fast ## build, boot and test every prefix of the series (over an hour)
	@scripts/bisect

mutations: patched ## break the patched kernel on purpose: does a test notice? (40 minutes)
	@scripts/mutations $(NAME)

litmus: base ## check the memory ordering of the series with the kernel's model and herd7
	@scripts/litmus

lint: base ## sparse, coccicheck, W=1 with gcc and clang, kernel-doc and htmldocs: nothing new against stock
	@scripts/series tree --keep
	@scripts/lint $(PART)

deps: ## install the packages that are missing, or say which
	@scripts/deps

base: deps ## fetch Linux, liburing and fio to build/
	@scripts/fetch linux $(LINUX)
	@scripts/fetch liburing $(LIBURING)
	@scripts/fetch fio $(FIO)

tree: base ## make branch series in build/linux from patches/ and the added files
	@scripts/series tree

refresh: ## write branch series of build/linux back to patches/ and the added files
	@scripts/series refresh

mbox: ## the series as mail in build/mbox; SOB="Name <mail>" signs it
	@scripts/series mbox

checkpatch: tree ## the kernel's checkpatch.pl --strict over every patch
	@scripts/series checkpatch

build: stock patched ## build both UML kernels

stock: base
	@scripts/build stock

patched: stock
	@scripts/series tree --keep
	@scripts/build patched

liburing: base
	@scripts/build-liburing tests

bench-programs: base
	@scripts/build-liburing
	@$(MAKE) -s -C bench LIBURING=$(CURDIR)/build/liburing O=$(CURDIR)/build/bench

shell: build ## an interactive shell in the patched kernel
	@scripts/boot -i build/uml/patched/linux ''

clean: ## remove what was built, keep the sources and build/linux
	@rm -rf build/uml build/x86 build/debug build/up build/kcsan build/rt build/src build/bench build/run.* build/check build/check-old build/tests build/boot build/mutations build/bisect build/trace build/lint
	@[ ! -d build/linux ] || git -C build/linux worktree prune

.PHONY: help run bench bench-baselines bench-queue trace bench-host report deb check check-fast check-debug check-old deps base tree refresh mbox checkpatch build \
	stock patched liburing bench-programs shell clean bisect mutations litmus lint

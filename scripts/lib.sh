# SPDX-License-Identifier: GPL-2.0
# Sourced by the other scripts, which all run from the top of the repository.

set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
build=$top/build
apt=$build/apt
jobs=$(nproc)

say()
{
	echo "== $*" >&2
}

die()
{
	echo "$(basename "$0"): $*" >&2
	exit 1
}

# need COMMAND PACKAGE: refuse early rather than fail in the middle
need()
{
	command -v "$1" >/dev/null ||
		die "$1 is missing (package $2): run make deps"
}

# One step at a time: two of them would build in the same directories.
# A step that calls another keeps the lock for both.
lock()
{
	[ -z "${SERIES_LOCK:-}" ] || return 0
	mkdir -p "$build"
	exec 9>"$build/.lock"
	flock -n 9 || { say "waiting for another make in $top"; flock 9; }
	export SERIES_LOCK=1
}

# space DIRECTORY GIGABYTES
space()
{
	free=$(df -Pk "$1" | awk 'NR == 2 { print int($4 / 1048576) }')
	[ "$free" -ge "$2" ] ||
		die "$2 GB are needed in $1 and $free GB are free: make room, or put build/ elsewhere with a symbolic link"
}

# apt_private get|cache ...: apt with lists and cache of our own
apt_private()
{
	apt-"$@" \
		-o Dir::Etc::SourceList="$apt/sources.list" \
		-o Dir::Etc::SourceParts=/dev/null \
		-o Dir::State::Lists="$apt/lists" \
		-o Dir::Cache="$apt/cache" \
		-o APT::Sandbox::User="$(id -un)"
}

# build_kselftests TREE DIRECTORY KEY: to DIRECTORY/kselftest, with the headers of
# TREE, which KEY stands for
build_kselftests()
{
	log=$2/kselftest.log
	if [ "$(cat "$2/headers/key" 2>/dev/null)" != "$3" ]; then
		rm -rf "$2/headers"
		make -s -C "$1" O="$2/headers/obj" INSTALL_HDR_PATH="$2/headers" headers_install >"$log" 2>&1 ||
			die "the kernel's headers do not install: $log"
		echo "$3" >"$2/headers/key"
	fi
	mkdir -p "$2/kselftest"
	make -s -j"$jobs" -C "$1/tools/testing/selftests/io_uring" OUTPUT="$2/kselftest" \
		KHDR_INCLUDES="-isystem $2/headers/include" >"$log" 2>&1 ||
		{ tail -n 5 "$log" >&2; die "the kselftests do not build: $log"; }
}

# What a kernel complains with on its console.
complaint='BUG: |BUG at |WARNING: |INFO: |Oops|Kernel panic|blocked for more than|possible circular locking|possible recursive locking|possible irq lock inversion|possible deadlock|inconsistent lock state|suspicious RCU usage|rcu.*stall|KASAN|KCSAN|UBSAN|ODEBUG|new suspected memory leak|unreferenced object|unable to handle|general protection'

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

# checkout COMMIT: of $linux to $src, its work tree; the lock is held
checkout()
{
	if [ ! -f "$src/.git" ]; then
		say "checking out ${src#"$top"/}"
		rm -rf "$src"
		git -C "$linux" worktree prune
		git -C "$linux" worktree add -q --detach "$src" "$1"
	else
		# we hold the lock: whoever left this one was killed
		rm -f "$(git -C "$src" rev-parse --git-dir)/index.lock"
		git -C "$src" checkout -q --force --detach "$1"
	fi
}

# newer DIRECTORY/PROGRAM PACKAGE...: a PROGRAM from Debian forky or sid, and what it
# needs with its libc6, which is newer than the host's: it is run by its own loader
newer()
{
	dir=${1%/*}
	[ ! -x "$1" ] || return 0
	[ -f "$apt/sources.list" ] ||
		die "build/apt has no package lists to find $2: install $2, or run make base"
	rm -rf "$dir"
	mkdir -p "$dir"
	program=$1
	shift
	for p; do
		# newest first, as the archive's copies have holes
		for v in $(apt_private cache madison "$p" | awk -F '|' '{ gsub(/ /, "", $2); print $2 }'); do
			say "downloading $p $v"
			(cd "$dir" && apt_private get -q download "$p=$v") >"$dir/apt.log" 2>&1 && break
		done
		dpkg-deb -x "$dir/$p"_*.deb "$dir/root" 2>>"$dir/apt.log" ||
			die "the archive has no $p for us ($dir/apt.log): install $1 yourself"
	done
	rm -f "$dir"/*.deb
	cat >"$program" <<'EOF'
#!/bin/sh
root=$(dirname "$0")/root/usr
libs=$root/lib/x86_64-linux-gnu
exec "$libs/ld-linux-x86-64.so.2" --library-path "$libs" "$root/bin/$(basename "$0")" "$@"
EOF
	chmod +x "$program"
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

# SPDX-License-Identifier: GPL-2.0
# Sourced by the other scripts, which all run from the top of the repository.

set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
build=$top/build
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
